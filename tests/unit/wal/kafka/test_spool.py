"""Records that are kept in a temporary file while they are iterated."""

import tempfile
import tracemalloc

import pytest

from tidegate.errors import WalUnavailableError
from tidegate.wal.fold import Entry
from tidegate.wal.kafka import spool
from tidegate.wal.kafka.spool import Spool


def entries(count: int, length: int):
    return (Entry(2 * nth, 2 * nth + 1, b"%d" % nth * length) for nth in range(count))


@pytest.mark.parametrize("length", [0, 1, 1_000])
def test_a_spool_yields_what_was_added_in_order(monkeypatch, length):
    monkeypatch.setattr(spool, "MEMORY_BYTES", 10_000)
    kept = Spool()
    for entry in entries(100, length):
        kept.add(entry)
    assert list(kept) == list(entries(100, length))


def test_a_spool_keeps_little_in_memory(monkeypatch):
    monkeypatch.setattr(spool, "MEMORY_BYTES", 100_000)
    tracemalloc.start()
    try:
        kept = Spool()
        for entry in entries(10_000, 1_000):
            kept.add(entry)
        assert sum(1 for _ in kept) == 10_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_spool_without_room_names_the_folder(monkeypatch):
    class Full:
        def write(self, _):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda *_: Full())
    with pytest.raises(WalUnavailableError, match=r"no room in .*No space left on device; make room there"):
        Spool().add(Entry(0, 1, b"x"))
