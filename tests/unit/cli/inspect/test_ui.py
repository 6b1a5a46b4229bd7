"""``tidegate ui``: what its page is told, that nothing is written, and what a browser makes of it."""

from __future__ import annotations

import contextlib
import hashlib
import html
import http.client
import json
import re
import shutil
import socket
import struct
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from importlib import resources
from pathlib import Path

import pytest

from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.committers import barrier
from tidegate.errors import ConfigError
from tidegate.observe import metrics
from tidegate.options import Options
from tidegate.options.endpoints import StoreRef, parse_store
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.example import BATCHES, Example
from tidegate.testing.store.harness import ManualClock
from tidegate.ui.facts import Facts
from tidegate.ui.server import Server
from tidegate.wal.manifest import Step

ROOT = Path(__file__).resolve().parents[4]
FILES = {
    path.name: path.read_text()
    for path in resources.files("tidegate.ui").iterdir()
    if path.name.endswith((".html", ".css", ".js"))
}


def example(folder, versions=3):
    """A namespace in files, of so many versions; its URLs."""
    wal, store = f"file://{folder}/wal", f"sqlite://{folder}/store"
    writer = Example(wal, store, options=Options(key_groups=8, keep_versions=1_000))
    for number in range(versions):
        changed = {"aircraft": {"N14228": {"carrier": "UA", "flights": number}}}
        writer.write(BATCHES[number] if number < len(BATCHES) else changed)
    writer.close()
    return wal, store


@pytest.fixture
def served():
    """Serves facts; gives a function that asks, and the server's URL in ``ask.url``."""
    opened = []

    def serve(wal, *stores, metrics_url=None):
        soon = {"timeout_s": 1}
        ats = tuple(
            StoreRef(f"s{number}", url, soon if url.startswith("redis:") else {})
            for number, url in enumerate(stores)
        )
        facts = Facts("flights", ats, wal, None, metrics_url)
        server = Server(facts, "127.0.0.1", 0)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        opened.append((server, facts))

        def ask(path, **headers):
            request = urllib.request.Request(server.url + path, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, answer.headers, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.headers, error.read().decode()

        ask.url, ask.facts, ask.server = server.url, facts, server
        return ask

    yield serve
    for server, facts in opened:
        server.shutdown()
        server.server_close()
        facts.close()


def look(ask, holds=lambda _: True):
    """The facts, once they are so."""
    end = time.monotonic() + 60
    while True:
        status, _, text = ask("api/namespace")
        assert status == 200
        facts = json.loads(text)
        if holds(facts):
            return facts
        assert time.monotonic() < end, facts
        time.sleep(0.1)


def contents(folder):
    """Checksums of all files but SQLite's shared memory and empty journals, which readers make."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("-shm"))
    files = (path for path in files if path.stat().st_size or not path.name.endswith("-wal"))
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_versions_tables_stores_and_the_log_are_told_and_nothing_is_written(tmp_path, served):
    wal, store = example(tmp_path)
    ask = served(wal, store)
    look(ask, lambda facts: facts["stores"])
    before = contents(tmp_path)
    facts = look(ask, lambda facts: facts["stores"])
    ask("api/key?table=aircraft&key=N14228")
    assert (facts["visible"], facts["decided"], facts["lag"], facts["problems"]) == (3, 3, 0, [])
    assert [one["version"] for one in facts["versions"]] == [3, 2, 1]
    assert facts["versions"][0]["changes"] == {"aircraft": 1, "airports": 1}
    assert all(one["took_s"] >= 0 and one["phases"] is None for one in facts["versions"])
    assert [table["name"] for table in facts["tables"]] == ["aircraft", "airports", "legs", "notes"]
    assert facts["stores"][0]["stands"] == "at the log's end"
    assert "opened, epoch 1" in facts["events"][0]["what"]
    assert facts["log"]["log size"].startswith("decision log")
    assert contents(tmp_path) == before


def test_it_goes_on_with_what_is_written_meanwhile(tmp_path, served):
    wal, store = example(tmp_path)
    ask = served(wal, store)
    assert look(ask)["visible"] == 3
    writer = Example(wal, store)
    writer.write({"aircraft": {"N1": {"carrier": "AA", "flights": 1}}})
    writer.close()
    facts = look(ask, lambda facts: facts["visible"] == facts["decided"] == 4)
    assert "epoch 2" in facts["events"][0]["what"]


def test_one_keys_history_has_the_versions_at_which_it_changed(tmp_path, served):
    ask = served(*example(tmp_path))
    status, _, text = ask("api/key?table=aircraft&key=N24211")
    assert status == 200
    values = [(one["version"], one["columns"]) for one in json.loads(text)["values"]]
    assert values == [(3, None), (1, {"carrier": "UA", "flights": "1"})]
    assert json.loads(ask("api/key?table=legs&key=EWR&key=1545")[2])["values"][0]["columns"] == {
        "dest": "IAH"
    }
    assert json.loads(ask("api/key?table=aircraft&key=N0")[2])["values"] == [
        {"version": 1, "columns": None, "decided_at": pytest.approx(time.time(), abs=3600)}
    ]


def test_a_value_that_is_no_number_does_not_change_by_itself_and_large_ones_are_shown_whole(tmp_path):
    """NaN is not equal to NaN, 0.0 is to -0.0, and a browser's numbers have 53 bits."""
    wal, store = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    writer = Example(wal, store)
    for departures, delay in ((2**63 - 1, "NaN"), (2**63 - 1, "NaN"), (1, 0.0), (1, -0.0)):
        writer.write({"airports": {"EWR": {"departures": departures, "delay": delay}}})
    writer.close()
    with contextlib.closing(Facts("flights", (parse_store(store),), wal)) as facts:
        found = [(one["version"], one["columns"]) for one in facts.lookups.key("airports", ["EWR"])["values"]]
    assert found == [
        (4, {"departures": "1", "delay": "-0.0"}),
        (3, {"departures": "1", "delay": "0.0"}),
        (1, {"departures": "9223372036854775807", "delay": "nan"}),
    ]


def test_a_look_reads_the_entries_of_new_versions_alone(tmp_path, monkeypatch):
    """The catalog of 100 versions of 1,000 tables has 5 MB, and a page looks once a second."""
    wal, store = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    read, catalog = [], SqliteStore.catalog

    def counted(self, oldest=0, newest=None):
        entries = catalog(self, oldest, newest)
        read.append(len(entries))
        return entries

    def looked(facts):
        monkeypatch.setattr("tidegate.ui.facts.LOOK_EVERY_S", 0.0)
        del read[:]
        return [version["version"] for version in facts.look()["versions"]]

    with contextlib.closing(Example(wal, store, options=Options(key_groups=2))) as writer:
        for number in range(10):
            writer.write({"aircraft": {"N1": {"carrier": "UA", "flights": number}}})
        with contextlib.closing(Facts("flights", (parse_store(store),))) as facts:
            monkeypatch.setattr(SqliteStore, "catalog", counted)
            assert looked(facts) == list(range(10, 0, -1))
            assert looked(facts) == list(range(10, 0, -1))
            assert sum(read) <= 1
            writer.write({"aircraft": {"N1": {"carrier": "UA", "flights": 11}}})
            assert looked(facts) == list(range(11, 0, -1))


def test_a_browser_that_leaves_or_asks_nonsense_leaves_no_traceback(tmp_path, served, capfd):
    ask = served(*example(tmp_path))
    where = ("127.0.0.1", ask.server.server_port)
    with socket.create_connection(where) as leaving:
        leaving.sendall(b"GET /api/namespace HTTP/1.0\r\nHost: localhost\r\n\r\n")
        leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for request in (b"GET / HTTP/1.0\r\nHost: [\r\n", b"GET http://[ HTTP/1.0\r\n"):
        with socket.create_connection(where) as asking, asking.makefile("rb") as answer:
            asking.sendall(request + b"\r\n")
            assert answer.readline().split()[1] == b"403"
    look(ask)
    assert capfd.readouterr().err == ""


@pytest.fixture
def seen_after(tmp_path):
    """A key's history [(version, value)] after writes: rows, the tables that they empty, seconds after."""

    def history(writes, **options):
        wal, store, clock = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", ManualClock()
        writer = Example(wal, store, options=Options(key_groups=2, **options), clock=clock)
        for rows, starts, seconds in writes:
            writer.write(rows, starts=frozenset(starts))
            clock.advance(seconds)
        writer.close()
        with contextlib.closing(Facts("flights", (parse_store(store),), wal)) as facts:
            return [
                (one["version"], one["columns"]) for one in facts.lookups.key("aircraft", ["N1"])["values"]
            ]

    return history


UA = {"carrier": "UA", "flights": 1}
UA_SHOWN = {"carrier": "UA", "flights": "1"}


def test_a_key_that_went_with_its_whole_table_is_shown_as_gone(seen_after):
    """A version that empties a table may change no row of it."""
    empties = {"aircraft": {}}, ("aircraft",), 0
    found = seen_after([({"aircraft": {"N1": UA}}, (), 0), empties, ({"notes": {}}, (), 0)])
    assert found == [(2, None), (1, UA_SHOWN)]


def test_a_key_that_has_expired_is_shown_as_gone(seen_after):
    """No version changes it: it is gone at the newest."""
    later = [({"notes": {}}, (), 0)] * 2
    found = seen_after([({"aircraft": {"N1": UA}}, (), 700), *later], ttl={"aircraft": "10 min"})
    assert found == [(3, None), (1, UA_SHOWN)]


@pytest.mark.parametrize(
    "query,told",
    [
        ("table=nope&key=1", "there is no table 'nope'; the tables there are: aircraft"),
        ("table=legs&key=EWR", "give 2 KEY, not 1"),
        ("table=legs&key=EWR&key=x", "is no int"),
        ("table=legs&key=EWR&key=99999999999", "is not a value of the key column's type"),
        ("", "there is no table"),
    ],
)
def test_a_wrong_question_is_told_what_is_wrong(tmp_path, served, query, told):
    status, _, text = served(*example(tmp_path))(f"api/key?{query}")
    assert status == 400
    assert told in json.loads(text)["error"]


def test_a_namespace_without_a_version_and_one_that_is_not_there(tmp_path, served):
    facts = look(
        served(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"), lambda facts: facts["stores"]
    )
    assert (facts["visible"], facts["versions"], facts["tables"]) == (0, [], [])


def test_a_store_that_is_down_is_told_and_keeps_nothing_else_waiting(tmp_path, served):
    wal, store = example(tmp_path)
    ask = served(wal, store, "redis://127.0.0.1:6")
    facts = look(ask, lambda facts: "StoreUnavailableError" in facts["stores"][-1]["stands"])
    assert facts["visible"] == 3
    assert facts["stores"][1]["visible"] is None
    assert "no answer since" in facts["stores"][1]["stands"]


def test_a_primary_that_is_down_is_a_problem_and_the_log_is_shown(tmp_path, served):
    wal, _ = example(tmp_path)
    ask = served(wal, "redis://127.0.0.1:6")
    facts = look(ask, lambda facts: "StoreUnavailableError" in str(facts["problems"]))
    assert facts["decided"] == 3
    assert "visible" not in facts
    assert facts["problems"][0].startswith("store: StoreUnavailableError")
    assert "; no answer since 20" in facts["problems"][0]


def test_a_store_that_is_being_rebuilt_is_a_problem_with_its_progress(tmp_path, served):
    wal, store = example(tmp_path, versions=5)
    shutil.rmtree(tmp_path / "store/flights")
    failpoints.arm("seal.after=raise")
    with pytest.raises(FailpointError):
        Example(wal, store, options=Options(key_groups=8, keep_versions=2))
    failpoints.arm(None)
    problems = json.loads(served(wal, store)("/api/namespace")[2])["problems"]
    assert ["is being rebuilt or filled, at version 4 of 5" in text for text in problems] == [True]
    assert "version 5 is being written" in problems[0]


def test_a_server_for_other_machines_answers_no_foreign_name(tmp_path, served):
    """A site whose name points here could read it through a browser that reaches this port."""
    facts = served(*example(tmp_path)).facts
    server = Server(facts, "0.0.0.0", 0, ["Tide.example"])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        for name, status in {
            "evil.example": 403,
            "127.0.0.1.evil.example": 403,
            "tide.example:8765": 200,
            socket.gethostname(): 200,
            "192.0.2.7:8765": 200,
            "[2001:db8::1]:8765": 200,
        }.items():
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
            with contextlib.closing(connection):
                connection.request("GET", "/api/namespace", headers={"Host": name})
                assert connection.getresponse().status == status, name
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_only_its_own_name_is_answered_and_nothing_but_get(tmp_path, served):
    ask = served(*example(tmp_path))
    status, headers, text = ask("api/namespace", Host="evil.example")
    assert (status, "versions" in text) == (403, False)
    assert headers["Access-Control-Allow-Origin"] is None
    assert ask("api/namespace", Host="localhost:1")[0] == 200
    assert ask("api/other")[0] == 404
    request = urllib.request.Request(ask.url, data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    with refused.value as error:
        assert error.code == 501
    assert "default-src 'none'" in ask("")[1]["Content-Security-Policy"]


def test_phases_by_version_come_from_the_drivers_metrics(tmp_path, served):
    wal, store = example(tmp_path)
    phases = {"stage": 0.5, "apply": 0.2}
    found = [{"namespace": "flights", "version": 3, "phases": phases}]
    found.append({"namespace": "others", "version": 2, "phases": phases})
    (tmp_path / "commits").write_text(json.dumps(found))
    ask = served(wal, store, metrics_url=f"file://{tmp_path}/metrics")
    assert [one["phases"] for one in look(ask)["versions"]] == [phases, None, None]
    (tmp_path / "commits").write_text("<html>")
    time_out = look(ask, lambda facts: facts["problems"])
    assert "not what a driver's metrics_port serves" in time_out["problems"][0]


def test_a_port_that_is_taken_is_told(served, tmp_path):
    ask = served(*example(tmp_path))
    with pytest.raises(ConfigError, match=r"cannot listen on 127.*; give another --port"):
        Server(ask.facts, "127.0.0.1", ask.server.server_port)


def test_the_page_loads_its_own_files_alone_and_puts_text_in_as_text(tmp_path, served):
    page = "\n".join(FILES.values())
    loaded = re.findall(r"(?:src|href)=\"([^\"#]+)\"", FILES["page.html"]) + re.findall(
        r"from \"\./([^\"]+)\"", page
    )
    assert set(loaded) - {"data:,"} == set(FILES) - {"page.html"}
    assert set(re.findall(r"https?://[^\s\"'`]+", page)) == {"http://www.w3.org/2000/svg"}
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "url("):
        assert name not in page
    assert "prefers-color-scheme: dark" in FILES["page.css"]
    assert 'name="viewport"' in FILES["page.html"]
    ask = served(*example(tmp_path))
    for name, text in FILES.items():
        assert ask("" if name == "page.html" else name)[2] == text


def test_the_pages_words_are_those_of_the_glossary():
    page = (ROOT / "docs/protocol.md").read_text()
    glossary = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE))
    for names in [name for name in glossary if ", " in name]:
        glossary |= dict.fromkeys(names.split(", "), glossary[names])
    words = dict(re.findall(r"<dt id=\"[^\"]+\">([^<]+)</dt><dd>([^<]+)</dd>", FILES["page.html"]))
    own = {"age", "lag", "log"}
    assert own == set(words) - set(glossary)
    assert {word: html.unescape(told) for word, told in words.items() if word not in own} == {
        word: glossary[word] for word in set(words) - own
    }
    assert set(re.findall(r"#word-([a-z-]+)", FILES["page.html"])) <= {
        word.replace(" ", "-") for word in words
    }


def test_the_steps_of_a_version_are_those_of_its_manifest(served, tmp_path, monkeypatch):
    step = Step("mine", "upsert", ("aircraft",), 2, 3, 40, 0.0, 1)
    monkeypatch.setattr(barrier, "_steps", lambda *_: (step,))
    wal, store = example(tmp_path, 2)
    ask = served(wal, store)
    ask("api/namespace")
    status, _, body = ask("api/job?version=2")
    found = json.loads(body)
    assert (status, found["version"], [one["name"] for one in found["steps"]]) == (200, 2, ["mine"])
    assert json.loads(ask("api/job?version=9")[2])["steps"] is None
    without = served(None, store)
    without("api/namespace")
    assert json.loads(without("api/job?version=2")[2])["steps"] is None


def test_the_page_and_the_metrics_are_served_by_ipv6_too(tmp_path):
    wal, store = example(tmp_path, 1)
    with contextlib.closing(Facts("flights", (parse_store(store),), wal)) as facts:
        server = Server(facts, "[::1]", 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            assert server.url.startswith("http://[::1]:")
            with urllib.request.urlopen(server.url, timeout=20) as answer:
                assert answer.status == 200
        finally:
            server.shutdown()
            server.server_close()
    with urllib.request.urlopen(metrics.serve("[::1]:0"), timeout=20) as answer:
        assert b"tidegate" in answer.read()
