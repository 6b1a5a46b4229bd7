"""The calls of a transaction in the manifest: sums of the shares of all tasks, frames of their tables."""

from __future__ import annotations

import uuid

import msgspec

from tidegate.committers.barrier import NamedCall
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.memory.store import MemoryStore
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.catch_up import read_manifest
from tidegate.wal.manifest import Step
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.staging.acks import CallShare

CALLS = (
    NamedCall("upsert.a", "upsert", ("a",)),
    NamedCall("mine", "update", ("b", "a")),
    NamedCall("upsert.c", "upsert", ("c",)),
)


class Shared(ArrowBarrier):
    """A barrier whose tasks were given rows of two calls; the second task none of the first call."""

    def stage(self, spec, base_version):
        shares = [(CallShare(0, 3, 30), CallShare(1, 2, 20, 0.5)), (CallShare(1, 5, 50, 0.25),)]
        acks = super().stage(spec, base_version)
        return [msgspec.structs.replace(ack, calls=share) for ack, share in zip(acks, shares, strict=True)]


def opened():
    name = uuid.uuid4().hex
    where = Endpoints("flights", f"memory://{name}", f"memory://{name}")
    driver = Coordinator(
        where, MemoryLog(name, "flights"), MemoryStore(name, "flights"), Options(key_groups=8)
    )
    open_namespace(driver, "query-1")
    return driver


def test_a_step_has_the_sums_of_its_tasks_and_the_frames_of_its_tables():
    driver = opened()
    log = driver.log
    rows = {"a": {b"%d" % n: b"1" for n in range(40)}, "b": {b"x": b"1"}, "c": {}}
    fact = commit(driver, Shared(log, rows, batch("query-1", 0), 8, 2, named_calls=CALLS))
    manifest = read_manifest(log, fact)
    frames_of_b = sum(1 in frame.tables for frame in manifest.frames())
    assert (len(manifest.frames()), frames_of_b) == (2, 1)
    assert manifest.steps == (
        Step("upsert.a", "upsert", ("a",), 2, 3, 30, 0.0, 2),
        Step("mine", "update", ("b", "a"), 2, 7, 70, 0.75, 2),
        Step("upsert.c", "upsert", ("c",), 2, 0, 0, 0.0, 0),
    )
    plain = commit(driver, ArrowBarrier(log, rows, batch("query-1", 1), 8, 2))
    assert read_manifest(log, plain).steps is msgspec.UNSET


def test_a_local_state_is_a_component_where_its_function_ran():
    """A version that writes its rows otherwise, such as a restore, knows no instances of it."""
    driver, table = opened(), "_local.top"
    call = NamedCall("top", "local_state", (table,), 3)
    for batch_id, (calls, expected) in enumerate((((call,), {"sink": 2, "local.top": 3}), ((), {"sink": 2}))):
        rows = {"_local": {b"k": b"1"}, table: {b"k": b"1"}}
        barrier = ArrowBarrier(driver.log, rows, batch("query-1", batch_id), 8, named_calls=calls)
        (components,) = read_manifest(driver.log, commit(driver, barrier)).topology.values()
        assert {name: each.parallelism for name, each in components.items()} == expected
