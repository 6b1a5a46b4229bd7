"""A fault that another process does to the store: its begin, its end, and the exit codes it then allows."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tidegate.base.decoders import json_decoder
from tidegate.errors import ConfigError, StoreNotVerifiedError, StoreUnavailableError, WalGapError
from tidegate.torture.cell import jobs
from tidegate.torture.cell.expectations import Seen, wiped
from tidegate.torture.driver import redis_faults
from tidegate.torture.driver.faults import EVICTIONS
from tidegate.torture.driver.redis_faults import COPY, COPY_VERSION
from tidegate.torture.outcome import Finding

if TYPE_CHECKING:
    from tidegate.testing.process.forked import Forked

REFUSED, GONE = StoreNotVerifiedError.exit_code, WalGapError.exit_code
NO_FIT = ConfigError.exit_code
REFUSED_ROWS = REFUSED, GONE, StoreUnavailableError.exit_code
"""Exit codes of drivers that need rows which are gone; the last one: they cannot fill a second store."""
REPAIR = "repair"
PUT_BACK_S = 30.0


class Run(Protocol):
    """The parts of a cell that a fault uses."""

    work: Path
    folder: Path
    where_json: str
    findings: list[Finding]

    def start(self, work: Callable[..., int | None], plan: str, name: str, *more: str) -> Forked: ...
    def until(self, process: Forked, true: Callable[[], bool], problem: str) -> None: ...
    def until_it_ends(self, process: Forked, number: int) -> None: ...
    def must_end(self, process: Forked, *codes: int) -> None: ...
    def could_be_done(self, process: Forked, fault: str) -> None: ...
    def look(self) -> Seen: ...


class Outside:
    """The fault of one cell.

    ``refusals``: exit codes by which its drivers may end now. ``lost``: rows are gone, and nobody has put
    them back.
    """

    def __init__(self, run: Run, fault: str, seed: str) -> None:
        self.refusals: tuple[int, ...] = ()
        self.lost = False
        self._run, self._fault, self._seed = run, fault, seed
        self._name = f"fault-{fault}"
        self._process: Forked | None = None

    def begin(self) -> None:
        """Start the fault.

        On return rows are gone, or the first slot is on the move, the first replica attached.
        """
        run, plan, folder = self._run, self._run.where_json, str(self._run.folder)
        if self._fault in EVICTIONS:
            how = folder, self._name, self._fault, self._seed
            self._process = run.start(redis_faults.evict, plan, self._name, *how)
            self._must_be_done()
            self.refusals, self.lost = REFUSED_ROWS, True
            return
        marker = run.work / "begun"
        work = redis_faults.move_slots if self._fault == "reshard" else redis_faults.change_replicas
        self._process = run.start(work, plan, self._name, folder, self._name, self._seed, str(marker))
        run.until(self._process, marker.exists, "did not begin")
        self.refusals = (REFUSED,)

    def end(self) -> None:
        """Restore the topology, and repair the destroyed rows.

        `tidegate repair` puts back what the fault destroyed, or refuses when the log does not reach back to
        it. It removes nothing that it cannot put back. With ``--from`` a copy of a version that is still
        readable it puts back everything.
        """
        run = self._run
        if self._fault not in EVICTIONS:
            assert self._process is not None
            run.until_it_ends(self._process, signal.SIGTERM)
            self._must_be_done()
        before = self._keys("before")
        repair = run.start(jobs.repair, run.where_json, REPAIR, str(run.folder), REPAIR)
        for_good = self._fault == "evict-base"
        self.refusals = ()
        run.must_end(repair, GONE if for_good else 0)
        run.findings += wiped(before, self._keys("after"))
        if for_good:
            self._put_back_from_a_copy()
        else:
            self.lost = False

    def _put_back_from_a_copy(self) -> None:
        run = self._run
        version, name = int((run.folder / COPY_VERSION).read_text()), f"{REPAIR}-from"
        horizon = run.look().horizon
        args = str(run.folder), name, "--from", str(run.folder / COPY)
        repair = run.start(jobs.repair, run.where_json, name, *args)
        run.must_end(repair, 0 if horizon <= version else NO_FIT)
        self.lost = horizon > version
        self.refusals = REFUSED_ROWS if self.lost else ()

    def stop(self) -> None:
        """Restore the topology, however the cell ends."""
        if self._process is not None and not self._process.wait(0):
            self._process.send(signal.SIGTERM)
            self._process.wait(PUT_BACK_S)

    def _must_be_done(self) -> None:
        assert self._process is not None
        self._run.could_be_done(self._process, self._fault)

    def _keys(self, when: str) -> set[str]:
        """Return the keys of the namespace that hold rows."""
        result: Path = self._run.work / f"keys-{when}.json"
        self._run.must_end(self._run.start(jobs.keys, self._run.where_json, f"keys-{when}", str(result)), 0)
        return set(json_decoder(list[str]).decode(result.read_bytes()))
