"""Pieces of a cache of state: in memory up to the budget, else on disks; there after a worker was killed."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.base.local_dir import LocalDir
from tidegate.sinks.cache.buffer.buffer import Buffer
from tidegate.sinks.cache.buffer.limits import BufferLimits
from tidegate.sinks.cache.buffer.policy import ContainerMemory
from tidegate.sinks.cache.buffer.pressure import QUIET
from tidegate.sinks.cache.pieces import Pieces
from tidegate.sinks.cache.runs import PieceRef, places_of, rows_of

ROWS = 40
PIECE = 10_000
"""More bytes than one piece takes up, and less than two do."""

NO_WAIT = QUIET.meter()
WAITED = SimpleNamespace(share=lambda _fault_s: 0.5)

SCRIPT = """
    import os, signal, sys
    sys.path.insert(0, sys.argv[2])
    from pathlib import Path
    import numpy as np
    from test_pieces import NO_WAIT, opened, rows
    from tidegate.sinks.cache.pieces import Pieces
    pieces = Pieces(lambda: opened(Path(sys.argv[1]), int(sys.argv[3])))
    for number in range(6):
        ref = pieces.write(f"7-{number}", rows(number))
        print(ref.name, ref.first, ref.last, ref.bytes, ref.checksum, flush=True)
    pieces.balance(np.array([5]), 7, NO_WAIT)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def rows(mark, group=0):
    keys = pa.array([b"%04d" % number for number in range(ROWS)], pa.binary())
    values = pa.array([b"+%d" % mark + b"x" * 150] * ROWS, pa.binary())
    places = places_of(np.full(ROWS, group, np.int32), keys.cast(pa.large_binary()))
    found = rows_of(places, keys, values)
    return found.take(pc.sort_indices(found["p"]))


def opened(folder, memory_bytes, disk_bytes=1 << 20):
    memory, *disks = (LocalDir(str(folder / name), "flights", "u1") for name in ("memory", "disk0", "disk1"))
    return Buffer(memory, disks, BufferLimits(memory_bytes, disk_bytes))


@pytest.fixture
def container():
    """Its ``memory`` is that of the container."""
    return SimpleNamespace(memory=None)


@pytest.fixture
def pieces(tmp_path, container):
    made = []

    def make(*limits):
        buffer = opened(tmp_path, *limits)
        made.append(buffer)
        return buffer, Pieces(lambda: buffer, QUIET._replace(container=lambda: container.memory))

    yield make
    for buffer in made:
        for files in (*buffer.paths("memory"), *buffer.paths("disk")):
            files.local.close()


def on_disk(buffer):
    return {name for name, note in buffer.notes().items() if note.account.disk_bytes}


def test_what_memory_has_no_room_for_is_on_the_disks_and_read_from_there(pieces, tmp_path):
    buffer, held = pieces(2 * PIECE)
    refs = [held.write(f"1-{number}", rows(number)) for number in range(8)]
    assert PIECE / 2 < refs[0].bytes < PIECE
    assert 0 < buffer.used_bytes("memory") <= 2 * PIECE
    assert len(on_disk(buffer)) == 6
    assert all(list((tmp_path / name).rglob("*.disk")) for name in ("disk0", "disk1"))
    for number, ref in enumerate(refs):
        assert held.open(ref).equals(rows(number))


def test_the_hot_come_back_to_memory_and_the_cold_leave_it(pieces):
    buffer, held = pieces(4 * PIECE)
    refs = [held.write(f"1-{number}", rows(number, number)) for number in range(7)]
    hot, requests = {refs[5].name, refs[6].name}, np.array([0, 0, 0, 0, 0, 9, 9])
    assert on_disk(buffer) == hot
    for version in range(1, 4):
        held.balance(requests, version, NO_WAIT)
        assert buffer.used_bytes("memory") <= 4 * PIECE
    for ref in refs[:3]:
        held.drop(ref.name)
    moved = held.balance(requests, 4, NO_WAIT)
    assert hot - on_disk(buffer)
    assert moved["room"] > 0
    assert all(held.open(ref).equals(rows(number, number)) for number, ref in enumerate(refs) if number >= 5)


def test_while_there_is_room_nothing_is_noted(pieces):
    buffer, held = pieces(1 << 20)
    held.write("1-1", rows(1))
    before = buffer.notes()
    assert held.balance(np.array([5]), 1, NO_WAIT) == {}
    assert buffer.notes() == before
    assert not (buffer.home.folder / "rates").exists()


def test_a_full_container_moves_pieces_to_disk_though_there_is_room(pieces, container):
    buffer, held = pieces(1 << 20)
    refs = [held.write(f"1-{number}", rows(number, number)) for number in range(3)]
    container.memory = ContainerMemory(960_000, 1_000_000)
    moved = held.balance(np.array([9, 1, 9]), 1, NO_WAIT)
    assert moved == {"container": sum(ref.bytes for ref in refs)}
    assert on_disk(buffer) == {ref.name for ref in refs}
    assert held.balance(np.array([9, 1, 9]), 2, NO_WAIT) == {}, "it is still too full to load"
    container.memory = ContainerMemory(500_000, 1_000_000)
    assert held.balance(np.array([9, 1, 9]), 3, NO_WAIT) == {"room": moved["container"]}
    assert all(held.open(ref).equals(rows(number, number)) for number, ref in enumerate(refs))


def test_a_wait_for_memory_moves_the_coldest_key_groups_to_disk(pieces):
    buffer, held = pieces(6 * PIECE)
    for number in range(3):
        held.write(f"1-{number}", rows(number, number))
    moved = held.balance(np.array([9, 1, 9]), 1, WAITED)
    assert moved.keys() == {"wait"}
    assert on_disk(buffer) == {"1-1"}


def test_no_room_anywhere_is_a_full_disk_and_what_is_dropped_is_gone(pieces):
    _, held = pieces(PIECE, PIECE)
    refs = [held.write(f"1-{number}", rows(number)) for number in range(2)]
    with pytest.raises(OSError, match="no space in memory or on a disk"):
        held.write("1-2", rows(2))
    assert held.names() == ["1-0", "1-1"]
    held.drop("1-0")
    with pytest.raises(FileNotFoundError, match=r"it is gone: .piece .*1-0"):
        held.open(refs[0])
    assert held.open(refs[1]).equals(rows(1))


@pytest.mark.parametrize("memory_bytes", [0, 2 * PIECE, 1 << 20])
def test_a_killed_worker_takes_nothing_with_it(pieces, tmp_path, memory_bytes):
    here = str(Path(__file__).parent)
    script = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path), here, str(memory_bytes)]
    ran = subprocess.run(script, check=False, capture_output=True, text=True, timeout=60)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    buffer, held = pieces(memory_bytes)
    lines = [line.split() for line in ran.stdout.splitlines()]
    refs = [PieceRef(name, *map(int, numbers), checksum) for name, *numbers, checksum in lines]
    assert len(refs) == 6
    assert all(held.open(ref).equals(rows(number)) for number, ref in enumerate(refs))
    assert buffer.used_bytes("memory") <= memory_bytes
    assert bool(on_disk(buffer)) == (memory_bytes < 6 * PIECE)
