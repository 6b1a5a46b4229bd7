"""The sweep of power cuts: the disk after a cut at every moment of a driver, finished and checked.

    python -m crash.power.run                     everything
    python -m crash.power.run --every 40          every 40th case
    python -m crash.power.run --only zeros@137 --way recover --keep /tmp/case

A driver runs once, under strace, and all its changes of files are noted in order: those of the log, of
SQLite, and of the stand-in for Spark's checkpoint. Then, after each change, the folder is made as a power cut
there could leave it (``power_disk.LOSSES``). Each new state among these is checked, finished in one of the
ways of ``sweep.run``, which rotate, and checked again. Every acknowledgement that the driver gave before
the cut must still be true.

Spark does not sync its checkpoint's files. The checkpoint survives whole or not at all, alternately: less
than whole is Spark's own matter.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crash.power.disk import LOSSES, Disk, Op, put
from crash.power.trace import record
from crash.sweep.check import Left, SweepError, require
from crash.sweep.run import (
    BATCHES,
    WAYS,
    Place,
    Result,
    each,
    finish,
    follow,
    make_old,
    say,
    working_folder,
)

CHECKPOINT = "checkpoint"
ONLY = "python -m crash.power.run --only {case} --way {way}"


class Cut(NamedTuple):
    """A power cut after the n-th change, and the kind of its losses."""

    loss: str
    nth: int
    seed: int = 0
    """The seed of random losses."""

    def __str__(self) -> str:
        return f"{self.loss}@{self.nth}"

    @property
    def way(self) -> str:
        """The way to finish it, which rotates."""
        return WAYS[(self.nth + LOSSES.index(self.loss)) % len(WAYS)]

    @property
    def label(self) -> str:
        """The label under which cuts are counted together."""
        return self.loss

    @property
    def forgets(self) -> bool:
        """Whether Spark's checkpoint is lost, too."""
        return (self.nth // len(WAYS)) % 2 == 1


def trace(folder: Path, in_flight: int = 0) -> list[Op]:
    """Trace a driver's whole life in ``folder``; check that the disk's model agrees with the folder."""
    place = Place(folder, in_flight)
    folder.mkdir()
    ops = record([*place.arguments, "--batches", str(BATCHES)], folder)
    disk = Disk()
    for op in ops:
        disk.do(op)
    found = {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
        if not path.name.endswith("-shm")
    }
    if (modelled := disk.left("kept")) != found:
        wrong = sorted(
            path for path in found.keys() | modelled.keys() if found.get(path) != modelled.get(path)
        )
        raise SweepError(f"the trace does not explain these files: {wrong}")
    place.check_end(BATCHES, None)
    return ops


def cuts(ops: Sequence[Op], seed: int = 0) -> Iterator[Cut]:
    """Yield every cut that leaves a state that no earlier one left."""
    disk, told = Disk(), 0
    seen: set[bytes] = set()
    for nth, op in enumerate(ops, 1):
        disk.do(op)
        told += op.kind == "said"  # the same files are another case once more was promised
        for loss in LOSSES:
            digest = hashlib.blake2b(f"{told}".encode())
            for path, content in disk.left(loss, (seed, nth)).items():
                digest.update(f"\0{path}\0{len(content or b'')}\0".encode())
                digest.update(content or b"")
            if digest.digest() not in seen:
                seen.add(digest.digest())
                yield Cut(loss, nth, seed)


class Told(NamedTuple):
    """The acknowledgements of the driver before the cut."""

    opened: bool
    attempts: dict[int, str]

    @classmethod
    def before(cls, ops: Sequence[Op], cut: Cut) -> Told:
        text = b"".join(op.content for op in ops[: cut.nth] if op.kind == "said").decode()
        events: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
        committed = {one["version"]: one["attempt"] for one in events if one["event"] == "committed"}
        return cls(any(one["event"] == "opened" for one in events), committed)

    def check(self, left: Left, in_flight: int) -> None:
        """Check that every acknowledged version is there: I4, and I5 for the visible ones."""
        require("a power cut took the namespace", left.made or not self.opened, left)
        newest = max(self.attempts, default=0)
        require("I4: a power cut took a decision", left.decided >= newest, (left, self))
        require("I5: a power cut took a version", left.visible >= newest - in_flight, (left, self))
        for version, attempt in left.attempts.items():
            require("I4", attempt == self.attempts.get(version, attempt), (left, self))


def run(cut: Cut, way: str, ops: Sequence[Op], folder: Path, in_flight: int = 0) -> None:
    """Make the state that the cut leaves, check it, finish it in this way, check it again."""
    disk = Disk()
    for op in ops[: cut.nth]:
        disk.do(op)
    place = Place(folder, in_flight)
    folder.mkdir()
    tree = {
        path: content
        for path, content in disk.left(cut.loss, (cut.seed, cut.nth)).items()
        if not path.startswith(CHECKPOINT)
    }
    put(tree, folder)
    if not cut.forgets:
        kept = disk.left("kept").items()
        put({path: content for path, content in kept if path.startswith(CHECKPOINT)}, folder)
    make_old(folder)
    left = place.check()
    Told.before(ops, cut).check(left, in_flight)
    finish(cut, way, place, left)


def sweep(
    chosen: Sequence[Cut],
    ops: Sequence[Op],
    folder: Path,
    jobs: int = 2,
    way: str | None = None,
    *,
    keep: bool = False,
    in_flight: int = 0,
) -> Iterator[Result]:
    """Run cuts, ``jobs`` at a time, as ``sweep.run.each`` does."""

    def one(cut: Cut, own: Path) -> list[Result]:
        by = way or cut.way
        try:
            run(cut, by, ops, own / "place", in_flight)
        except Exception as error:  # noqa: BLE001 - whatever it is, the sweep goes on and says so
            return [Result(cut, by, f"{type(error).__name__}: {error}")]
        return [Result(cut, by, "")]

    return each(chosen, one, folder, jobs, keep=keep)


def main(argv: Sequence[str] | None = None) -> int:
    """Sweep; 0 when nothing was wrong. Progress and the table are written to standard output."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--every", type=int, default=1, metavar="K", help="only every K-th case")
    parser.add_argument("--only", metavar="LOSS@N", help="one case")
    parser.add_argument("--loss", choices=LOSSES, help="only what loses so")
    parser.add_argument("--seed", type=int, default=0, help="of what chance loses")
    parser.add_argument("--way", choices=WAYS, help="finish in this way only")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--in-flight", type=int, default=0, metavar="N", help="a driver that commits pipelined"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="run there, and leave everything behind")
    args = parser.parse_args(argv)
    with working_folder(args.keep) as folder:
        traced = Path(tempfile.mkdtemp(prefix="traced-", dir=folder))
        ops = trace(traced / "place", args.in_flight)
        if args.only:
            loss, _, nth = args.only.partition("@")
            chosen = [Cut(loss, int(nth), args.seed)]
        else:
            chosen = [cut for cut in cuts(ops, args.seed) if args.loss in (None, cut.loss)][:: args.every]
        say(f"{len(ops)} changes, {len(chosen)} cases")
        kept, in_flight = args.keep is not None, args.in_flight
        found = sweep(chosen, ops, folder, args.jobs, args.way, keep=kept, in_flight=in_flight)
        again = f"{ONLY} --seed {args.seed} --in-flight {in_flight}"
        return follow(found, f"{len(chosen)} power cuts", again)


if __name__ == "__main__":
    sys.exit(main())
