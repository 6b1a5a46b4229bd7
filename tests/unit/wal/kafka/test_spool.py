"""Records that are kept in a temporary file while they are iterated."""

import os
import tempfile
import tracemalloc

import pytest

from tidegate.errors import CorruptError, WalUnavailableError
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

        def close(self):
            pass

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda *_: Full())
    with pytest.raises(WalUnavailableError, match=r"no room in .*No space left on device; make room there"):
        Spool().add(Entry(0, 1, b"x"))


class FullFile:
    """A file whose last bytes find no room: they are written when the file is rewound."""

    def write(self, _):
        pass

    def seek(self, _):
        raise OSError(28, "No space left on device")

    def close(self):
        raise OSError(28, "No space left on device")


def test_a_spool_without_room_for_its_last_bytes_names_the_folder(monkeypatch):
    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda *_: FullFile())
    kept = Spool()
    kept.add(Entry(0, 1, b"x"))
    with pytest.raises(WalUnavailableError, match=r"no room in .*No space left on device; make room there"):
        list(kept)


def test_a_spool_without_any_folder_names_those_that_were_tried(monkeypatch):
    """Python finds no folder for temporary files when all are full."""

    def none_usable():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/full']")

    monkeypatch.setattr(spool, "MEMORY_BYTES", 1)  # so the first record needs a file
    monkeypatch.setattr(tempfile, "gettempdir", none_usable)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: none_usable())
    with pytest.raises(
        WalUnavailableError, match=r"No usable temporary directory .*/full.*; make room there"
    ):
        Spool().add(Entry(0, 1, b"x"))


def test_a_spool_that_is_read_no_further_is_closed(monkeypatch):
    monkeypatch.setattr(spool, "MEMORY_BYTES", 1)
    kept = Spool()
    for entry in entries(3, 10):
        kept.add(entry)
    reading = iter(kept)
    next(reading)
    reading.close()
    assert kept._file.closed


@pytest.mark.parametrize("length", [1, 1_000])
def test_a_spool_whose_records_cannot_be_read_is_closed(monkeypatch, length):
    monkeypatch.setattr(spool, "MEMORY_BYTES", 100)
    files, make = [], tempfile.SpooledTemporaryFile

    def recorded(*arguments):
        files.append(make(*arguments))
        return files[-1]

    def damaged():
        yield from entries(2, length)
        raise CorruptError("the third")

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", recorded)
    with pytest.raises(CorruptError, match="the third"):
        Spool.of(damaged())
    assert [file.closed for file in files] == [True]


def test_a_spool_that_is_never_read_is_closed(monkeypatch):
    """A file that is only freed is a ResourceWarning, which these tests take for an error."""
    monkeypatch.setattr(spool, "MEMORY_BYTES", 100)
    kept = Spool.of(entries(3, 1_000))
    file = kept._file
    reading = iter(kept)
    del kept, reading
    assert file.closed


def test_a_fork_does_not_disturb_an_iteration(monkeypatch):
    """A child that ends normally closes its copy of the file, and moves the position that both have."""
    monkeypatch.setattr(spool, "MEMORY_BYTES", 100)
    kept = Spool.of(entries(3_000, 20))
    reading = iter(kept)
    rows = [next(reading) for _ in range(100)]
    child = os.fork()
    if not child:
        try:
            reading.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert [*rows, *reading] == list(entries(3_000, 20))
