"""The crash sweep: kill a driver at every I/O it does, finish in every way, check every invariant.

    python -m crash.sweep.run                    everything
    python -m crash.sweep.run --every 40         every 40th case
    python -m crash.sweep.run --only torn@137 --way recover --keep /tmp/case

Pass one runs a driver (``io_crash``) to its end and counts its I/O. Pass two kills a new driver at the n-th:
before it, after it, and in the middle of it where half of it can be done. The remains are checked, copied,
and finished in each of these ways, and checked again:

    ``restart``   the same process again
    ``second``    another driver, whose Spark forgot which batches are committed (T9)
    ``recover``   ``tidegate recover``, which must make visible what was decided; then a restart
    ``again``     a restart that is killed too, somewhere, before a second one

The durable state does not change between two points, so the state after I/O n (``after@n``) equals the state
before the next (``before@n+1``). It is finished in one way only, which rotates.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from crash.sweep import io_crash
from crash.sweep.check import Left, SweepError, check, check_end
from crash.sweep.io_crash import Point
from crash.sweep.process import COMMAND, Process
from tidegate.errors import StoreNotVerifiedError

WAYS = ("restart", "second", "recover", "again")
BATCHES, SEED, ROWS = 5, 3, 12
WORKLOAD = (
    *("--seed", str(SEED), "--rows", str(ROWS), "--key-groups", "4", "--frame-bytes", "400"),
    # Small enough that retirement, Summaries and trimming run during the workload.
    *("--keep-versions", "2", "--summary-every", "2", "--wal-retain", "0.001"),
)
NAMESPACE = "crash"
ONLY = "python -m crash.sweep.run --only {case} --way {way}"


class Case(NamedTuple):
    """A point to die at, and how."""

    mode: str
    nth: int
    point: Point

    def __str__(self) -> str:
        return f"{self.mode}@{self.nth}"

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways to finish it."""
        return (WAYS[self.nth % len(WAYS)],) if self.mode == "after" else WAYS

    @property
    def label(self) -> str:
        """The label under which cases are counted together."""
        return f"{self.point.kind}, {self.mode}"


# -- a place ---------------------------------------------------------------------------------------


class Place:
    """A folder with a log, a store and a stand-in for Spark's checkpoint.

    With ``in_flight`` its drivers commit pipelined, with at most this number of versions in flight.
    """

    def __init__(self, folder: Path, in_flight: int = 0) -> None:
        self.folder, self.in_flight = folder, in_flight
        self.wal, self.store = f"file://{folder}/wal", f"sqlite://{folder}/store"
        self.checkpoint = folder / "checkpoint"

    @property
    def arguments(self) -> list[str]:
        """A driver's arguments, except for the number of batches."""
        places = ["--wal", self.wal, "--store", self.store, "--checkpoint", str(self.checkpoint)]
        return [*places, *WORKLOAD, "--in-flight", str(self.in_flight)]

    def drive(self, specification: str, batches: int, codes: tuple[int, ...] = (0,)) -> list[Point]:
        """Run a driver to its end; return its points if it got there."""
        argv = [*self.arguments, "--batches", str(batches)]
        told = self._run(specification, argv, codes)
        events = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
        listed: list[Any] = next((event["points"] for event in events if event["event"] == "io"), [])
        return [Point(*point) for point in listed]

    def command(self, name: str, *more: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command of ``tidegate``; return its output."""
        argv = [name, "--wal", self.wal, "--store", self.store, "--namespace", NAMESPACE, *more]
        return self._run(COMMAND, argv, codes)

    def _run(self, specification: str, argv: Sequence[str], codes: tuple[int, ...]) -> str:
        return Process(specification, argv, self.folder / "output").told(codes)

    def go_on(self, batches: int) -> None:
        """Run a driver to its end, without a kill."""
        self.drive("old", batches)

    def die_again(self, case: object, batches: int) -> None:
        """Run a driver that dies somewhere, or comes to its end before that."""
        nth = random.Random(f"{case}").randrange(1, 150)
        self.drive(f"before@{nth},old", batches, codes=(-signal.SIGKILL, 0))

    def copy(self, folder: Path) -> Place:
        """Copy the state into another folder."""
        shutil.copytree(self.folder, folder)
        return Place(folder, self.in_flight)

    def check(self) -> Left:
        """Check a copy.

        The first process that opens SQLite's files recovers them and empties their logs.
        """
        beside = self.folder.with_name(f"{self.folder.name}-read")
        copied = self.copy(beside)
        try:
            return check(copied.wal, copied.store, in_flight=max(self.in_flight, 1))
        finally:
            shutil.rmtree(beside)

    def check_end(self, versions: int, left: Left | None) -> None:
        """Run the checks after the last batch; the files may be recovered now."""
        check_end(self.wal, self.store, versions, left)


def count(folder: Path, in_flight: int = 0) -> list[Point]:
    """Run pass one: list every I/O of a driver that is left alone."""
    place = Place(folder, in_flight)
    folder.mkdir()
    points = place.drive("count,old", BATCHES)
    place.check_end(BATCHES, None)
    if not {"sql write", "sql commit"} <= {point.kind for point in points}:
        raise SweepError("no I/O of SQLite was counted: its connections are not those of io_crash.py")
    return points


# -- pass two ---------------------------------------------------------------------------------------


def crash(case: Case, folder: Path, in_flight: int = 0) -> tuple[Place, Left]:
    """Run a driver until it dies there; return its remains, checked."""
    place = Place(folder, in_flight)
    folder.mkdir()
    place.drive(f"{case},old", BATCHES, codes=(-signal.SIGKILL,))
    make_old(folder)
    return place, place.check()


def make_old(folder: Path) -> None:
    """Make a place's segments, also orphans, look as if they had been staged long ago."""
    for path in folder.glob("wal/*/changelog/*.seg"):
        os.utime(path, (1, 1))


def finish(case: object, way: str, place: Place, left: Left) -> None:
    """Finish the work of a dead driver, in this way, with one batch more; check it."""
    match way:
        case "second":
            shutil.rmtree(place.checkpoint / "commits", ignore_errors=True)
        case "recover":
            # Without a namespace there is nothing to recover, and the command reports that.
            place.command("recover", "--force", codes=(0,) if left.made else (2,))
            now = place.check()
            if now.visible != left.decided or now.decided != left.decided:
                raise SweepError(f"I4: {left} became {now} by `tidegate recover`")
        case "again":
            place.die_again(case, BATCHES + 1)
            # A store that shows nothing of two versions is rebuilt, and readers are refused until then.
            rebuilds = left.visible == 0 and left.decided > 1
            with contextlib.suppress(*[StoreNotVerifiedError] * rebuilds):
                place.check()
    place.go_on(BATCHES + 1)
    place.check_end(BATCHES + 1, left)


def run_case(case: Case, ways: Sequence[str], folder: Path, in_flight: int = 0) -> list[tuple[str, str]]:
    """Run one case in these ways; return by way what was wrong ('' for nothing)."""
    wrong: list[tuple[str, str]] = []
    try:
        place, left = crash(case, folder / "crashed", in_flight)
    except Exception as error:  # noqa: BLE001 - whatever it is, the sweep goes on and says so
        return [(way, f"{type(error).__name__}: {error}") for way in ways]
    for way in ways:
        try:
            finish(case, way, place.copy(folder / way), left)
        except Exception as error:  # noqa: BLE001
            wrong.append((way, f"{type(error).__name__}: {error}"))
        else:
            wrong.append((way, ""))
    return wrong


def cases(points: Sequence[Point]) -> Iterator[Case]:
    """Yield every point to die at, in the order of the driver's I/O."""
    for nth, point in enumerate(points, 1):
        for mode in io_crash.MODES:
            if mode != "torn" or point.torn:
                yield Case(mode, nth, point)


class Labelled(Protocol):
    """A case of a sweep."""

    @property
    def label(self) -> str:
        """The label under which cases are counted together."""


AnyCase = TypeVar("AnyCase", bound=Labelled)


class Result(NamedTuple):
    """The result of a case, finished in one way; ``reached``: the driver did die there."""

    case: Labelled
    way: str
    wrong: str
    reached: bool = True


def sweep(
    chosen: Sequence[Case],
    folder: Path,
    jobs: int = 2,
    way: str | None = None,
    *,
    keep: bool = False,
    in_flight: int = 0,
) -> Iterator[Result]:
    """Run cases, ``jobs`` at a time, as ``each`` does."""

    def one(case: Case, own: Path) -> list[Result]:
        ways = case.ways if way is None else (way,)
        return [Result(case, *done) for done in run_case(case, ways, own, in_flight)]

    return each(chosen, one, folder, jobs, keep=keep)


def each(
    chosen: Sequence[AnyCase],
    one: Callable[[AnyCase, Path], list[Result]],
    folder: Path,
    jobs: int,
    *,
    keep: bool,
) -> Iterator[Result]:
    """Do ``one`` for each case, ``jobs`` at a time, each in a folder of its own that is removed then."""

    def alone(case: AnyCase) -> list[Result]:
        own = Path(tempfile.mkdtemp(prefix=f"{case}-", dir=folder))
        try:
            return one(case, own)
        finally:
            if not keep:
                shutil.rmtree(own)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for results in pool.map(alone, chosen):
            yield from results


# -- the command ------------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> str:
    """Format kind of I/O x way of finishing: the number of cases, and of wrong ones among them."""
    labels = sorted({result.case.label for result in results})
    wide = max([20, *(len(label) + 2 for label in labels)])
    done: Counter[tuple[str, str]] = Counter()
    wrong: Counter[tuple[str, str]] = Counter()
    for result in results:
        at = result.case.label, result.way
        done[at] += 1
        wrong[at] += bool(result.wrong)
    lines = [" " * wide + "".join(f"{way:>12}" for way in WAYS)]
    for label in labels:
        cells = (f"{done[label, way]}" + f" ({wrong[label, way]})" * bool(wrong[label, way]) for way in WAYS)
        lines.append(f"{label:{wide}}" + "".join(f"{cell:>12}" for cell in cells))
    total = (str(sum(n for (_, one), n in done.items() if one == way)) for way in WAYS)
    lines.append(f"{'all':{wide}}" + "".join(f"{cell:>12}" for cell in total))
    return "\n".join(lines)


def histogram(points: Sequence[Point]) -> str:
    """Format the number of I/Os by kind, for each step of the protocol."""
    kinds = sorted({point.kind for point in points})
    steps = list(dict.fromkeys(point.step for point in points))
    counts = Counter((point.step, point.kind) for point in points)
    lines = [f"{'':12}" + "".join(f"{kind:>12}" for kind in kinds) + f"{'all':>8}"]
    for step in steps:
        cells = "".join(f"{counts[step, kind] or '':>12}" for kind in kinds)
        lines.append(f"{step:12}{cells}{sum(counts[step, kind] for kind in kinds):>8}")
    cells = "".join(f"{sum(counts[step, kind] for step in steps):>12}" for kind in kinds)
    return "\n".join([*lines, f"{'all':12}{cells}{len(points):>8}"])


@contextlib.contextmanager
def working_folder(given: Path | None = None) -> Iterator[Path]:
    """Yield a folder for the cases. SIGKILL loses no written data, so a folder in memory is enough."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
    else:
        memory = Path("/dev/shm")
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
            yield Path(name)


def main(argv: Sequence[str] | None = None) -> int:
    """Sweep; 0 when nothing was wrong. Progress and the tables are written to standard output."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--from", dest="first", type=int, default=1, metavar="N", help="go on at the N-th I/O"
    )
    parser.add_argument("--to", type=int, metavar="N", help="stop after the N-th I/O")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="only every K-th case")
    parser.add_argument("--only", metavar="MODE@N", help="one case")
    parser.add_argument("--way", choices=WAYS, help="finish in this way only")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--in-flight", type=int, default=0, metavar="N", help="drivers that commit pipelined")
    parser.add_argument("--count", action="store_true", help="only count")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="run there, and leave everything behind")
    args = parser.parse_args(argv)
    with working_folder(args.keep) as folder:
        counted = Path(tempfile.mkdtemp(prefix="count-", dir=folder))
        points = count(counted / "place", args.in_flight)
        say(histogram(points))
        if args.count:
            return 0
        chosen = [case for case in cases(points) if args.only in (None, str(case))]
        chosen = [case for case in chosen if args.first <= case.nth <= (args.to or len(points))]
        chosen = list(itertools.islice(chosen, 0, None, args.every))
        say(f"{len(points)} I/Os, {len(chosen)} cases")
        kept, in_flight = args.keep is not None, args.in_flight
        found = sweep(chosen, folder, args.jobs, args.way, keep=kept, in_flight=in_flight)
        again = f"{ONLY} --in-flight {in_flight}" if in_flight else ONLY
        return follow(found, f"{len(chosen)} crashes", again)


def follow(found: Iterable[Result], what: str, only: str) -> int:
    """Print results as they come and at the end; return 0 when nothing was wrong."""
    results: list[Result] = []
    started, last = time.monotonic(), 0.0
    for result in found:
        results.append(result)
        if result.wrong:
            say(f"WRONG {result.case} {result.way} {result.case.label}\n  {result.wrong}")
            say(f"  again: {only.format(case=result.case, way=result.way)}")
        seconds = time.monotonic() - started
        if seconds - last > 10:
            last = seconds
            say(f"at {result.case}: {len(results)} finished, {seconds:.0f} s")
    say(table(results))
    wrong = sum(bool(result.wrong) for result in results)
    missed = sum(not result.reached for result in results)
    not_reached = f", {missed} of them not reached" if missed else ""
    say(f"{what}{not_reached}, {len(results)} finished, {wrong} wrong, {time.monotonic() - started:.0f} s")
    return 1 if wrong or not results else 0


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
