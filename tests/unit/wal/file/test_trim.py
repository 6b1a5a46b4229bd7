"""Cutting and trimming the file log: its bytes, what is synced when, a full disk, damage, races."""

import errno
import fcntl
import os
import time
from pathlib import Path

import pytest

from support.file_log import HEADER, contents, log, path, reopened
from tidegate.errors import CorruptError, WalGapError, WalUnavailableError
from tidegate.wal.file import format as file_format
from tidegate.wal.file.log import MTIME_US

__all__ = ["log", "path"]  # fixtures
RECORDS = [b"alpha", b"beta", b"gamma, the last"]


@pytest.fixture
def positions(log):
    return [log.append_decision(record).position for record in RECORDS]


def calls_of(monkeypatch):
    """What is synced, written over and locked, in order."""
    calls, fsync, rename, flock = [], os.fsync, Path.rename, fcntl.flock

    def opened(fd):
        return Path(f"/proc/self/fd/{fd}").readlink().name

    monkeypatch.setattr(os, "fsync", lambda fd: calls.append(("sync", opened(fd))) or fsync(fd))
    monkeypatch.setattr(Path, "rename", lambda a, b: calls.append(("rename", b.name)) or rename(a, b))
    monkeypatch.setattr(
        fcntl, "flock", lambda fd, how: calls.append(("lock", how == fcntl.LOCK_UN)) or flock(fd, how)
    )
    return calls


def test_the_bytes_of_a_cut_file(log, path, positions):
    whole = path.read_bytes()
    log.trim_decisions(positions[1])
    assert path.read_bytes() == file_format.decisions_header(positions[1] - HEADER) + whole[positions[1] :]
    assert not path.with_suffix(".new").exists()


def test_the_new_file_is_durable_before_it_stands_there_and_its_name_before_anyone_appends(
    log, positions, monkeypatch
):
    calls = calls_of(monkeypatch)
    log.trim_decisions(positions[1])
    assert calls == [
        ("lock", False),
        ("sync", "decisions.new"),
        ("rename", "decisions.log"),
        ("sync", "n"),
        ("lock", True),
    ]


def test_the_name_is_synced_by_whoever_acts_when_the_trimmer_died_before_it(log, positions, monkeypatch):
    """I3: a power cut could bring back the old file, without what was appended to the new one since."""
    fsync = os.fsync

    def die(fd):
        if Path(f"/proc/self/fd/{fd}").readlink().is_dir():
            raise OSError(errno.EIO, "died here")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(WalUnavailableError):
        log.trim_decisions(positions[1])
    monkeypatch.undo()
    calls = calls_of(monkeypatch)
    appender, reader = reopened(log), reopened(log)
    appender.append_decision(b"more")
    assert [name for kind, name in calls if kind == "sync"] == ["n", "decisions.log"]
    calls.clear()
    appender.append_decision(b"and more")
    assert [name for kind, name in calls if kind == "sync"] == ["decisions.log"]
    calls.clear()
    next(reader.decisions())
    assert calls == [("sync", "n"), ("sync", "decisions.log")]
    assert contents(log) == [*RECORDS[1:], b"more", b"and more"]


def test_a_torn_tail_is_not_carried_over(log, path, positions):
    whole = path.read_bytes()
    path.write_bytes(whole + whole[HEADER : HEADER + 10])
    log.trim_decisions(positions[2])
    assert path.stat().st_size == HEADER + len(whole) - positions[2]
    reopened(log).append_decision(b"more")
    assert contents(log) == [RECORDS[2], b"more"]


@pytest.mark.parametrize("name", ["write", "fsync"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_leaves_the_log_whole(log, path, positions, monkeypatch, name, error):
    def fail(*_):
        raise OSError(error, "no")

    monkeypatch.setattr(os, name, fail)
    with pytest.raises(WalUnavailableError):
        log.trim_decisions(positions[1])
    monkeypatch.undo()
    assert contents(log) == RECORDS
    assert not path.with_suffix(".new").exists()
    log.trim_decisions(positions[1])
    assert contents(log) == RECORDS[1:]


def test_what_a_trimmer_left_that_died_is_written_over(log, path, positions):
    path.with_suffix(".new").write_bytes(b"x" * 10_000)
    assert contents(reopened(log)) == RECORDS
    log.trim_decisions(positions[1])
    assert contents(log) == RECORDS[1:]


def test_a_place_inside_a_record_is_refused(log, path, positions):
    before = path.read_bytes()
    for position in range(positions[0] + 1, positions[2] + 1):
        if position not in positions:
            with pytest.raises(CorruptError, match="not cut there"):
                log.trim_decisions(position)
    assert path.read_bytes() == before


def test_a_log_that_went_back_is_not_cut(log, path, positions):
    path.write_bytes(path.read_bytes()[: positions[2]])
    with pytest.raises(WalGapError, match="older copy"):
        reopened(log).trim_decisions(positions[2])
    assert contents(reopened(log)) == RECORDS[:2]


def test_a_large_tail_is_copied_in_pieces(log, monkeypatch):
    monkeypatch.setattr("tidegate.wal.file.log.COPY_BYTES", 100)
    records = [b"%d" % number * 37 for number in range(60)]
    positions = [log.append_decision(record).position for record in records]
    log.trim_decisions(positions[20])
    assert contents(reopened(log)) == records[20:]


def test_a_segment_that_is_trimmed_while_it_is_staged_is_never_acked(log):
    """I3: it took longer than the log is kept, which nobody should; still no ack may name it."""

    def blobs():
        yield b"one"
        log.trim_blobs([], 2**60)
        yield b"two"

    with pytest.raises(WalUnavailableError, match="trimmed while it was being staged"):
        log.stage("s", blobs())


def test_a_file_time_may_be_a_little_too_old(log):
    (address,) = log.stage("s", [b"x"])
    staged_us = time.time_ns() // 1000
    log.trim_blobs([], staged_us + MTIME_US // 2)
    assert list(log.read([address]))
    log.trim_blobs([], staged_us + 2 * MTIME_US)
    with pytest.raises(WalGapError):
        list(log.read([address]))


def test_a_segment_that_vanishes_while_the_folder_is_listed_is_no_error(log, monkeypatch):
    for number in range(4):
        log.stage(f"s-{number}", [b"x"])
    found = list(log._segments())
    monkeypatch.setattr(log, "_segments", lambda: iter(found))
    assert reopened(log).trim_blobs([], 2**60).bytes > 0
    log.trim_blobs([], 2**60)
    assert list(reopened(log)._segments()) == []


def test_only_segments_are_touched(log):
    stranger = log.folder / "changelog" / "notes.txt"
    stranger.write_text("mine")
    log.trim_blobs([], 2**60)
    assert stranger.exists()
    assert log.size().changelog_bytes == 0
