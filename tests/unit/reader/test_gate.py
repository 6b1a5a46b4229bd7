"""Readers: rows of the newest version, connecting, waiting, threads, and errors."""

import asyncio
import contextlib
import datetime
import doctest
import importlib
import os
import shutil
import subprocess
import sys
import threading

import pytest

import tidegate
import tidegate.aio
from support.clocks import HandClock
from tidegate.errors import (
    BadRecordError,
    ConfigError,
    WaitTimeoutError,
)
from tidegate.reader import table
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import BATCHES, SCHEMAS, write_flights
from tidegate.wal.record import Column, TableSchema

UTC = datetime.timezone.utc


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


def test_reads_that_are_a_tables_have_a_hint(gate):
    with gate.snapshot() as snap:
        with pytest.raises(
            TypeError, match=r"a Snapshot has no items: its tables are snapshot.table\('legs'\)"
        ):
            snap["legs"]
        with pytest.raises(AttributeError, match=r"'get': reads are of a table, snapshot.table\(NAME\).get"):
            snap.get("legs", "k")
    with pytest.raises(TypeError, match=r"a Gate has no items"):
        gate["legs"]
    with pytest.raises(AttributeError, match=r"a Gate has no attribute 'tabel'$"):
        gate.tabel("legs")
    assert not hasattr(gate, "to_pandas")


def test_get_many_of_several_tables(gate):
    keys = {"airports": ["LGA", "XXX"], "legs": [["EWR", 1545], ("EWR", 1)], "aircraft": []}
    assert gate.get_many(keys) == {
        "airports": {"LGA": {"departures": 1, "delay": 4.0}},
        "legs": {("EWR", 1545): {"dest": "IAH"}},
        "aircraft": {},
    }
    assert gate.get_many({}) == {}


@pytest.mark.parametrize(
    "keys, said",
    [
        (["EWR"], "takes keys by table"),
        ({"airports": "EWR"}, "takes several keys"),
        ({"airports": ["EWR"], "ports": ["EWR"]}, "there is no table 'ports'"),
    ],
)
def test_keys_of_several_tables_that_do_not_fit(gate, keys, said):
    with pytest.raises(ConfigError, match=said):
        gate.get_many(keys)


def test_keys_of_several_tables_are_read_in_parts_if_they_are_many(gate, monkeypatch):
    monkeypatch.setattr(table, "CALL_KEYS", 3)
    keys = {"airports": [*(f"A{n}" for n in range(5)), "LGA"], "legs": [("EWR", 1545)]}
    found = gate.get_many(keys)
    assert found["legs"] == {("EWR", 1545): {"dest": "IAH"}}
    assert list(found["airports"]) == ["LGA"]


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


def test_a_folder_under_another_name_is_no_namespace(tmp_path):
    """Readers were answered, and an alias of it led to the namespace whose folder was copied."""
    write_flights(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    shutil.copytree(tmp_path / "store" / "flights", tmp_path / "store" / "copy")
    with pytest.raises(ConfigError, match="has namespace 'flights': its folder was copied or renamed"):
        tidegate.connect(f"sqlite://{tmp_path}/store", "copy")
    with contextlib.closing(open_store(f"sqlite://{tmp_path}/store", "flights", None, None)) as store:
        assert store.namespaces() == ["flights"]
