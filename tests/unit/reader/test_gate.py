"""Readers: what they are told, at which version, and what they are told when it cannot be told."""

import asyncio
import contextlib
import datetime
import doctest
import importlib
import os
import subprocess
import sys
import threading

import msgspec
import pytest

import tidegate
import tidegate.aio
from support.clocks import HandClock
from tidegate.errors import (
    BadRecordError,
    ConfigError,
    CorruptError,
    SnapshotExpiredError,
    VersionRegressedError,
    WaitTimeoutError,
)
from tidegate.options import Options
from tidegate.reader.leases import LeaseKeeper
from tidegate.reader.table import run
from tidegate.sinks.capabilities import SupportsReadWithPointer
from tidegate.testing.example import BATCHES, SCHEMAS, Example, write_flights
from tidegate.wal.record import Column, TableSchema

UTC = datetime.timezone.utc


@pytest.fixture(scope="module")
def flights(tmp_path_factory):
    """The example's three versions in files; tests only read here."""
    root = tmp_path_factory.mktemp("flights")
    store = f"sqlite://{root}/store"
    write_flights(f"file://{root}/wal", store)
    return store


@pytest.fixture
def gate(flights):
    with tidegate.connect(flights, namespace="flights") as gate:
        yield gate


@pytest.fixture
def writer(tmp_path):
    """A writer of a namespace of its own, in files."""
    options = Options(key_groups=2)
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=options)
    yield example
    example.close()


def connect_to(writer, clock=None):
    return tidegate.connect(writer.driver.endpoints.store, namespace="flights", clock=clock)


# -- reading ------------------------------------------------------------------------------------


def test_values_of_the_newest_version(gate):
    assert gate.version() == 3
    assert gate.namespace == "flights"
    assert gate.key_groups == 8
    assert gate.tables() == ["aircraft", "airports", "legs", "notes"]
    aircraft = gate.table("aircraft")
    assert aircraft.get("N14228") == {"carrier": "UA", "flights": 2}
    assert aircraft.get("N24211") is None  # deleted
    assert aircraft.get("N0") is None  # never there
    assert aircraft.get("") is None
    assert aircraft.schema() == SCHEMAS["aircraft"]


def test_get_many_leaves_absent_keys_out(gate):
    airports = gate.table("airports")
    assert airports.get_many(["EWR", "JFK", "XXX", "EWR"]) == {
        "EWR": {"departures": 2, "delay": 1.5},
        "JFK": {"departures": 1, "delay": -1.0},
    }
    assert airports.get_many(iter(["LGA"])) == {"LGA": {"departures": 1, "delay": 4.0}}
    assert airports.get_many([]) == {}


def test_keys_of_several_columns_and_of_bytes(gate):
    legs = gate.table("legs")
    assert legs.get(("EWR", 1545)) == {"dest": "IAH"}
    assert legs.get_many([["EWR", 1545], ("EWR", 1)]) == {("EWR", 1545): {"dest": "IAH"}}
    assert gate.table("notes").get(b"\x00\x01") == b"plain bytes"
    assert gate.table("notes").get(bytearray(b"\x00\x01")) == b"plain bytes"


def test_bytes_that_may_change_are_found_as_a_part_of_a_key(writer):
    key = (Column("shard", "binary"), Column("number", "int"))
    writer.schemas["parts"] = TableSchema(key, (Column("size", "int"),))
    writer.write({"parts": {(b"a", 1): {"size": 7}}})
    url, found = writer.driver.endpoints.store, {(b"a", 1): {"size": 7}}
    for part in (bytearray(b"a"), memoryview(bytearray(b"a"))):
        with tidegate.connect(url, "flights") as gate:
            assert gate.table("parts").get_many([(part, 1), [part, 2]]) == found

        async def read(part=part):
            async with await tidegate.aio.connect(url, "flights") as gate:
                return await gate.table("parts").get((part, 1))

        assert asyncio.run(read()) == {"size": 7}


def test_a_scan_gives_every_live_row_once(gate):
    assert sorted(gate.table("airports").scan()) == [
        ("EWR", {"departures": 2, "delay": 1.5}),
        ("JFK", {"departures": 1, "delay": -1.0}),
        ("LGA", {"departures": 1, "delay": 4.0}),
    ]
    assert list(gate.table("aircraft").scan()) == [("N14228", {"carrier": "UA", "flights": 2})]


def test_a_scan_as_an_arrow_table(gate):
    table = gate.table("legs").scan().to_arrow()
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("origin", "string"),
        ("flight", "int32"),
        ("dest", "string"),
    ]
    assert sorted(table.to_pylist(), key=lambda row: row["origin"]) == [
        {"origin": "EWR", "flight": 1545, "dest": "IAH"},
        {"origin": "LGA", "flight": 1714, "dest": "IAH"},
    ]
    scan = gate.table("airports").scan()
    next(scan)
    assert scan.to_arrow().num_rows == 2  # the rows not yet given
    assert scan.to_arrow().num_rows == 0


def test_a_scan_that_is_closed_gives_no_more_rows(gate):
    with gate.table("airports").scan() as scan:
        assert next(scan)
    assert list(scan) == []
    unread = gate.table("airports").scan()
    unread.close()
    assert list(unread) == []
    assert unread.to_arrow().num_rows == 0
    assert gate._reader.store.leases() == []


def test_history_lists_versions_with_their_batches_and_changes(gate):
    history = gate.history()
    assert [(info.version, info.batch, info.origin) for info in history] == [
        (1, 0, "batch 0"),
        (2, 1, "batch 1"),
        (3, 2, "batch 2"),
    ]
    assert [info.changes for info in history] == [
        {name: len(rows) for name, rows in batch.items()} for batch in BATCHES
    ]
    assert [info.version for info in gate.history(limit=2)] == [2, 3]
    assert all(info.decided_at.tzinfo is not None for info in history)
    assert history[0].decided_at < history[1].decided_at <= history[2].published_at
    with pytest.raises(ConfigError, match="limit is 0"):
        gate.history(limit=0)


@pytest.mark.parametrize(
    "table,key,expected",
    [
        ("aircraft", 7, "tailnum string"),
        ("aircraft", ("N14228",), "a key is one value"),
        ("aircraft", None, "tailnum string"),
        ("aircraft", "\ud800", "tailnum string"),
        ("legs", "EWR", "a tuple of 2 values .origin string, flight int."),
        ("legs", ("EWR", "1545"), "flight int"),
        ("legs", ("EWR",), "a tuple of 2 values"),
        ("legs", ("EWR", 2**31), "flight int"),
        ("notes", "text", "id binary"),
    ],
)
def test_a_key_of_another_type_is_refused_with_the_type_it_has(gate, table, key, expected):
    with pytest.raises(BadRecordError, match=f"table {table}: .*{expected}"):
        gate.table(table).get(key)


def test_an_unknown_table_is_refused_with_those_there_are(gate):
    with pytest.raises(ConfigError, match=r"'airport' at version 3 .* aircraft, airports, legs, notes"):
        gate.table("airport").get("EWR")
    with gate.snapshot(version=1) as snapshot:
        assert snapshot.tables() == ["aircraft", "airports", "legs"]
        with pytest.raises(ConfigError, match=r"version 1 .*: aircraft, airports, legs$"):
            snapshot.table("notes")


# -- connecting -----------------------------------------------------------------------------------


def test_an_unknown_namespace_says_where_it_looked_and_how_to_make_one(flights):
    with pytest.raises(ConfigError) as caught:
        tidegate.connect(flights, namespace="flight")
    assert flights in str(caught.value)
    assert "tidegate init --namespace flight" in str(caught.value)


@pytest.mark.parametrize(
    "url,namespace,options",
    [
        ("postgres://user:secret@host/db", "flights", None),
        ("redis://user:secret@host/no-number", "flights", None),
        ("memory://x", "no such name", None),
        ("memory://x", "flights", {"timeout": 3}),
        (None, "flights", None),
    ],
)
def test_what_does_not_fit_is_refused_without_showing_a_password(url, namespace, options):
    with pytest.raises(ConfigError) as caught:
        tidegate.connect(url, namespace, options)
    assert "secret" not in str(caught.value)


def test_a_store_of_a_later_format_is_refused(flights, monkeypatch):
    from tidegate.sinks.sqlite.store import SqliteStore

    found = SqliteStore.identity
    later = lambda self: msgspec.structs.replace(found(self), format=2)  # noqa: E731
    monkeypatch.setattr(SqliteStore, "identity", later)
    with pytest.raises(ConfigError, match=r"format 2.*upgrade"):
        tidegate.connect(flights, namespace="flights")


def test_before_the_first_version(writer):
    with connect_to(writer) as gate:
        assert gate.version() == 0
        assert gate.tables() == []
        assert gate.history() == []
        for ask in (
            lambda: gate.table("aircraft").get("N14228"),
            lambda: list(gate.table("aircraft").scan()),
            lambda: gate.snapshot().table("aircraft"),
            lambda: gate.snapshot(as_of=datetime.datetime.now(UTC)),
        ):
            with pytest.raises(ConfigError, match="no visible version yet"):
                ask()
        with gate.snapshot() as snapshot:
            assert (snapshot.version, snapshot.decided_at, snapshot.tables()) == (0, None, [])


def test_what_is_closed_stays_closed(flights):
    with tidegate.connect(flights, namespace="flights") as gate:
        table, snapshot = gate.table("aircraft"), gate.snapshot()
        pinned = snapshot.table("aircraft")
        with gate.snapshot() as ended:
            gone = ended.table("aircraft")
        ended.close()
        with pytest.raises(ConfigError, match="snapshot of version 3 was closed"):
            gone.get("N14228")
    gate.close()
    for ask in (gate.version, gate.snapshot, lambda: table.get("N14228"), lambda: pinned.get("N14228")):
        with pytest.raises(ConfigError, match="was closed: connect again"):
            ask()
    snapshot.close()


def test_reprs_say_where_and_never_a_password(gate):
    with gate.snapshot(version=2) as snapshot:
        assert "version 2" in repr(snapshot)
        assert "aircraft" in repr(snapshot.table("aircraft"))
    assert "sqlite://" in repr(gate)


# -- snapshots --------------------------------------------------------------------------------------


def test_a_snapshot_answers_the_same_while_the_writer_goes_on(writer):
    writer.write(BATCHES[0])
    with connect_to(writer) as gate, gate.snapshot() as snapshot:
        before = sorted(snapshot.table("airports").scan())
        scan = snapshot.table("airports").scan()
        first = next(scan)
        writer.write({"airports": {"EWR": None, "LGA": {"departures": 9, "delay": 0.0}, "SFO": None}})
        assert gate.version() == 2
        assert gate.table("airports").get("EWR") is None
        assert snapshot.table("airports").get("EWR") == {"departures": 1, "delay": 2.0}
        assert sorted([first, *scan]) == before == sorted(snapshot.table("airports").scan())


def test_a_table_that_was_emptied_is_empty_from_there_on(writer):
    writer.write(BATCHES[0])
    writer.write({"airports": {"JFK": {"departures": 1, "delay": 0.5}}}, frozenset(["airports"]))
    with connect_to(writer) as gate:
        assert [key for key, _ in gate.table("airports").scan()] == ["JFK"]
        assert gate.table("airports").get("EWR") is None
        with gate.snapshot(version=1) as snapshot:
            assert snapshot.table("airports").get("EWR") is not None


def test_the_schema_is_that_of_the_version_read(writer):
    writer.write(BATCHES[0])
    writer.schemas["aircraft"] = TableSchema(
        (Column("tailnum", "string"),), (Column("flights", "bigint"), Column("seats", "int"))
    )
    writer.write({"aircraft": {"N1": {"flights": 1, "seats": 149}}})
    with connect_to(writer) as gate:
        assert gate.table("aircraft").get("N1") == {"flights": 1, "seats": 149}
        assert gate.table("aircraft").get("N14228") == {"flights": 1, "seats": None}  # older than the column
        with gate.snapshot(version=1) as snapshot:
            assert snapshot.table("aircraft").get("N14228") == {"carrier": "UA", "flights": 1}
            assert snapshot.table("aircraft").schema() == SCHEMAS["aircraft"]


def test_a_version_that_is_not_visible_yet_is_refused(gate):
    with pytest.raises(ConfigError, match=r"version 4 .* not visible yet, .* is 3: .*wait_for\(4\)"):
        gate.snapshot(version=4)


@pytest.mark.parametrize("version", [0, -1, True, "3", 2.0])
def test_a_version_that_is_no_version_is_refused(gate, version):
    with pytest.raises(ConfigError, match="whole number, 1 or more"):
        gate.snapshot(version=version)
    with pytest.raises(ConfigError, match="whole number, 1 or more"):
        gate.wait_for(version)


@pytest.mark.parametrize("lease_s", [0, -1, 1e9, True, "60", float("nan")])
def test_a_lease_that_cannot_be_is_refused(gate, lease_s):
    with pytest.raises(ConfigError, match="lease_s"):
        gate.snapshot(lease_s=lease_s)


def test_as_of_takes_the_newest_version_decided_by_then(gate):
    decided = {info.version: info.decided_at for info in gate.history()}
    microsecond = datetime.timedelta(microseconds=1)
    for version, moment in decided.items():
        with gate.snapshot(as_of=moment) as snapshot:
            assert (snapshot.version, snapshot.decided_at) == (version, moment)
    elsewhere = datetime.timezone(datetime.timedelta(hours=-5))
    with gate.snapshot(as_of=(decided[2] - microsecond).astimezone(elsewhere)) as snapshot:
        assert snapshot.version == 1
    with pytest.raises(ConfigError, match="had no version at"):
        gate.snapshot(as_of=decided[1] - microsecond)


@pytest.mark.parametrize("as_of", [datetime.datetime(2026, 1, 1), "2026-01-01", datetime.date(2026, 1, 1)])  # noqa: DTZ001
def test_as_of_without_a_time_zone_is_refused(gate, as_of):
    with pytest.raises(ConfigError, match="time zone"):
        gate.snapshot(as_of=as_of)


def test_a_version_and_as_of_together_are_refused(gate):
    with pytest.raises(ConfigError, match="not both"):
        gate.snapshot(version=1, as_of=datetime.datetime.now(UTC))


def test_what_was_retired_is_refused_by_name_of_the_oldest(writer):
    for rows in BATCHES:
        writer.write(rows)
    with connect_to(writer) as gate:
        decided = {info.version: info.decided_at for info in gate.history()}
        assert writer.driver.store.announce(3) == 3
        with pytest.raises(SnapshotExpiredError, match=r"version 2.*oldest that can be read is 3"):
            gate.snapshot(version=2)
        with pytest.raises(SnapshotExpiredError, match=r"version 3.*oldest that can be read"):
            gate.snapshot(as_of=decided[2])
        assert [info.version for info in gate.history()] == [3]


def test_a_lease_holds_the_version_until_it_is_given_back(writer):
    for rows in BATCHES:
        writer.write(rows)
    with connect_to(writer) as gate:
        with gate.snapshot(version=2) as snapshot:
            assert writer.driver.store.announce(3) == 2
            assert snapshot.table("airports").get("EWR") == {"departures": 2, "delay": 1.5}
        assert writer.driver.store.announce(3) == 3


def test_a_scan_of_the_newest_version_holds_it_until_its_last_row(writer):
    writer.write(BATCHES[0])
    with connect_to(writer) as gate:
        scan = gate.table("airports").scan()
        rows = [next(scan)]
        writer.write(BATCHES[1])
        assert writer.driver.store.announce(2) == 1
        rows += scan
        assert min(rows) == ("EWR", {"departures": 1, "delay": 2.0})
        assert writer.driver.store.announce(2) == 2


def test_i8_a_snapshot_refuses_by_its_own_clock_once_its_lease_may_be_gone(writer, monkeypatch):
    monkeypatch.setattr(LeaseKeeper, "_run", lambda _: None)  # the thread that renews stands still
    writer.write(BATCHES[0])
    clock = HandClock()
    with connect_to(writer, clock) as gate, gate.snapshot(lease_s=600) as snapshot:
        table = snapshot.table("airports")
        scan = table.scan()
        next(scan)
        clock.seconds = 599.9
        assert table.get("EWR")
        clock.seconds = 600.0
        for ask in (lambda: table.get("EWR"), lambda: list(scan), lambda: snapshot.table("airports")):
            with pytest.raises(SnapshotExpiredError, match="lease of this snapshot on version 1 has run out"):
                ask()


def test_i8_a_horizon_that_moved_while_the_lease_was_taken_gives_the_version_up(writer, monkeypatch):
    for rows in BATCHES:
        writer.write(rows)
    with connect_to(writer) as gate:
        store, released = gate._reader.store, []
        # A store whose lease is not atomic with the horizon: it grants, and the horizon has moved.
        monkeypatch.setattr(store, "lease", lambda *_: writer.driver.store.announce(3))
        monkeypatch.setattr(store, "release", released.append)
        with pytest.raises(SnapshotExpiredError, match="version 2"):
            gate.snapshot(version=2)
        assert len(released) == 1


@pytest.fixture
def in_memory(tmp_path):
    """A writer whose store looks while it reads, as the reference has it."""
    made = Example(f"memory://{tmp_path}", f"memory://{tmp_path}", "flights", options=Options(key_groups=8))
    yield made
    made.close()


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "retired"])
def test_a_version_published_since_the_last_read_is_read(kept, in_memory):
    writer = in_memory
    """A store that looks while it reads is asked at the version seen last: its answer is not that one's."""
    with connect_to(writer) as gate:
        assert isinstance(gate._reader.store, SupportsReadWithPointer)
        for rows in BATCHES:
            version = writer.write(rows)
            if not kept:
                assert writer.driver.store.announce(version) == version
            for table, of_table in rows.items():
                read = gate.table(table)
                assert {key: read.get(key) for key in of_table} == dict(of_table)
                assert read.get_many(of_table) == {
                    key: row for key, row in of_table.items() if row is not None
                }
                assert read.schema() == SCHEMAS[table]


def test_an_answer_ahead_takes_one_look(in_memory, monkeypatch):
    writer = in_memory
    writer.write(BATCHES[0])
    with connect_to(writer) as gate:
        store = gate._reader.store
        asked = []
        gate.table("airports").get("EWR")
        for name in ("get_with_pointer", "get_many_with_pointer"):
            real = getattr(store, name)
            monkeypatch.setattr(store, name, lambda *of, real=real: asked.append(of) or real(*of))
        monkeypatch.setattr(gate, "_read_pointer", lambda: pytest.fail("it has looked already"))
        assert gate.table("airports").get("EWR") == BATCHES[0]["airports"]["EWR"]
        assert gate.table("airports").get_many(["EWR"]) == {"EWR": BATCHES[0]["airports"]["EWR"]}
        assert len(asked) == 2


def test_t28_a_newest_version_retired_under_a_read_is_read_again_at_the_newer_one(writer, monkeypatch):
    writer.write(BATCHES[0])
    with connect_to(writer) as gate:
        found = gate._reader.store.get_stored

        def retired_meanwhile(table, keys, version, start):
            if version == 1:
                writer.write(BATCHES[1])
                assert writer.driver.store.announce(2) == 2
            return found(table, keys, version, start)

        monkeypatch.setattr(gate._reader.store, "get_stored", retired_meanwhile)
        assert gate.table("airports").get("EWR") == {"departures": 2, "delay": 1.5}


def test_t28_reading_again_has_an_end(gate, monkeypatch):
    tries = []

    def always(table, keys, version, start):
        tries.append(version)
        raise SnapshotExpiredError("retired")

    monkeypatch.setattr(gate._reader.store, "get_stored", always)
    with pytest.raises(SnapshotExpiredError):
        gate.table("airports").get("EWR")
    assert 1 < len(tries) < 10


# -- I9: never back -----------------------------------------------------------------------------------


def test_i9_an_older_visible_version_is_an_error(writer, monkeypatch):
    for rows in BATCHES:
        writer.write(rows)
    with connect_to(writer) as gate:
        assert gate.version() == 3
        pointer = gate._reader.store.pointer()
        older = msgspec.structs.replace(pointer, visible=2, digest="another")
        monkeypatch.setattr(gate._reader.store, "pointer", lambda: older)
        for ask in (gate.version, gate.snapshot, lambda: gate.table("airports").get("EWR"), gate.history):
            with pytest.raises(VersionRegressedError, match=r"shows version 2, .* already seen version 3"):
                ask()
    with connect_to(writer) as fresh:
        assert fresh.version() == 3


def test_i9_another_history_under_the_same_version_is_an_error(gate, monkeypatch):
    gate.version()
    other = msgspec.structs.replace(gate._reader.store.pointer(), digest="another")
    monkeypatch.setattr(gate._reader.store, "pointer", lambda: other)
    with pytest.raises(VersionRegressedError, match="another history"):
        gate.version()


def test_i9_a_slow_answer_beside_a_faster_one_is_not_taken_for_a_step_back(writer, monkeypatch):
    writer.write(BATCHES[0])
    with connect_to(writer) as gate:
        gate.version()
        read = gate._reader.store.pointer

        def slow():
            answer = read()
            monkeypatch.setattr(gate._reader.store, "pointer", read)
            writer.write(BATCHES[1])
            assert gate.version() == 2  # another thread's read, begun later and answered first
            return answer

        monkeypatch.setattr(gate._reader.store, "pointer", slow)
        assert gate.version() == 1
        assert gate.version() == 2


def test_a_catalog_of_another_history_than_the_pointer_is_an_error(flights, monkeypatch):
    with tidegate.connect(flights, namespace="flights") as gate:
        found = gate._reader.store.catalog
        other = lambda *args: [msgspec.structs.replace(one, digest="x") for one in found(*args)]  # noqa: E731
        monkeypatch.setattr(gate._reader.store, "catalog", other)
        with pytest.raises(CorruptError, match=r"pointer.*catalog"):
            gate.table("airports").get("EWR")


@pytest.mark.parametrize(
    "missing,message", [("catalog", "no entry in the catalog"), ("schemas", "schema .* is missing")]
)
def test_a_store_that_lost_its_catalog_or_schemas_says_so(flights, monkeypatch, missing, message):
    with tidegate.connect(flights, namespace="flights") as gate:
        monkeypatch.setattr(gate._reader.store, missing, lambda *_: {} if missing == "schemas" else [])
        with pytest.raises(CorruptError, match=message):
            gate.table("airports").get("EWR")
        if missing == "catalog":
            with pytest.raises(CorruptError, match=message):
                gate.snapshot()


def test_a_stored_value_that_does_not_fit_names_table_and_key(writer):
    writer.schemas["broken"] = TableSchema((Column("id", "string"),), (Column("n", "int"),))
    writer.write({"broken": {"a": {"n": "text"}}})
    with connect_to(writer) as gate:
        for ask in (lambda: gate.table("broken").get("a"), lambda: list(gate.table("broken").scan())):
            with pytest.raises(CorruptError, match=r"table broken, key b'a'.*n int"):
                ask()


# -- waiting --------------------------------------------------------------------------------------------


def test_wait_for_returns_the_visible_version_at_once_when_it_is_there(flights):
    clock = HandClock()
    with tidegate.connect(flights, namespace="flights", clock=clock) as gate:
        assert gate.wait_for(2, timeout=0) == 3
        assert clock.slept == []


def test_wait_for_sees_the_version_come(writer):
    clock = HandClock()
    batches = iter(BATCHES)
    clock.on_sleep = lambda: writer.write(next(batches))
    with connect_to(writer, clock) as gate:
        assert gate.wait_for(version=2, timeout=5.0) == 2
    assert len(clock.slept) == 2


def test_wait_for_gives_up_at_its_deadline_with_growing_pauses(flights):
    clock = HandClock()
    told = r"version 4 .* within 2.0 s.* is 3.*tidegate status"
    with (
        tidegate.connect(flights, namespace="flights", clock=clock) as gate,
        pytest.raises(WaitTimeoutError, match=told),
    ):
        gate.wait_for(4, timeout=2.0)
    assert sum(clock.slept) == pytest.approx(2.0)
    assert clock.slept[:-1] == sorted(clock.slept[:-1])
    assert max(clock.slept) == 0.05


# -- threads and processes ---------------------------------------------------------------------------------


def test_threads_may_share_a_gate_while_a_writer_goes_on(writer):
    writer.write({"airports": {f"A{i}": {"departures": 0, "delay": 0.0} for i in range(20)}})
    wrong, done = [], threading.Event()

    def read(gate):
        while not done.is_set():
            found = gate.table("airports").get_many([f"A{i}" for i in range(20)])
            scanned = dict(gate.table("airports").scan())
            wrong.extend(
                rows
                for rows in (found, scanned)
                if len(rows) != 20 or len({row["departures"] for row in rows.values()}) != 1
            )

    with connect_to(writer) as gate:
        threads = [threading.Thread(target=read, args=(gate,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for n in range(1, 8):
            writer.write({"airports": {f"A{i}": {"departures": n, "delay": 0.0} for i in range(20)}})
        done.set()
        for thread in threads:
            thread.join()
        assert gate.version() == 8
    assert wrong == []


WITHOUT_SPARK = """
import sys

class NoSpark:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "pandas"):
            raise ImportError(f"{name} was imported")

sys.meta_path.insert(0, NoSpark())
import tidegate
assert not any(name.startswith(("tidegate.", "pyarrow")) for name in sys.modules), "not lazy"
with tidegate.connect(sys.argv[1], namespace="flights") as gate:
    with gate.snapshot() as snapshot:
        rows = snapshot.table("airports").scan().to_arrow().num_rows
    print(gate.version(), gate.table("aircraft").get("N14228"), rows, tidegate.__version__)
assert "tidegate.spark" not in sys.modules
"""


def test_readers_need_neither_spark_nor_java(flights):
    environment = {
        name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")
    }
    environment["PATH"] = ""
    command = [sys.executable, "-c", WITHOUT_SPARK, flights]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("3 {'carrier': 'UA', 'flights': 2} 3 ")


def test_every_public_name_is_there():
    for name in tidegate.__all__:
        assert getattr(tidegate, name) is not None
    assert set(tidegate.__all__) <= set(dir(tidegate))
    from tidegate.errors import BY_NAME

    assert set(BY_NAME) - {"IncompleteError"} <= set(tidegate.__all__)  # that one never leaves a commit
    with pytest.raises(AttributeError, match="Gates"):
        _ = tidegate.Gates


@pytest.mark.parametrize("name", ["reader.open_gate", "reader.gate", "reader.snapshot", "values.decode"])
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(f"tidegate.{name}")
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_the_store_may_be_away_when_a_lease_is_given_back(gate, monkeypatch):
    def away(lease_id):
        raise tidegate.StoreUnavailableError("away")

    monkeypatch.setattr(gate._reader.store, "release", away)
    with gate.snapshot() as snapshot:
        assert snapshot.version == 3
    with contextlib.closing(gate.snapshot(version=1)) as snapshot:
        assert snapshot.version == 1


# -- a store that goes back in the middle of a read ---------------------------------------------


def test_i9_an_entry_that_is_gone_with_its_version_is_a_store_that_went_back(flights, monkeypatch):
    with tidegate.connect(flights, namespace="flights") as gate:
        store = gate._reader.store
        monkeypatch.setattr(store, "catalog", lambda *_: [])
        lost = msgspec.structs.replace(store.pointer(), visible=1)
        monkeypatch.setattr(store, "pointer", lambda: lost)
        with pytest.raises(VersionRegressedError, match="version 3 was visible, now it is 1"):
            run(gate._reader.entry(3))


def test_i9_a_schema_that_is_gone_with_its_version_is_a_store_that_went_back(flights, monkeypatch):
    """Its entry was read before: nothing is damaged, and repair puts both back."""
    with tidegate.connect(flights, namespace="flights") as gate:
        store, entry = gate._reader.store, run(gate._reader.entry(3))
        lost = msgspec.structs.replace(store.pointer(), visible=1)
        monkeypatch.setattr(store, "schemas", dict)
        monkeypatch.setattr(store, "pointer", lambda: lost)
        with pytest.raises(VersionRegressedError, match="version 3 was visible, now it is 1"):
            run(gate._reader.table(entry, "airports", lambda: None))


def test_i9_an_entry_that_was_put_back_before_the_pointer_was_read_is_found(flights, monkeypatch):
    """Lost with its server after the pointer was read, and repaired before it is read again."""
    with tidegate.connect(flights, namespace="flights") as gate:
        store, plain = gate._reader.store, gate._reader.store.catalog
        answers = iter([[], plain(3, 3)])
        monkeypatch.setattr(store, "catalog", lambda *_: next(answers))
        assert run(gate._reader.entry(3)).version == 3


def test_an_entry_that_is_nowhere_is_corruption(flights, monkeypatch):
    with tidegate.connect(flights, namespace="flights") as gate:
        monkeypatch.setattr(gate._reader.store, "catalog", lambda *_: [])
        with pytest.raises(CorruptError, match="has no entry in the catalog"):
            run(gate._reader.entry(3))
