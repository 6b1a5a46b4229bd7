"""The spillable buffer beside plain files, and five times over its budget beside all in memory.

    tools/run python benchmarks/bench_buffer.py --dir /data

First the same bytes are written, read and moved by the buffer and as plain files of the same file
systems, unit by unit in turn; each figure is that of the fastest unit, with the ratio of the two (above 1:
the buffer is faster). "View" is the first look at a segment in a process, with its checksum, and a sum over
all bytes; "again" is without the checksum. A plain read ends in the process's memory and is summed too.

Then two processes of their own do the same batches over the same units: each batch reads some units,
writes some anew, and balances. One has room for all in memory, the other for a fifth. Printed are the
ratio of their times, and the peaks of the memory tier and of the process above its start, over the budget.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tidegate.base.local_dir import LocalDir
from tidegate.sinks.cache.buffer.balance import balance
from tidegate.sinks.cache.buffer.buffer import Buffer
from tidegate.sinks.cache.buffer.limits import BufferLimits
from tidegate.sinks.cache.buffer.note import Tier

MIB = 1024 * 1024
SHM = "/dev/shm"  # noqa: S108 - mkdtemp makes a folder of our own in it
UNITS, UNIT_BYTES = 64, 4 * MIB
OVER = 5
BATCHES, READ_PER_BATCH, WRITTEN_PER_BATCH = 40, 12, 4


def resident_bytes() -> int:
    """Return this process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@contextmanager
def opened(disk: str, memory_bytes: int) -> Iterator[Buffer]:
    """A buffer over folders of its own on the memory file system and on the disk."""
    places = [tempfile.mkdtemp(prefix="tidegate-bench-", dir=where) for where in (SHM, disk)]
    memory, one = (LocalDir(place, "bench", "u1") for place in places)
    try:
        yield Buffer(memory, [one], BufferLimits(memory_bytes, 4 * UNITS * UNIT_BYTES))
    finally:
        for local, place in ((memory, places[0]), (one, places[1])):
            local.close()
            shutil.rmtree(place)


def total(content: Any) -> int:
    """Looks at every byte."""
    return int(np.frombuffer(content, np.int64).sum())


def content_of(unit: int) -> bytes:
    return np.random.default_rng(unit).bytes(UNIT_BYTES)


def fill(buffer: Buffer, unit: int, content: bytes, tier: Tier | None = None) -> None:
    with buffer.claim(str(unit)) as held:
        assert held is not None
        segment = held.write([content], tier)
        assert segment is not None
        assert held.keep([segment], b"", groups=range(unit, unit + 1))


def move(buffer: Buffer, unit: int, tier: Tier) -> None:
    with buffer.claim(str(unit)) as held:
        assert held is not None
        assert held.move(tier)


def look(buffer: Buffer, unit: int) -> int:
    seen = buffer.look(str(unit))
    assert seen is not None
    return total(seen.views[0])


# -- beside plain files -----------------------------------------------------------------------------


Times = dict[str, list[tuple[float, float]]]
"""Per figure: seconds of the buffer and of plain files, per unit."""


def seconds(do: Callable[[int], object], unit: int) -> float:
    started = time.perf_counter()
    do(unit)
    return time.perf_counter() - started


def one_tier(
    buffer: Buffer, tier: Tier, places: dict[Tier, Path], contents: list[bytes], found: Times
) -> None:
    """Write, read and move every unit in both ways, one after the other."""
    other: Tier = "disk" if tier == "memory" else "memory"

    def file(unit: int, where: Tier = tier) -> Path:
        return places[where] / str(unit)

    def both(what: str, ours: Callable[[int], object], plain: Callable[[int], object]) -> None:
        for unit in range(len(contents)):
            times = {do: seconds(do, unit) for do in ((ours, plain) if unit % 2 else (plain, ours))}
            found.setdefault(what, []).append((times[ours], times[plain]))

    both(
        f"write {tier}",
        lambda unit: fill(buffer, unit, contents[unit], tier),
        lambda unit: file(unit).write_bytes(contents[unit]),
    )
    for what in (f"view {tier}", f"again {tier}"):
        both(what, lambda unit: look(buffer, unit), lambda unit: total(file(unit).read_bytes()))
    both(
        "spill" if other == "disk" else "load",
        lambda unit: move(buffer, unit, other),
        lambda unit: shutil.move(file(unit), file(unit, other)),
    )


def beside_plain_files(disk: str) -> None:
    contents = [content_of(unit) for unit in range(UNITS)]
    found: Times = {}
    tiers: tuple[Tier, Tier] = ("memory", "disk")
    for tier in tiers:
        with (
            tempfile.TemporaryDirectory(dir=SHM) as shm,
            tempfile.TemporaryDirectory(dir=disk) as folder,
            opened(disk, 2 * UNITS * UNIT_BYTES) as buffer,
        ):
            one_tier(buffer, tier, {"memory": Path(shm), "disk": Path(folder)}, contents, found)
    print(f"{UNITS} units of {UNIT_BYTES // MIB} MiB, the fastest of them")
    print(f"{'':<14} {'buffer MiB/s':>13} {'plain MiB/s':>12} {'ratio':>6}")
    for what, times in found.items():
        ours, plain = (min(column) for column in zip(*times, strict=True))
        size = UNIT_BYTES / MIB
        print(f"{what:<14} {size / ours:>13,.0f} {size / plain:>12,.0f} {plain / ours:>6.2f}")


# -- over the budget --------------------------------------------------------------------------------


def peak_bytes() -> int:
    """The most that was resident of this program; ru_maxrss would count its parent, too."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def work(disk: str, memory_bytes: int) -> None:
    """The batches, in this process; prints what they took."""
    spare = content_of(0)
    before = resident_bytes()
    with opened(disk, memory_bytes) as buffer:
        for unit in range(UNITS):
            fill(buffer, unit, spare)
            if unit % WRITTEN_PER_BATCH == 0:
                balance(buffer, batch=1)
        tier_peak, spilled = 0, 0
        chance = np.random.default_rng(1)
        weights = 1 / np.arange(1, UNITS + 1)  # zipf
        started = time.perf_counter()
        for batch in range(2, BATCHES + 2):
            read = chance.choice(UNITS, READ_PER_BATCH, p=weights / weights.sum())
            for unit in read.tolist():
                look(buffer, unit)
            for unit in chance.choice(UNITS, WRITTEN_PER_BATCH, p=weights / weights.sum()).tolist():
                fill(buffer, unit, spare)
            tier_peak = max(tier_peak, buffer.used_bytes("memory"))
            buffer.rates.add(np.bincount(read, minlength=UNITS), batch, 0.3)
            spilled += balance(buffer, batch=batch).spilled
        took = time.perf_counter() - started
        disk_bytes = buffer.used_bytes("disk")
    figures = {"seconds": took, "tier": tier_peak, "process": peak_bytes() - before}
    print(json.dumps(figures | {"spilled": spilled, "disk": disk_bytes}))


def over_the_budget(disk: str, rounds: int) -> None:
    whole = UNITS * UNIT_BYTES
    best: dict[int, dict[str, float]] = {}
    for _ in range(rounds):
        for budget in (2 * whole, whole // OVER):
            command = [sys.executable, __file__, "--dir", disk, "--work", str(budget)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
            found = json.loads(done.stdout)
            if budget not in best or found["seconds"] < best[budget]["seconds"]:
                best[budget] = found
    inside, over = best[2 * whole], best[whole // OVER]
    budget = whole // OVER
    print(f"\n{whole // MIB} MiB of state over a budget of {budget / MIB:.0f} MiB, {BATCHES} batches")
    print(f"time {over['seconds']:.2f} s, {over['seconds'] / inside['seconds']:.2f} of all in memory")
    print(
        f"peak of the memory tier {over['tier'] / budget:.2f}, of the process {over['process'] / budget:.2f}"
    )
    print(f"on disk in the end {over['disk'] / MIB:.0f} MiB, spilled {over['spilled'] / MIB:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="a folder on the disk to measure")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        work(given.dir, given.work)
        return
    beside_plain_files(given.dir)
    over_the_budget(given.dir, given.rounds)


if __name__ == "__main__":
    main()
