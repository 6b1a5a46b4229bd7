"""What only the file log can suffer: torn tails, damage, a full disk, failing syncs, a held lock, SIGKILL."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tidegate.clock import Clock
from tidegate.errors import (
    ConfigError,
    CorruptError,
    OutcomeUnknownError,
    WalGapError,
    WalUnavailableError,
)
from tidegate.wal import file_format
from tidegate.wal.file_log import FileLog

HEADER = file_format.HEADER_BYTES
RECORDS = [b"alpha", b"", b"gamma, the last"]


@pytest.fixture
def log(tmp_path):
    log = FileLog(tmp_path, "n")
    log.create()
    return log


@pytest.fixture
def path(log):
    return log.folder / "decisions.log"


@pytest.fixture
def positions(log):
    """Three records are there; their positions and the end."""
    given = [log.append_decision(record) for record in RECORDS]
    return [appended.position for appended in given] + [given[-1].next_position]


def reopened(log):
    return FileLog(log.folder.parent, log.folder.name)


def opened(fd):
    return Path(f"/proc/self/fd/{fd}").readlink()


def contents(log):
    return [entry.content for entry in log.decisions()]


# -- the file's bytes -------------------------------------------------------------------------


def test_the_bytes_of_the_files_are_pinned(log, path):
    log.append_decision(b"abc")
    log.stage("seg-1", [b"xyz", b""])
    assert (
        path.read_bytes().hex()
        == (
            "5447444c" + "01" + "0000000000000000" + "ad8c208ab487b214"  # TGDL, format, base, checksum
            "00000003" + "5db051e7" + "78af5f94892f3950" + "616263" + "0a"
        )
    )
    assert (
        (log.folder / "changelog" / "seg-1.seg").read_bytes().hex()
        == (
            "54475347" + "01"  # TGSG, format
            "00000003" + "5db051e7" + "6276d2656f411f1f" + "78797a" + "0a"
            "00000000" + "08d6d969" + "2d06800538d394c2" + "0a"
        )
    )


def test_positions_go_on_when_the_front_was_cut_off(log, path, positions):
    """A file made by trimming starts with another base; positions given out before stay good."""
    whole = path.read_bytes()
    cut = positions[1]
    path.write_bytes(file_format.decisions_header(cut - HEADER) + whole[cut:])
    again = reopened(log)
    found = [(entry.position, entry.next_position, entry.content) for entry in again.decisions()]
    assert found == [(positions[1], positions[2], RECORDS[1]), (positions[2], positions[3], RECORDS[2])]
    assert [entry.content for entry in again.decisions(positions[2])] == RECORDS[2:]
    with pytest.raises(WalGapError, match="trimmed"):
        list(again.decisions(positions[0]))
    for one in (log, again):  # the instance that appended before the cut, and a new one
        end = one.append_decision(b"more")
        assert [entry.content for entry in again.decisions(end.position)] == [b"more"]


@pytest.mark.parametrize("at", range(HEADER))
def test_a_damaged_header_is_refused(log, path, positions, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    for act in (log.create, lambda: log.append_decision(b"x"), lambda: list(log.decisions())):
        with pytest.raises(CorruptError, match=r"decisions\.log"):
            act()
    assert path.read_bytes() == content


@pytest.mark.parametrize("count", [0, 1, HEADER - 1])
def test_a_header_cut_short_is_refused(log, path, count):
    os.truncate(path, count)
    for act in (log.create, lambda: log.append_decision(b"x"), lambda: list(log.decisions())):
        with pytest.raises(CorruptError, match=r"decisions\.log"):
            act()


def test_a_newer_format_is_refused_with_advice(log, path):
    head = b"TGDL" + bytes([2]) + bytes(8)
    path.write_bytes(head + file_format.checksum(head))
    with pytest.raises(ConfigError, match="upgrade"):
        list(log.decisions())


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


# -- failing calls --------------------------------------------------------------------------------


def failing(name, error, monkeypatch, *, after=0):
    """Let os.<name> fail from its (after + 1)-th call on; returns how to mend it."""
    real, calls = getattr(os, name), []

    def fail(*arguments, **keywords):
        calls.append(arguments)
        if len(calls) > after:
            raise OSError(error, os.strerror(error))
        return real(*arguments, **keywords)

    monkeypatch.setattr(os, name, fail)
    return lambda: monkeypatch.setattr(os, name, real)


def test_a_failed_sync_leaves_the_outcome_unknown(log, positions, monkeypatch):
    mend = failing("fsync", errno.EIO, monkeypatch)
    with pytest.raises(OutcomeUnknownError, match="fsync"):
        log.append_decision(b"perhaps")
    mend()
    assert contents(log) in (RECORDS, [*RECORDS, b"perhaps"])
    log.append_decision(b"next")
    assert contents(reopened(log))[-1] == b"next"


def test_a_failed_sync_is_followed_by_a_second_write(log, positions, monkeypatch):
    """The kernel may call the pages clean after a failed sync; only a write makes them dirty again."""
    written, write = [], os.write
    monkeypatch.setattr(os, "write", lambda fd, content: written.append(bytes(content)) or write(fd, content))
    failing("fsync", errno.EIO, monkeypatch)
    with pytest.raises(OutcomeUnknownError):
        log.append_decision(b"perhaps")
    assert len(written) == 2
    assert written[0] == written[1]


def test_a_reader_that_cannot_sync_gives_nothing_out(log, positions, monkeypatch):
    """Whoever acts on the log syncs it after reading and before acting."""
    failing("fsync", errno.EIO, monkeypatch)
    seen = []
    with pytest.raises(WalUnavailableError):
        seen.extend(log.decisions())
    assert seen == []


def test_a_reader_syncs_after_reading_and_before_yielding(log, positions, monkeypatch):
    calls = []
    for name in ("pread", "fsync"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, real=real: calls.append(name) or real(*a))
    reader = log.decisions()
    next(reader)
    assert calls[-1] == "fsync"
    assert calls.count("fsync") == 1
    assert "pread" not in calls[calls.index("fsync") :]


@pytest.mark.parametrize("written", [0, 1, 8, 20])
def test_a_full_disk_proves_that_nothing_was_written(log, path, positions, monkeypatch, written):
    before, write = path.read_bytes(), os.write
    state = {"room": written}

    def fill_up(fd, content):
        if not state["room"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        piece = bytes(content[: state["room"]])
        state["room"] -= len(piece)
        return write(fd, piece)

    monkeypatch.setattr(os, "write", fill_up)
    with pytest.raises(WalUnavailableError, match="room"):
        log.append_decision(b"a record that does not fit")
    assert path.read_bytes() == before
    monkeypatch.setattr(os, "write", write)
    assert log.append_decision(b"x").position == positions[-1]


def test_a_full_disk_that_cannot_be_cut_back_leaves_the_outcome_unknown(log, positions, monkeypatch):
    failing("write", errno.ENOSPC, monkeypatch)
    failing("ftruncate", errno.EIO, monkeypatch)
    with pytest.raises(OutcomeUnknownError):
        log.append_decision(b"x")


def test_any_other_write_error_leaves_the_outcome_unknown(log, positions, monkeypatch):
    mend = failing("write", errno.EIO, monkeypatch)
    with pytest.raises(OutcomeUnknownError):
        log.append_decision(b"x")
    mend()
    assert log.append_decision(b"x").position == positions[-1]


def test_a_write_in_pieces_is_put_together(log, positions, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, content: write(fd, content[:3]))
    log.append_decision(b"a record in many pieces")
    (address,) = log.stage("s", [b"a blob in many pieces"])
    assert contents(log) == [*RECORDS, b"a record in many pieces"]
    assert [blob.content for blob in log.read([address])] == [b"a blob in many pieces"]


def test_a_write_that_writes_nothing_ends(log, positions, monkeypatch):
    monkeypatch.setattr(os, "write", lambda *_: 0)
    with pytest.raises(OutcomeUnknownError):
        log.append_decision(b"x")


def test_a_log_that_cannot_be_opened_proves_that_nothing_was_written(log, path, monkeypatch):
    path.unlink()
    path.mkdir()
    with pytest.raises(WalUnavailableError):
        log.append_decision(b"x")
    with pytest.raises(WalUnavailableError):
        list(log.decisions())


def test_an_error_while_closing_does_not_hide_an_append(log, positions, monkeypatch):
    close = os.close

    def close_and_fail(fd):
        close(fd)
        raise OSError(errno.EIO, "close")

    monkeypatch.setattr(os, "close", close_and_fail)
    appended = log.append_decision(b"x")
    assert [entry.content for entry in log.decisions(appended.position)] == [b"x"]


@pytest.mark.parametrize("name", ["fsync", "write"])
def test_a_stage_that_fails_gives_no_address_and_leaves_no_file(log, monkeypatch, name):
    mend = failing(name, errno.ENOSPC, monkeypatch, after=1)
    with pytest.raises(WalUnavailableError, match="room"):
        log.stage("s", [b"x", b"y"])
    mend()
    assert list((log.folder / "changelog").iterdir()) == []


def test_stage_syncs_the_file_and_then_its_folder(log, monkeypatch):
    """I3: an ack is true only when the file's name is durable too."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(opened(fd)) or fsync(fd))
    log.stage("s", [b"x"])
    changelog = log.folder / "changelog"
    assert synced == [changelog / "s.seg", changelog]


def test_create_syncs_every_folder_it_makes(tmp_path, monkeypatch):
    synced, fsync = set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(opened(fd)) or fsync(fd))
    log = FileLog(tmp_path / "a" / "b", "n")
    log.create()
    folders = {tmp_path, tmp_path / "a", tmp_path / "a" / "b", log.folder, log.folder / "changelog"}
    assert folders <= synced


# -- folders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocked", [".", "n", "n/changelog", "n/lock"])
def test_a_folder_that_cannot_be_made_is_named_with_what_to_do(tmp_path, blocked):
    place = tmp_path / "wal" / blocked
    place.parent.mkdir(parents=True, exist_ok=True)
    if blocked == "n/lock":
        place.mkdir()  # a folder in the place of a file, and otherwise a file in the place of a folder
        (tmp_path / "wal" / "n" / "changelog").write_text("")
    else:
        place.write_text("in the way")
    log = FileLog(tmp_path / "wal", "n")
    with pytest.raises(ConfigError, match="writable") as caught:
        log.create()
    assert str(log.folder) in str(caught.value)


@pytest.mark.parametrize("error", [errno.EACCES, errno.ENOSPC, errno.EROFS])
def test_a_folder_that_refuses_is_named(tmp_path, monkeypatch, error):
    log = FileLog(tmp_path, "n")
    failing("open", error, monkeypatch)
    with pytest.raises(ConfigError, match="another folder") as caught:
        log.create()
    assert str(log.folder) in str(caught.value)


def test_a_creation_that_died_half_way_is_finished(tmp_path, monkeypatch):
    log = FileLog(tmp_path, "n")
    mend = failing("rename", errno.EIO, monkeypatch)
    with pytest.raises(ConfigError):
        log.create()
    mend()
    assert contents(log) == []
    log.create()
    log.append_decision(b"x")
    assert contents(log) == [b"x"]
    assert sorted(entry.name for entry in log.folder.iterdir()) == ["changelog", "decisions.log", "lock"]


def test_names_that_differ_only_in_case_or_punctuation_do_not_meet(tmp_path):
    """T47."""
    folders = {FileLog(tmp_path, name).folder.name.lower() for name in ("a.b", "a_b", "a-b", "A.b", "ab")}
    assert len(folders) == 5


# -- the lock -----------------------------------------------------------------------------------------


class SteppingClock(Clock):
    """A clock that moves only when somebody sleeps."""

    def __init__(self):
        self.time, self.sleeps = 0.0, []

    def monotonic(self):
        return self.time

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.time += seconds


def test_a_held_lock_ends_in_a_deadline(log, path, positions):
    clock = SteppingClock()
    waiting = FileLog(log.folder.parent, "n", lock_timeout_s=3.0, clock=clock)
    before = path.read_bytes()
    with (log.folder / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(WalUnavailableError, match=r"3 s"):
            waiting.append_decision(b"x")
        assert contents(waiting) == RECORDS  # readers need no lock
    assert 3.0 <= clock.time < 3.1
    assert max(clock.sleeps) <= 0.05
    assert len(set(clock.sleeps)) > 1
    assert path.read_bytes() == before
    waiting.append_decision(b"x")


def test_a_thread_that_waits_for_the_lock_gets_it(log, positions):
    waiting = FileLog(log.folder.parent, "n", lock_timeout_s=60)
    asked = threading.Event()
    done = []
    clock = waiting._clock = Clock()
    sleep = clock.sleep
    clock.sleep = lambda seconds: asked.set() or sleep(seconds)
    with (log.folder / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: done.append(waiting.append_decision(b"x")))
        thread.start()
        assert asked.wait(30)
        assert not done
    thread.join()
    assert done[0].position == positions[-1]


# -- segments -----------------------------------------------------------------------------------------


def test_staging_nothing_makes_no_file(log):
    assert log.stage("s", iter(())) == []
    assert list((log.folder / "changelog").iterdir()) == []


def test_a_source_that_fails_leaves_no_file(log):
    def source():
        yield b"x"
        raise KeyError

    with pytest.raises(KeyError):
        log.stage("s", source())
    assert list((log.folder / "changelog").iterdir()) == []


def test_every_flipped_bit_of_a_blob_is_found_and_named(log):
    (address,) = log.stage("s", [b"some bytes"])
    path = log.folder / "changelog" / "s.seg"
    whole = path.read_bytes()
    for at in range(len(whole)):
        content = bytearray(whole)
        content[at] ^= 1
        path.write_bytes(content)
        with pytest.raises(CorruptError, match=r"s\.seg at byte 5"):
            list(log.read([address]))


def test_a_segment_cut_short_is_a_gap(log):
    addresses = log.stage("s", [b"some bytes", b"more bytes"])
    path = log.folder / "changelog" / "s.seg"
    for size in range(path.stat().st_size):
        os.truncate(path, path.stat().st_size - 1)
        with pytest.raises(WalGapError, match=r"s\.seg"):
            list(log.read([addresses[1]]))
        assert path.stat().st_size >= 0, size


@pytest.mark.parametrize(
    "address",
    ["s:5:9", "s:4:10", "s:6:9", "s:0:10", "s:05:10", "s:5:010", "s:5:10 ", " s:5:10", "s:5:10\n", "s:+5:10",
     "s:5:٣", "S:5:10", "s/../s:5:10", "s.seg:5:10", "s:5:10:", "s::10", "s:5"],
)  # fmt: skip
def test_an_address_that_is_nearly_right_is_refused(log, address):
    assert log.stage("s", [b"some bytes"]) == ["s:5:10"]
    with pytest.raises(CorruptError):
        list(log.read([address]))


def test_a_claimed_size_is_checked_before_anything_is_allocated(log, monkeypatch):
    """T49."""
    log.stage("s", [b"some bytes"])
    monkeypatch.setattr(os, "pread", None)
    with pytest.raises(WalGapError):
        list(log.read(["s:5:4294967295"]))


def test_reading_holds_one_file_at_a_time(log):
    addresses = [address for index in range(5) for address in log.stage(f"s-{index}", [b"x", b"y"])]

    def segments_open():
        links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return sum(link.readlink().suffix == ".seg" for link in links)

    reader = log.read(addresses[::-1])
    assert [segments_open() for _ in reader] == [1] * 10
    assert segments_open() == 0


# -- SIGKILL ------------------------------------------------------------------------------------------

APPEND_FOR_EVER = """
import sys
from tidegate.wal.file_log import FileLog

log = FileLog(sys.argv[1], "n")
for index in range(10**9):
    log.append_decision(b"%s %d " % (sys.argv[2].encode(), index) + b"x" * (index % 5000))
    (address,) = log.stage(f"{sys.argv[2]}-{index}", [b"blob %d" % index])
    print(index, address, flush=True)
"""


def test_what_was_acked_before_a_sigkill_is_there(log):
    """I3. Two processes append; each is killed while it does."""
    acked = {}
    for name, last in (("one", 30), ("two", 47)):
        with subprocess.Popen(
            [sys.executable, "-c", APPEND_FOR_EVER, str(log.folder.parent), name],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            for line in process.stdout:
                index, address = line.split()
                acked[f"{name} {index}"] = address
                if int(index) == last:
                    process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        log.append_decision(f"after {name}".encode())
    found = [b" ".join(content.split(b" ")[:2]).decode() for content in contents(reopened(log))]
    assert set(acked) <= set(found)
    assert len(found) == len(set(found)) <= len(acked) + 4
    blobs = {blob.address: blob.content for blob in log.read(list(acked.values()))}
    assert all(blobs[address] == f"blob {name.split()[1]}".encode() for name, address in acked.items())
