"""What only the file log can suffer: a full disk, failing syncs, blocked folders, a held lock, SIGKILL."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support.clocks import HandClock
from support.file_log import HEADER, RECORDS, contents, log, path, positions, reopened
from tidegate.base.clock import Clock
from tidegate.errors import (
    ConfigError,
    CorruptError,
    OutcomeUnknownError,
    WalGapError,
    WalUnavailableError,
)
from tidegate.wal.file import format as file_format
from tidegate.wal.file.log import FileLog

__all__ = ["log", "path", "positions"]  # fixtures


def opened(fd):
    return Path(f"/proc/self/fd/{fd}").readlink()


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
    with pytest.raises(CorruptError, match="is no regular file"):
        log.append_decision(b"x")
    with pytest.raises(CorruptError, match="is no regular file"):
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
    mend = "make room" if error == errno.ENOSPC else "writable for this user"
    with pytest.raises(ConfigError, match=rf"{mend}.* another folder") as caught:
        log.create()
    assert str(log.folder) in str(caught.value)


def test_a_creation_that_died_half_way_is_finished(tmp_path, monkeypatch):
    log = FileLog(tmp_path, "n")
    mend = failing("rename", errno.EIO, monkeypatch)
    with pytest.raises(WalUnavailableError):
        log.create()
    mend()
    assert contents(log) == []
    log.create()
    log.append_decision(b"x")
    assert contents(log) == [b"x"]
    assert sorted(entry.name for entry in log.folder.iterdir()) == ["changelog", "decisions.log", "lock"]


def test_a_log_is_there_whole_or_not_at_all_while_it_is_made_and_cut(tmp_path, monkeypatch):
    """Before each sync its file has the bytes of before, or of after: a process may die at any of them."""
    log, plain, seen = FileLog(tmp_path, "n"), os.fsync, []
    path = log.folder / "decisions.log"

    def fsync(fd):
        seen.append(path.read_bytes() if path.exists() else None)
        plain(fd)

    monkeypatch.setattr("os.fsync", fsync)
    log.create()
    assert set(seen) == {None, path.read_bytes()}
    positions = [log.append_decision(record).position for record in RECORDS]
    before, seen[:] = path.read_bytes(), []
    log.trim_decisions(positions[1])
    assert path.read_bytes() != before
    assert set(seen) == {before, path.read_bytes()}


def test_names_that_differ_only_in_case_or_punctuation_do_not_meet(tmp_path):
    """T47."""
    folders = {FileLog(tmp_path, name).folder.name.lower() for name in ("a.b", "a_b", "a-b", "A.b", "ab")}
    assert len(folders) == 5


# -- the lock -----------------------------------------------------------------------------------------


def test_a_held_lock_ends_in_a_deadline(log, path, positions):
    clock = HandClock()
    waiting = FileLog(log.folder.parent, "n", lock_timeout_s=3.0, clock=clock)
    before = path.read_bytes()
    with (log.folder / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(WalUnavailableError, match=r"3 s"):
            waiting.append_decision(b"x")
        assert contents(waiting) == RECORDS  # readers need no lock
    assert 3.0 <= clock.seconds < 3.1
    assert max(clock.slept) <= 0.05
    assert len(set(clock.slept)) > 1
    assert path.read_bytes() == before
    waiting.append_decision(b"x")


def test_a_thread_that_waits_for_the_lock_gets_it(log, positions):
    clock = Clock()
    waiting = FileLog(log.folder.parent, "n", lock_timeout_s=60, clock=clock)
    asked = threading.Event()
    done = []
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
from tidegate.wal.file.log import FileLog

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


def test_a_file_in_the_place_of_a_folder_is_a_wrong_path_and_says_so(tmp_path):
    """Trying again would not help: ConfigError, before anything is written."""
    (tmp_path / "wal").write_text("in the way")
    log = FileLog(tmp_path / "wal", "n")
    with pytest.raises(ConfigError, match="give a folder"):
        list(log.decisions())
    with pytest.raises(ConfigError):
        log.create()
    with pytest.raises(ConfigError):
        log.append_decision(b"record")
