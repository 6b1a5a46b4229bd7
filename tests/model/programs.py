"""The programs of the processes of ``whole.py``: production's functions, called as production calls them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from model.processes import NAMES, Change, Process, ProcessClock, Program
from tidegate.committers.apply import apply
from tidegate.committers.background.follower import Follower, follower_for
from tidegate.committers.background.membership import add_store
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator, OpenRequest
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.adopt import adopt
from tidegate.committers.operations.restore import restore
from tidegate.committers.operations.restore_plan import plan_restore
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer
from tidegate.errors import SnapshotExpiredError, StoreUnavailableError
from tidegate.options import Options
from tidegate.options.endpoints import StoreRef
from tidegate.reader.flow.reader import Reader
from tidegate.reader.gate import Gate
from tidegate.reader.leases.keeper import LeaseKeeper
from tidegate.sinks.records import Identity, ReadAt
from tidegate.testing.arrow_barrier import ArrowBarrier
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import View, once_key, replay_of
from tidegate.wal.record import BatchOrigin, ImportOrigin, LoadOrigin, Origin
from tidegate.wal.staging.acks import Ack
from tidegate.wal.staging.spec import StageSpec

LINEAGE = "query-1"
KEYS = (b"all", b"k4", b"k1", b"k5")
"""``all`` lists the batches that count; two are in key group 0, two in 1."""
OPTIONS: dict[str, Any] = {
    "key_groups": 2,
    "decide_deadline_s": 1.0,
    "apply_deadline_s": 1.0,
    "keep_versions": 1,
}


class Summing(ArrowBarrier):
    """A barrier that adds its number to the state that it read at its base version.

    It deletes the row of the batch before. No two processes write the same rows, nor the same keys.
    """

    process: Process
    coordinator: Coordinator
    number: str

    def stage(self, spec: StageSpec, base_version: int) -> Sequence[Ack]:
        table = self.coordinator.folded.tables.get("t")
        before = None
        if table is not None and "t" not in self.starts:
            at = self.coordinator.folded.decided_at_us
            before = self.coordinator.store.get(ReadAt("t", base_version, table.start, at_us=at), b"all")
        if self.rows:
            total = b" ".join(filter(None, [before, self.number.encode()]))
            own, length = f"{self.number} by {self.process.name}".encode(), len(total.split())
            odd = (length + (self.process.name in "bc")) % 2
            more = {KEYS[3]: own} if self.process.name == "a" else {}
            self.rows = {"t": {b"all": total, KEYS[1 + odd]: own, KEYS[2 - odd]: None, **more}}
        known = repr((spec, self.rows))
        acks = self.process.place.acks
        if known not in acks:  # the blobs are in the log: they are named by their content
            acks[known] = super().stage(spec, base_version)
        return acks[known]


def coordinator_of(process: Process, stores: int = 1, **options: Any) -> Coordinator:
    """Build a driver's coordinator in a process."""
    chosen = Options(**{**OPTIONS, **options})
    coordinator = Coordinator(
        process.endpoints(stores), process.log, process.stores[0], chosen, process.clock
    )
    coordinator.apply_on_executors = partial(_apply, coordinator)
    return coordinator


def _apply(coordinator: Coordinator, works: Sequence[apply.ApplyWork]) -> None:
    for work in works:
        apply.do(work, coordinator.log, coordinator.store)


def make(process: Process, coordinator: Coordinator, origin: Origin, number: str, **how: Any) -> None:
    """Commit one barrier; note that it is visible."""
    barrier = Summing(coordinator.log, {"t": {}}, origin, 2, parallelism=2, **how)
    barrier.clock = ProcessClock(process)
    barrier.process, barrier.coordinator, barrier.number = process, coordinator, number
    stage = process.log.stage

    def staged(segment: str, blobs: Any) -> list[str]:
        process.place.log.staged_us = coordinator.folded.decided_at_us + 1
        addresses = stage(segment, blobs)
        if segment.endswith("-manifest"):
            process.place.changes[addresses[0]] = Change(barrier.rows, barrier.starts, barrier.drops)
        return addresses

    coordinator.log.stage = staged  # type: ignore[method-assign]
    decided = commit(coordinator, barrier)
    process.notes.append(("made", (decided.version, decided.digest, origin)))


def driver(
    *batches: int, lineage: str = LINEAGE, stores: int = 1, follows: bool = True, **options: Any
) -> Program:
    """A query's driver: it opens, and runs these batches, each unless it was decided before.

    The second store ``follows`` after all of them, or not at all.
    """

    def run(process: Process) -> object:
        coordinator = coordinator_of(process, stores, **options)
        open_namespace(coordinator, lineage)
        process.notes.append(("opened", coordinator.last_decided))
        followers = _followers(coordinator, process) if follows else []
        for batch in batches:
            origin = BatchOrigin(lineage, coordinator.folded.generation, batch, f"offsets-{batch}")
            if (decided := replay_of(coordinator.folded, origin)) is None:
                make(process, coordinator, origin, f"{batch}{lineage.removeprefix(LINEAGE)}")
            else:
                process.notes.append(("made", (decided.version, decided.digest, decided.origin)))
        for follower in followers:
            follower.step()
        return coordinator.last_decided

    return run


def _followers(coordinator: Coordinator, process: Process) -> list[Follower]:
    also = coordinator.endpoints.also
    return [follower_for(coordinator, at, store) for at, store in zip(also, process.stores[1:], strict=False)]


def load(token: str, *, imports: bool = False, empties: bool = False) -> Program:
    """A load or an import, by a command of its own."""

    def run(process: Process) -> object:
        coordinator = coordinator_of(process)
        open_namespace(coordinator, None)
        origin = ImportOrigin(token) if imports else LoadOrigin(token)
        if once_key(origin) in coordinator.folded.once:
            return None
        make(process, coordinator, origin, token, starts=frozenset({"t"} if empties else ()))
        return coordinator.last_decided

    return run


def restores(version: int, *, reprocess: bool = False) -> Program:
    """`tidegate restore --to`."""

    def run(process: Process) -> object:
        coordinator = coordinator_of(process)
        plan = plan_restore(coordinator, version, reprocess=reprocess)
        result = restore(coordinator, plan)
        return result.visible

    return run


def adopts(lineage: str) -> Program:
    """`tidegate adopt`."""
    return lambda process: adopt(coordinator_of(process), lineage)


def adds_store(*batches: int) -> Program:
    """`tidegate store add`: the second store is listed, then filled; versions may be made meanwhile."""

    def run(process: Process) -> object:
        at, coordinator = StoreRef(NAMES[1], "memory://second"), coordinator_of(process)
        coordinator.decisions.catch_up()
        follower = add_store(coordinator, at, process.stores[1])
        for batch in batches:
            with contextlib.suppress(StoreUnavailableError):
                follower.step()
            make(process, coordinator, BatchOrigin(LINEAGE, 0, batch, f"offsets-{batch}"), str(batch))
        return follower.step()

    return run


def recovers(*, discard_lost: bool = False) -> Program:
    """`tidegate recover`, in every store that the log lists."""

    def run(process: Process) -> object:
        state = catch_up(View(), process.log).state
        coordinator = coordinator_of(process, max(1, len(state.stores) if state else 1))
        coordinator.request = OpenRequest(discard_lost=discard_lost)
        followers = _followers(coordinator, process)
        open_namespace(coordinator, None)
        for follower in followers:
            follower.step()
        return coordinator.last_decided

    return run


def retires(**options: Any) -> Program:
    """The retirement of a driver of any age: it never asks for the epoch."""

    def run(process: Process) -> object:
        state = catch_up(View(), process.log).state
        chosen = Options(**{**OPTIONS, **options})
        return retire_up_to(process.log, process.stores[0], state, chosen, lambda: False)

    return run


def trims(stores: int = 1) -> Program:
    """The trimming of a driver of any age: a Summary, then the cut."""

    def run(process: Process) -> object:
        view = catch_up(View(), process.log)
        options = Options(**{**OPTIONS, "wal_retain_s": 1e-7, "apply_deadline_s": 1e-8})
        others = dict(zip(NAMES[1:stores], process.stores[1:], strict=False))
        trimmer = Trimmer(process.log, process.stores[0], options, process.clock, others, NAMES[0])
        trimmer.trim(view, process.clock.now_us() + 10**12)
        return None

    return run


class _Keeper(LeaseKeeper):
    """A keeper without a thread: the program renews."""

    def _renew_later(self, active: Any) -> None:
        pass


class _Reader(Reader):
    keeper = _Keeper


def then(*programs: Program) -> Program:
    """Several programs in one process."""
    return lambda process: [program(process) for program in programs]


def reads(version: int | None = None, *, renews: bool = False, pinned: bool = False) -> Program:
    """A reader: a snapshot is read twice (I8), then the newest version (I9).

    ``pinned``: its lease has to hold.
    """

    def run(process: Process) -> object:
        identity = process.stores[0].identity()
        assert isinstance(identity, Identity)
        process.clock = ProcessClock(process, observes=True)
        reader = _Reader(process.stores[0], identity, process.clock)
        gate = Gate(reader)
        with contextlib.closing(gate.snapshot(version, lease_s=60.0)) as snapshot:
            for _ in range(2):
                try:
                    shown = snapshot.table("t").get(b"all")
                except SnapshotExpiredError as error:
                    if pinned:
                        raise AssertionError(f"I8: the lease does not hold: {error}") from error
                    raise
                assert snapshot._entry is not None
                content = process.place.contents[snapshot._entry.digest]
                expected = content["t"].get(b"all")
                assert shown == expected, (
                    f"I8: v{snapshot.version} is read as {shown!r}, it holds {expected!r}"
                )
                if renews:
                    reader.leases.renew_due()
        newest = gate.version()
        assert newest >= snapshot.version, f"I9: version {newest} after {snapshot.version}"
        return newest

    return run
