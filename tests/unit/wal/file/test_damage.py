"""Torn tails and damage: what a crash left is cut, what was whole once is never touched nor given out."""

import fcntl
import os

import pytest

from support.file_log import HEADER, RECORDS, contents, log, path, positions, reopened
from tidegate.errors import CorruptError, WalGapError
from tidegate.wal.file import format as file_format

__all__ = ["log", "path", "positions"]  # fixtures
# -- torn tails ---------------------------------------------------------------------------------


def torn_tails():
    """Every way a last append may have been left unfinished: cut at every byte, or zeros from every byte."""
    frame = file_format.frame_prefix(b"the one that was torn") + b"the one that was torn" + b"\n"
    for count in range(1, len(frame)):
        yield f"cut at {count}", frame[:count]
        yield f"zeros from {count}", frame[:count] + bytes(len(frame) - count)
        yield f"zeros from {count} to beyond its end", frame[:count] + bytes(5000)
    for count in (1, 7, 8, 16, 17, 4096, 70_000):
        yield f"{count} zeros", bytes(count)


def test_every_torn_tail_is_stepped_over_and_then_cut(log, path, positions):
    whole = path.read_bytes()
    for name, tail in torn_tails():
        path.write_bytes(whole + tail)
        again = reopened(log)
        assert contents(again) == RECORDS, name
        assert path.read_bytes() == whole + tail, f"{name}: a reader changed the file"
        appended = again.append_decision(b"next")
        assert appended.position == positions[-1], name
        assert contents(log) == [*RECORDS, b"next"], name
        assert path.stat().st_size == appended.next_position, name


def test_a_torn_tail_longer_than_the_next_record_leaves_nothing_behind(log, path, positions):
    frame = file_format.frame_prefix(bytes(range(256))) + bytes(range(200))
    path.write_bytes(path.read_bytes() + frame)
    log.append_decision(b"x")
    log.append_decision(b"y")
    assert contents(log) == [*RECORDS, b"x", b"y"]


def test_the_same_instance_cuts_a_tail_that_another_process_left(log, path, positions):
    with path.open("ab") as file:
        file.write(file_format.frame_prefix(b"abc") + b"a")
    assert contents(log) == RECORDS
    assert log.append_decision(b"next").position == positions[-1]


# -- damage -------------------------------------------------------------------------------------


def test_every_flipped_bit_is_found_and_named(log, path, positions):
    whole = path.read_bytes()
    starts = positions[:-1]
    for at in range(HEADER, len(whole)):
        for bit in (1, 128):
            content = bytearray(whole)
            content[at] ^= bit
            path.write_bytes(content)
            hurt = max(start for start in starts if start <= at)
            again, seen = reopened(log), []
            with pytest.raises(CorruptError) as caught:
                seen.extend(entry.content for entry in again.decisions())
            assert str(path) in str(caught.value)
            assert f"byte {hurt}:" in str(caught.value)
            assert seen == RECORDS[: starts.index(hurt)]
            with pytest.raises(CorruptError, match=f"byte {hurt}:"):
                again.append_decision(b"x")
            assert path.read_bytes() == content, "damage is evidence: nothing may change it"


@pytest.mark.parametrize("count", [1, 8, 100, 5000])
def test_zeros_followed_by_a_whole_record_are_damage(log, path, positions, count):
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(count) + whole[positions[0] : positions[1]])
    with pytest.raises(CorruptError, match=f"byte {positions[-1]}:"):
        list(log.decisions())


def test_a_hole_in_the_middle_is_damage(log, path, positions):
    content = bytearray(path.read_bytes())
    content[positions[0] : positions[1]] = bytes(positions[1] - positions[0])
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=f"byte {positions[0]}:"):
        list(reopened(log).decisions())


def test_a_position_inside_a_record_is_not_taken_for_one(log, positions):
    for position in range(HEADER, positions[-1]):
        if position not in positions:
            try:
                found = list(log.decisions(position))
            except CorruptError:
                continue
            assert found == []  # a short rest reads as a torn tail


def test_an_older_copy_of_the_file_is_noticed(log, path, positions):
    """T20, I10: a log that went back is never appended to by who knows better."""
    os.truncate(path, positions[-2])
    with pytest.raises(WalGapError, match="ends at"):
        log.append_decision(b"x")
    with pytest.raises(WalGapError, match="ends at"):
        list(log.decisions(positions[-1]))
    path.unlink()
    with pytest.raises(WalGapError, match="ends at"):
        list(log.decisions(positions[-1]))


def test_damage_that_was_a_writer_at_work_is_not_reported(log, path, positions, monkeypatch):
    """A reader has no lock: it may read half of a torn tail and half of what replaces it."""
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    flock = fcntl.flock

    def writer_finishes(fd, operation):
        path.write_bytes(whole)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", writer_finishes)
    assert contents(reopened(log)) == RECORDS


def test_a_damaged_log_without_a_lock_file_is_still_reported(log, path, positions):
    os.truncate(path, positions[-1] - 3)
    with path.open("ab") as file:
        file.write(b"???")
    (log.folder / "lock").unlink()
    with pytest.raises(CorruptError):
        list(reopened(log).decisions())
