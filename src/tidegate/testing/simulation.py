"""The simulation: production's open, commit and recover, under every fault, from one seed.

    python -m tidegate.testing.simulation --schedules 1000000 --seed 1 --workers 2
    python -m tidegate.testing.simulation --schedules 10000 --coverage
    python -m tidegate.testing.simulation --seed 1 --only 77 --shrink

One schedule is a Spark query of a few batches, its drivers (some of them paused and woken
later), their tasks (some of them run twice, or on after their driver died) and readers. Every
call of log and store may be refused, take effect and lose its reply, arrive late or twice, or
kill its caller. ``history.py`` checks the invariants at each effect, ``scenario.py`` what errors
prove, ``schedule.py`` that at the end a fresh driver makes everything that was decided visible.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tidegate.testing.history import Violation
from tidegate.testing.schedule import dice, play
from tidegate.testing.shrinking import shrunk
from tidegate.testing.tally import Tally, counted
from tidegate.testing.world import World

CHUNK = 250


def run_schedule(seed: int, index: int, tally: Tally, folder: Path | None = None) -> None:
    """One schedule; errors as ``play``."""
    play(seed, index, tally, World(dice(seed, index)), folder=folder)


def run_schedules(seed: int, indexes: Sequence[int], folder: Path | None = None) -> Tally:
    """These schedules, one after the other. Violation: the first that breaks an invariant."""
    tally = Tally()
    with counted(tally):
        for index in indexes:
            try:
                run_schedule(seed, index, tally, folder)
            except Violation as violation:
                violation.index = index
                raise
    return tally


def main(argv: Sequence[str] | None = None) -> int:
    """Run schedules, print progress and the summary; 1 when an invariant broke."""
    args = _parser().parse_args(argv)
    numbers = range(args.schedules) if args.only is None else [args.only]
    chunks = [numbers[at : at + CHUNK] for at in range(0, len(numbers), CHUNK)]
    total, started = Tally(), time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(args.workers) as pool:
        running = [pool.submit(run_schedules, args.seed, chunk, args.folder) for chunk in chunks]
        try:
            for done in concurrent.futures.as_completed(running):
                total.add(done.result())
                seconds = time.monotonic() - started
                say(f"{total.schedules:,} schedules in {seconds:.0f} s, {total.versions:,} versions")
        except Violation as violation:
            pool.shutdown(wait=False, cancel_futures=True)
            say(str(violation))
            if args.shrink and violation.index is not None and args.folder is None:
                say(_short(args.seed, violation.index))
            return 1
    say(total.report())
    if args.coverage:
        say(total.coverage())
        return 1 if total.missed() else 0
    return 0


def _short(seed: int, index: int) -> str:
    """The schedule made short, without what thousands of tries log."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        return shrunk(seed, index)
    finally:
        logging.disable(before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schedules", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", type=int, help="one schedule, by its number")
    parser.add_argument("--folder", type=Path, help="use the embedded log and store, in files here")
    parser.add_argument("--shrink", action="store_true", help="make a failing schedule short, and tell it")
    parser.add_argument(
        "--coverage",
        action="store_true",
        help="tell which transitions and failpoints were reached; 1 when one was not and could have been",
    )
    return parser


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command's output


if __name__ == "__main__":
    sys.exit(main())
