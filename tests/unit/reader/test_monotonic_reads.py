"""I9: a reader never goes back to an older version or to another history."""

import datetime

import msgspec
import pytest

import tidegate
import tidegate.aio
from tidegate.base.steps import run
from tidegate.errors import (
    CorruptError,
    VersionRegressedError,
)
from tidegate.testing.example import BATCHES
from tidegate.wal.record import Column, TableSchema

UTC = datetime.timezone.utc


def connect_to(writer, clock=None):
    return tidegate.connect(writer.driver.endpoints.store, namespace="flights", clock=clock)


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
