"""The simulation: production's open, commit and recover, under every fault, from one seed.

    python -m simulation.run --schedules 1000000 --seed 1 --workers 2
    python -m simulation.run --schedules 1000000 --workers 2 --record run.jsonl --minutes 60
    python -m simulation.run --schedules 10000 --coverage
    python -m simulation.run --seed 1 --only 77 --shrink

One schedule is a Spark query of a few batches, its drivers (some of them paused and woken later), its tasks
(some run twice, or continue after their driver died) and readers. Every call of log and store may be refused,
take effect and lose its reply, arrive late or twice, or kill its caller. ``invariants.py`` checks the
invariants at each effect, ``plays/actors.py`` what errors prove, ``schedule.py`` that at the end a fresh
driver makes every decided version visible.

With ``--record`` the counts of played schedules are kept. A run that was interrupted, or ended by
``--minutes``, continues when it is started again: the sum of the file is one run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import logging
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from simulation.coverage import Tally, counted
from simulation.invariants import Violation
from simulation.plays.decode_cache import remembered
from simulation.plays.world import World
from simulation.progress import shown
from simulation.recording import Line, Record, left, line_of
from simulation.schedule import dice, play
from simulation.shrinking import shrunk

CHUNK = 250


def run_schedule(seed: int, index: int, tally: Tally, folder: Path | None = None) -> None:
    """Play one schedule; errors as ``play``."""
    play(seed, index, tally, World(dice(seed, index)), folder=folder)


def run_schedules(seed: int, indexes: Sequence[int], folder: Path | None = None) -> Tally:
    """Play these schedules, one after the other. Violation: the first that breaks an invariant."""
    tally = Tally()
    with counted(tally), remembered():
        for index in indexes:
            try:
                run_schedule(seed, index, tally, folder)
            except Violation as violation:
                violation.index = index
                raise
    return tally


def main(argv: Sequence[str] | None = None) -> int:
    """Run schedules, print progress and the summary; 1: an invariant broke, 2: the record does not fit."""
    args = _parser().parse_args(argv)
    numbers = range(args.schedules) if args.only is None else range(args.only, args.only + 1)
    record = None if args.record is None else Record(args.record)
    try:
        lines = [line for line in record.lines() if line.seed == args.seed] if record else []
    except ValueError as error:
        say(str(error))
        return 2
    total = Tally()
    for line in lines:
        total.add(line.tally())
    chunks = left(numbers, [line.indexes for line in lines], CHUNK)
    try:
        with shown(total.schedules, sum(map(len, chunks))) as progress:
            for line in _played(args, chunks):
                if record:
                    record.add(line)
                total.add(line.tally())
                progress(total)
    except Violation as violation:
        say(str(violation))
        if args.shrink and violation.index is not None and args.folder is None:
            with quiet():
                say(shrunk(args.seed, violation.index))
        return 1
    say(total.report())
    if args.coverage:
        say(total.coverage())
        return 1 if total.missed() else 0
    return 0


def _played(args: argparse.Namespace, chunks: Sequence[range]) -> Iterator[Line]:
    """Yield each chunk as the workers complete it; none begins after ``--minutes``.

    Violation: as ``run_schedules``.
    """
    end = time.monotonic() + args.minutes * 60
    waiting, running = iter(chunks), set[concurrent.futures.Future[Line]]()
    with concurrent.futures.ProcessPoolExecutor(args.workers) as pool:
        try:
            while True:
                while len(running) <= args.workers and time.monotonic() < end:
                    chunk = next(waiting, None)
                    if chunk is None:
                        break
                    running.add(pool.submit(played, args.seed, chunk, args.folder))
                if not running:
                    return
                done, running = concurrent.futures.wait(running, return_when="FIRST_COMPLETED")
                for each in done:
                    yield each.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def played(seed: int, chunk: range, folder: Path | None) -> Line:
    """Play a chunk. A chunk of one schedule also shows what its drivers log."""
    before = time.process_time()
    with contextlib.nullcontext() if len(chunk) == 1 else quiet():
        tally = run_schedules(seed, chunk, folder)
    return line_of(seed, chunk, tally, time.process_time() - before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the logging of drivers, which meet faults in nearly every schedule."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schedules", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", type=int, help="one schedule, by its number")
    parser.add_argument("--folder", type=Path, help="use the embedded log and store, in files here")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no more after so long")
    parser.add_argument("--record", type=Path, help="a file of what was played; a run that has one goes on")
    parser.add_argument("--shrink", action="store_true", help="make a failing schedule short, and tell it")
    parser.add_argument(
        "--coverage",
        action="store_true",
        help="tell which transitions and failpoints were reached; 1 when one was not and could have been",
    )
    return parser


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
