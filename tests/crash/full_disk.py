"""Drivers one after the other, each with little space for files, and checks after each of them.

    python tests/crash/full_disk.py FOLDER disk 0 4000 100000      # FOLDER/small is a small file system
    python tests/crash/full_disk.py FOLDER limit 100 4000 100000   # no file may be longer

Prints a JSON list: the exit code of each driver, 0 for one that had enough space. A wrong state after one of
them, or at the end with space for all, raises an exception.
"""

import contextlib
import json
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from crash.sweep.place import KEY_GROUPS, ROWS, SEED, Place
from support import driver_process
from tidegate.testing.process.forked import WithoutPandas

sys.meta_path.insert(0, WithoutPandas())


@contextlib.contextmanager
def filled_up_to(folder: Path, room: int) -> Iterator[None]:
    """Fill the file system with one file, except ``room`` bytes."""
    ballast = folder / "ballast"
    try:
        free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(free - room, 1))
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def files_up_to(limit: int) -> Iterator[None]:
    """Let no file of this process grow beyond ``limit``: EFBIG, after a part of the write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def drive(place: Place, batches: int, deadline_s: float) -> int:
    """Run a driver in this process, up to ``batches`` batches; return its exit code."""
    argv = ["--wal", place.wal, "--store", place.store, "--checkpoint", str(place.checkpoint)]
    argv += ["--batches", str(batches), "--seed", str(SEED), "--rows", str(ROWS)]
    argv += ["--key-groups", str(KEY_GROUPS), "--summary-every", "1", "--wal-retain", "0.001"]
    return driver_process.main([*argv, "--deadline", str(deadline_s)])


def main(folder: Path, how: str, rooms: list[int]) -> list[int]:
    small = folder / "small"
    place = Place(folder, f"file://{small}/wal", store=f"sqlite://{small}/store")
    codes = []
    for life, room in enumerate(rooms, 1):
        with filled_up_to(small, room) if how == "disk" else files_up_to(room):
            codes.append(drive(place, life, 0.3))
        visible, decided = place.check()
        assert decided - visible in (0, 1), (room, visible, decided)
    assert drive(place, len(rooms), 20.0) == 0
    assert place.check() == (len(rooms), len(rooms))
    place.check_all_of_it()
    return codes


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main(Path(sys.argv[1]), sys.argv[2], [int(room) for room in sys.argv[3:]])
    print(json.dumps(result))
