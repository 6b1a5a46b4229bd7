"""Arguments of a wrong type and of any size: every public call of a reader raises a typed, short error."""

import asyncio
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidegate
import tidegate.aio
from support.odd_values import VALUES, fault_of, faults
from tidegate.testing.example import write_flights

STORE = "memory://odd"

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "table": lambda gate, odd: gate.table(odd),
    "table-get": lambda gate, odd: gate.table(odd).get("N14228"),
    "table-scan": lambda gate, odd: gate.table(odd).scan(),
    "get": lambda gate, odd: gate.table("aircraft").get(odd),
    "get of two columns": lambda gate, odd: gate.table("legs").get(odd),
    "get of a column": lambda gate, odd: gate.table("legs").get((odd, odd)),
    "get_many": lambda gate, odd: gate.table("aircraft").get_many(odd),
    "get_many of one": lambda gate, odd: gate.table("aircraft").get_many([odd]),
    "get_many of two columns": lambda gate, odd: gate.table("legs").get_many([odd]),
    "scan": lambda gate, odd: gate.table("aircraft").scan(odd),
    "gate-get_many": lambda gate, odd: gate.get_many(odd),
    "gate-get_many-keys": lambda gate, odd: gate.get_many({"aircraft": odd}),
    "gate-get_many-key": lambda gate, odd: gate.get_many({"aircraft": [odd]}),
    "snapshot": lambda gate, odd: gate.snapshot(odd),
    "as_of": lambda gate, odd: gate.snapshot(as_of=odd),
    "lease_s": lambda gate, odd: gate.snapshot(lease_s=odd),
    "wait_for": lambda gate, odd: gate.wait_for(odd, timeout=0.01),
    "timeout": lambda gate, odd: gate.wait_for(1, timeout=odd),
    "offsets": lambda gate, odd: gate.wait_for(offsets=odd, timeout=0.01),
    "history": lambda gate, odd: gate.history(odd),
    "diff": lambda gate, odd: gate.diff(odd, 2),
    "diff-after": lambda gate, odd: gate.diff(1, odd),
    "diff-tables": lambda gate, odd: gate.diff(1, 2, odd),
    "changes": lambda gate, odd: gate.changes(odd, "aircraft"),
    "changes-table": lambda gate, odd: gate.changes(2, odd),
    "changes-key_group": lambda gate, odd: gate.changes(2, "aircraft", odd),
    "job": lambda gate, odd: gate.job(odd),
    "mirror": lambda gate, odd: gate.mirror(odd),
    "mirror of one": lambda gate, odd: gate.mirror([odd]),
    "mirror-bytes_max": lambda gate, odd: gate.mirror(["aircraft"], bytes_max=odd),
    "mirror-path": lambda gate, odd: gate.mirror(["aircraft"], path=odd if odd is not None else 5),
    "mirror-on_version": lambda gate, odd: gate.mirror(["aircraft"], on_version=odd if odd is not len else 5),
}
SNAPSHOTS: dict[str, Callable[[Any, Any], Any]] = {
    "table": lambda snapshot, odd: snapshot.table(odd).get("N14228"),
    "get": lambda snapshot, odd: snapshot.table("aircraft").get(odd),
    "get_many": lambda snapshot, odd: snapshot.table("aircraft").get_many([odd]),
    "get of two columns": lambda snapshot, odd: snapshot.table("legs").get((odd, odd)),
    "scan": lambda snapshot, odd: snapshot.table("aircraft").scan(odd),
}
CONNECTS: dict[str, Callable[[Any, Any], Any]] = {
    "url": lambda connect, odd: connect(odd, "flights"),
    "namespace": lambda connect, odd: connect(STORE, odd),
    "options": lambda connect, odd: connect(STORE, "flights", odd),
    "options of sqlite": lambda connect, odd: connect("sqlite:///nowhere", "flights", {"timeout_s": odd}),
    "options of redis": lambda connect, odd: connect("redis://127.0.0.1:1", "flights", {"timeout_s": odd}),
    "an option": lambda connect, odd: connect(STORE, "flights", {"timeout_s": odd}),
    "option's name": lambda connect, odd: connect(
        STORE, "flights", odd if isinstance(odd, dict) else {"q": odd}
    ),
    "wal": lambda connect, odd: connect(STORE, "flights", wal=odd),
    "wal_options": lambda connect, odd: connect(STORE, "flights", wal=STORE, wal_options=odd),
    "follow_redirects": lambda connect, odd: connect(STORE, "flights", follow_redirects=odd),
    "follow_redirects of one": lambda connect, odd: connect(STORE, "flights", follow_redirects=[odd]),
}
MIRRORS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "url": lambda connect, odd, path: connect(odd, "flights", ["aircraft"], path=path),
    "namespace": lambda connect, odd, path: connect(STORE, odd, ["aircraft"], path=path),
    "tables": lambda connect, odd, path: connect(STORE, "flights", odd, path=path),
    "path": lambda connect, odd, _: connect(STORE, "flights", ["aircraft"], path=odd),
    "bytes_max": lambda connect, odd, path: connect(STORE, "flights", ["aircraft"], path=path, bytes_max=odd),
}


@pytest.fixture(scope="module", autouse=True)
def _written() -> None:
    write_flights(STORE, STORE)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def _used(result: Any) -> None:
    """Read all of an iterator, and close what a call returned."""
    if isinstance(result, Iterator):
        list(itertools.islice(result, 100))
    close = getattr(result, "close", None)
    if close is not None:
        close()


async def _used_async(result: Any) -> None:
    if inspect.isawaitable(result):
        result = await result
    if hasattr(result, "__aiter__"):
        async for _ in result:
            pass
    close = getattr(result, "close", None)
    closed = None if close is None else close()
    if inspect.isawaitable(closed):
        await closed


def _faults(call: Callable[[Any], Any]) -> list[str]:
    return faults(lambda value: _used(call(value)))


async def _faults_async(call: Callable[[Any], Any]) -> list[str]:
    faults = []
    for number, value in enumerate(VALUES):
        try:
            await _used_async(call(value))
        except Exception as error:  # noqa: BLE001
            if fault := fault_of(error):
                faults.append(f"value {number}, {type(value).__name__}: {fault}")
    return faults


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_a_gate(name: str) -> None:
    with tidegate.connect(STORE, "flights", wal=STORE) as gate:
        assert _faults(lambda value: CALLS[name](gate, value)) == []


@pytest.mark.parametrize("name", [name for name in CALLS if name != "job"])
def test_a_call_of_a_gate_in_an_event_loop(name: str) -> None:
    async def calls() -> list[str]:
        async with await tidegate.aio.connect(STORE, "flights", wal=STORE) as gate:
            return await _faults_async(lambda value: CALLS[name](gate, value))

    assert asyncio.run(calls()) == []


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_call_of_a_snapshot(name: str) -> None:
    with tidegate.connect(STORE, "flights") as gate, gate.snapshot() as snapshot:
        assert _faults(lambda value: SNAPSHOTS[name](snapshot, value)) == []


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_call_of_a_snapshot_in_an_event_loop(name: str) -> None:
    async def calls() -> list[str]:
        async with await tidegate.aio.connect(STORE, "flights") as gate, gate.snapshot() as snapshot:
            return await _faults_async(lambda value: SNAPSHOTS[name](snapshot, value))

    assert asyncio.run(calls()) == []


@pytest.mark.parametrize("name", CONNECTS)
def test_connect(name: str) -> None:
    assert _faults(lambda value: CONNECTS[name](tidegate.connect, value)) == []


@pytest.mark.parametrize("name", CONNECTS)
def test_connect_in_an_event_loop(name: str) -> None:
    assert asyncio.run(_faults_async(lambda value: CONNECTS[name](tidegate.aio.connect, value))) == []


@pytest.mark.parametrize("name", MIRRORS)
def test_connect_mirror(name: str, tmp_path) -> None:
    paths = (tmp_path / f"mirror-{number}" for number in itertools.count())
    assert _faults(lambda value: MIRRORS[name](tidegate.connect_mirror, value, next(paths))) == []


@pytest.mark.parametrize("name", MIRRORS)
def test_connect_mirror_in_an_event_loop(name: str, tmp_path) -> None:
    paths = (tmp_path / f"mirror-{number}" for number in itertools.count())

    async def calls() -> list[str]:
        return await _faults_async(
            lambda value: MIRRORS[name](tidegate.aio.connect_mirror, value, next(paths))
        )

    assert asyncio.run(calls()) == []


@pytest.mark.parametrize("name", ["get", "get_many", "table", "wait_for"])
def test_a_call_of_a_mirror(name: str) -> None:
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "get": lambda mirror, odd: mirror.table("aircraft").get(odd),
        "get_many": lambda mirror, odd: mirror.table("aircraft").get_many([odd]),
        "table": lambda mirror, odd: mirror.table(odd).get("N14228"),
        "wait_for": lambda mirror, odd: mirror.wait_for(odd, timeout=0.01),
    }
    with tidegate.connect(STORE, "flights") as gate, gate.mirror(["aircraft"]) as mirror:
        assert _faults(lambda value: calls[name](mirror, value)) == []
