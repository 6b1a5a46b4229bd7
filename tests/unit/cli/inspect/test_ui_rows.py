"""What the page of ``tidegate ui`` reads: rows, differences, events, namespaces, metrics."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
import types

import msgspec
import pytest

from support.wait import wait_until
from tidegate.errors import ConfigError, SnapshotExpiredError, StoreUnavailableError, TidegateError
from tidegate.options import Options
from tidegate.options.endpoints import parse_store
from tidegate.testing.example import Example
from tidegate.testing.store.harness import ManualClock
from tidegate.ui import lookups
from tidegate.ui.facts import Facts
from tidegate.ui.server import Server
from tidegate.ui.spaces import OPEN_MAX, Spaces
from tidegate.wal.record import Column, TableSchema

WAIT_S = 30


@pytest.fixture
def place(tmp_path):
    """A writer in files, and facts of the same namespace: ``place(**options)`` returns both."""
    with contextlib.ExitStack() as opened:

        def made(**options):
            wal, store = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
            writer = Example(wal, store, options=Options(key_groups=8, **options), clock=ManualClock())
            opened.callback(writer.close)
            return writer, opened.enter_context(
                contextlib.closing(Facts("flights", (parse_store(store),), wal))
            )

        yield made


def plane(number, flights=1):
    return {f"N{number}": {"carrier": "UA", "flights": flights}}


def pages_of(lookup, table, version=None):
    """All pages of a table, from the first one's version."""
    found, place = [], (0, 0)
    while place is not None:
        page = lookup.rows(table, version, *place)
        version = page["version"]
        found.append(page["rows"])
        place = page["next"]
    return found


def test_pages_of_a_table_have_every_row_once_at_the_version_of_the_first(place, monkeypatch):
    monkeypatch.setattr(lookups, "ROWS_MAX", 7)
    writer, facts = place()
    writer.write({"aircraft": {name: value for n in range(100) for name, value in plane(n).items()}})
    first = facts.lookups.rows("aircraft", None, 0, 0)
    writer.write({"aircraft": {**plane(0, 2), **plane(200)}})
    pages = [first["rows"], *pages_of(facts.lookups, "aircraft", 1)[1:]]
    assert {len(page) for page in pages[:-1]} == {7}
    keys = [row["key"] for page in pages for row in page]
    assert sorted(keys) == sorted([f"N{n}"] for n in range(100))
    assert {row["columns"]["flights"] for page in pages for row in page} == {"1"}
    assert (first["key_columns"], first["value_columns"]) == (["tailnum"], ["carrier", "flights"])


def test_every_size_of_a_page_gives_the_same_rows(place, monkeypatch):
    """A page may end anywhere: within a key group, at its end, at the end of the table."""
    writer, facts = place()
    writer.write({"aircraft": {name: value for n in range(23) for name, value in plane(n).items()}})
    whole = facts.lookups.rows("aircraft", None, 0, 0)["rows"]
    assert len(whole) == 23
    for size in range(1, 25):
        monkeypatch.setattr(lookups, "ROWS_MAX", size)
        assert [row for page in pages_of(facts.lookups, "aircraft") for row in page] == whole


def test_an_empty_table_and_places_that_do_not_exist(place):
    writer, facts = place()
    writer.write({"aircraft": {}})
    page = facts.lookups.rows("aircraft", None, 0, 0)
    assert (page["rows"], page["next"]) == ([], None)
    for arguments, told in {
        ("nope", None, 0, 0): "there is no table 'nope'",
        ("aircraft", 2, 0, 0): "version 2 is not visible",
        ("aircraft", None, 8, 0): "there is no such place",
    }.items():
        with pytest.raises(ConfigError, match=told):
            facts.lookups.rows(*arguments)


def test_rows_read_while_their_version_is_retired_are_refused(place, monkeypatch):
    """No lease is taken: the horizon is read after the rows."""
    writer, facts = place(keep_versions=1)
    for flights in (1, 2):
        writer.write({"aircraft": plane(1, flights)})
    taken = lookups._row

    def retired_meanwhile(*row):
        writer.driver.store.announce(2)
        return taken(*row)

    monkeypatch.setattr(lookups, "_row", retired_meanwhile)
    with pytest.raises(SnapshotExpiredError, match="version 1 was retired"):
        facts.lookups.rows("aircraft", 1, 0, 0)
    with pytest.raises(SnapshotExpiredError):
        facts.lookups.differences(1, 2, None)


def test_a_search_ends_in_time_and_continues_where_it_ended(place, monkeypatch):
    writer, facts = place()
    writer.write({"aircraft": {name: value for n in range(50) for name, value in plane(n).items()}})
    whole = sorted(row["key"] for row in facts.lookups.rows("aircraft", None, 0, 0)["rows"])
    checks = []

    def out_of_time(self):
        checks.append(1)
        if len(checks) % 4 == 0:
            raise lookups.OutOfTimeError

    monkeypatch.setattr(lookups._Place, "check", out_of_time)
    pages = pages_of(facts.lookups, "aircraft")
    assert len(pages) > 1
    assert sorted(row["key"] for page in pages for row in page) == whole
    checks[:] = [1, 1, 1]
    assert facts.lookups.differences(0, 1, None)["cut"]


def test_long_values_are_cut_with_their_length_and_control_characters_are_kept_as_text(place):
    writer, facts = place()
    writer.write({"notes": {b"\x00k": b"x" * 2_000_000}, "legs": {("EWR", 1): {"dest": "a\nb\x1b"}}})
    row = facts.lookups.rows("notes", None, 0, 0)["rows"][0]
    assert row["key"] == ["0x006b"]
    assert row["columns"]["value"].endswith("x … (2,000,000 characters)")
    assert len(row["columns"]["value"]) < 600
    assert facts.lookups.key("notes", row["key"])["values"][0]["columns"]["value"].startswith("xxx")
    assert facts.lookups.rows("legs", None, 0, 0)["rows"][0] == {
        "key": ["EWR", "1"],
        "columns": {"dest": "a\nb\x1b"},
    }


def test_differences_are_those_of_the_reader_in_both_directions(place):
    writer, facts = place()
    writer.write({"aircraft": {**plane(1), **plane(2), **plane(3)}, "airports": {}})
    writer.write({"aircraft": {**plane(1, 5), "N2": None, **plane(4)}})
    writer.write({"airports": {"EWR": {"departures": 1, "delay": None}}})

    def found(before, after, table=None):
        answer = facts.lookups.differences(before, after, table)
        assert not answer["cut"]
        return {(one["table"], *one["key"]): (one["before"], one["after"]) for one in answer["changes"]}

    def shown(flights):
        return {"carrier": "UA", "flights": str(flights)}

    forward = {
        ("aircraft", "N1"): (shown(1), shown(5)),
        ("aircraft", "N2"): (shown(1), None),
        ("aircraft", "N4"): (None, shown(1)),
        ("airports", "EWR"): (None, {"departures": "1", "delay": None}),
    }
    assert found(1, 3) == forward
    assert found(3, 1) == {key: (after, before) for key, (before, after) in forward.items()}
    assert found(1, 3, "airports") == {("airports", "EWR"): forward["airports", "EWR"]}
    assert set(found(0, 1)) == {("aircraft", "N1"), ("aircraft", "N2"), ("aircraft", "N3")}
    assert set(found(1, 0)) == set(found(0, 1))
    with pytest.raises(ConfigError, match="there is no table 'nope'"):
        facts.lookups.differences(1, 2, "nope")
    with pytest.raises(ConfigError, match="choose two versions"):
        facts.lookups.differences(2, 2, None)


def test_differences_are_bounded_in_rows(place, monkeypatch):
    monkeypatch.setattr(lookups, "DIFFERENCES_MAX", 5)
    writer, facts = place()
    writer.write({"aircraft": {name: value for n in range(5) for name, value in plane(n).items()}})
    writer.write({"aircraft": plane(5)})
    assert not facts.lookups.differences(0, 1, None)["cut"]
    more = facts.lookups.differences(0, 2, None)
    assert (len(more["changes"]), more["cut"]) == (5, True)


def test_columns_that_were_added_are_null_before(place):
    writer, facts = place()
    writer.write({"legs": {("EWR", 1): {"dest": "IAH"}}})
    writer.schemas["legs"] = TableSchema(
        writer.schemas["legs"].key, (Column("dest", "string"), Column("gate", "string"))
    )
    writer.write({"legs": {("EWR", 1): {"dest": "IAH", "gate": "<b>"}}})
    values = facts.lookups.key("legs", ["EWR", "1"])["values"]
    assert [one["columns"] for one in values] == [{"dest": "IAH", "gate": "<b>"}, {"dest": "IAH"}]


# -- events ----------------------------------------------------------------------------------------


def test_a_plain_start_is_no_takeover_and_each_has_its_time(place, tmp_path):
    writer, facts = place()
    writer.write({"aircraft": plane(1)})
    decided = writer.driver.folded.recent[-1].decided_at_us / 1e6
    wal, store = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    newer = Example(wal, store)
    newer.close()
    starts = facts.look()["events"]
    assert [(one["kind"], one["after_version"]) for one in starts] == [("start", 1), ("start", None)]
    assert (starts[0]["after_at"], starts[0]["before_at"]) == (decided, None)
    assert starts[1]["after_at"] <= decided == starts[1]["before_at"]
    with pytest.raises(TidegateError):
        writer.write({"aircraft": plane(2)})
    with contextlib.closing(Facts("flights", (parse_store(store),), wal)) as again:
        kinds = [(one["kind"], one["what"]) for one in again.look()["events"]]
    assert [kind for kind, _ in kinds] == ["fault", "takeover", "start"]
    assert kinds[0][1].startswith(f"void Decided of driver {writer.driver.writer}")
    assert f"driver {writer.driver.writer} still wrote afterwards" in kinds[1][1]


@pytest.mark.parametrize("age_s,state", [(0, "running"), (29, "running"), (31, "silent")])
def test_a_writer_without_a_heartbeat_for_30_s_is_silent(place, monkeypatch, age_s, state):
    writer, facts = place()
    writer.write({"aircraft": plane(1)})
    pointer = writer.driver.store.pointer()
    monkeypatch.setattr(
        "tidegate.sinks.sqlite.store.SqliteStore.pointer",
        lambda _: msgspec.structs.replace(pointer, heartbeat_age_s=age_s),
    )
    assert facts.look()["writer_state"] == state


def test_a_writer_that_ended_in_order_is_closed(place, tmp_path):
    writer, facts = place()
    writer.write({"aircraft": plane(1)})
    writer.driver.store.end_heartbeat(writer.driver.folded.epoch)
    assert facts.look()["writer_state"] == "closed"


# -- namespaces, metrics, requests -----------------------------------------------------------------


def test_a_namespace_that_is_not_listed_is_refused_and_few_stay_open():
    made, closed = [], []

    class Made:
        def __init__(self, namespace):
            self.namespace = namespace
            made.append(namespace)

        def close(self, end=None):
            closed.append(self.namespace)

    names = [f"n{number}" for number in range(OPEN_MAX + 1)]
    spaces = Spaces(Made("own"), lambda: names, Made)
    assert spaces.names() == sorted([*names, "own"])
    assert spaces.facts("") is spaces.facts("own")
    for name in [*names, names[-1]]:
        assert spaces.facts(name).namespace == name
    assert made == ["own", *names]
    assert closed == [names[0]]
    for unknown in ("nope", "../own"):
        with pytest.raises(ConfigError, match="there is no namespace"):
            spaces.facts(unknown)
    spaces.close()
    assert sorted(closed) == sorted([*names, "own"])


def test_a_list_that_takes_long_or_fails_keeps_no_request(monkeypatch):
    monkeypatch.setattr("tidegate.ui.spaces.FIRST_LIST_S", 0.05)
    asked, may_end = threading.Semaphore(0), threading.Event()

    def listed():
        asked.release()
        assert may_end.wait(WAIT_S)
        raise ConfigError("no right to list")

    spaces = Spaces(types.SimpleNamespace(namespace="own", close=lambda _end: None), listed, Facts)
    assert spaces.names() == spaces.names() == ["own"]
    assert asked.acquire(timeout=WAIT_S)
    with pytest.raises(TidegateError, match="still being listed"):
        spaces.facts("other")
    monkeypatch.setattr("tidegate.ui.spaces.FIRST_LIST_S", WAIT_S)
    began = time.monotonic()
    assert spaces.names() == ["own"]
    assert time.monotonic() - began < WAIT_S / 2, "each request waited again while the first list ran"
    may_end.set()
    spaces.close()
    assert spaces.names() == ["own"]
    assert not asked.acquire(blocking=False), "no second list at once"
    with pytest.raises(ConfigError, match="to choose here: the namespaces cannot be listed: no right"):
        spaces.facts("other")


def test_a_list_that_failed_is_repeated_sooner_than_one_that_scanned(monkeypatch):
    """It had waited 10 s for a server: the next one came a quarter of an hour later."""
    clock = ManualClock()
    monkeypatch.setattr("tidegate.ui.spaces.time", clock)

    def listed():
        clock.sleep(10.0)
        raise StoreUnavailableError("no answer")

    spaces = Spaces(types.SimpleNamespace(namespace="own"), listed)
    spaces.names()
    spaces._list.join(WAIT_S)
    assert spaces._next_list_s - clock.monotonic() == pytest.approx(100.0)


def test_metrics_that_nobody_named_are_no_problem_and_say_whose_they_are(place, tmp_path):
    writer, _ = place()
    writer.write({"aircraft": plane(1)})
    at, url = (parse_store(f"sqlite://{tmp_path}/store"),), f"file://{tmp_path}/metrics"
    with contextlib.closing(Facts("flights", at, None, None, url, is_guess=True)) as facts:
        seen = facts.look()
    assert (seen["problems"], seen["metrics"]) == ([], {"url": url, "namespaces": None})
    (tmp_path / "commits").write_text(
        json.dumps([{"namespace": "orders", "version": 1, "phases": {"stage": 9}}])
    )
    with contextlib.closing(Facts("flights", at, None, None, url, is_guess=True)) as facts:
        wait_until(lambda: facts.look()["metrics"]["namespaces"])  # a guess is not waited for
        seen = facts.look()
    assert seen["metrics"]["namespaces"] == ["orders"]
    assert seen["versions"][0]["phases"] is None


@pytest.mark.parametrize(
    "path,status,told",
    [
        ("api/rows?table=aircraft&namespace=flights", 200, ""),
        ("api/rows?table=aircraft&namespace=other", 400, "there is no namespace 'other'"),
        ("api/rows?table=aircraft&group=x", 400, "group 'x' is no whole number"),
        ("api/rows?table=aircraft&group=-1", 400, "no whole number"),
        ("api/rows?table=aircraft&skip=" + "9" * 5_000, 400, "no whole number"),
        ("api/rows?table=aircraft&version=9", 400, "version 9 is not visible"),
        ("api/diff?before=0&after=1", 200, ""),
        ("api/diff?before=0", 400, "give two versions"),
        ("api/diff?before=0&after=1e3", 400, "no whole number"),
        ("page.py", 404, "nothing here"),
        ("../server.py", 404, "nothing here"),
    ],
)
def test_requests_are_answered_or_refused_with_their_cause(place, path, status, told):
    writer, facts = place()
    writer.write({"aircraft": plane(1)})
    server = Server(facts, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    asked = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        asked.request("GET", f"/{path}")
        answer = asked.getresponse()
        assert answer.status == status
        assert told in json.loads(answer.read()).get("error", "")
    finally:
        asked.close()
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_page_can_be_started_again_at_once(place):
    """The port was refused for a minute: the connections of browsers that it had answered still ended."""
    _, facts = place()
    server = Server(facts, "127.0.0.1", 0)
    for _ in range(2):
        port = server.server_port
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        asked = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        asked.request("GET", "/page.css")
        assert asked.getresponse().read()
        server.shutdown()
        server.server_close()
        server = Server(facts, "127.0.0.1", port)
    server.server_close()
