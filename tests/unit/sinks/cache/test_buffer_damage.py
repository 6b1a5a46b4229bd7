"""The spillable buffer over damaged files, and over paths that fail."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from support.cache.buffers import contents_of, files_of, fill, flip, lengths_of
from tidegate.errors import CorruptError
from tidegate.sinks.cache.buffer.note import Segment


@pytest.mark.parametrize("tier", ["memory", "disk"])
@pytest.mark.parametrize("at", [0, 5000, 9999])
def test_a_damaged_byte_is_found_at_the_first_view(opened, tier, at):
    """T21."""
    buffer = opened()
    fill(buffer, 1, b"a" * 10_000, b"good", tier=tier)
    flip(files_of(buffer, tier)[0], at)
    with buffer.claim("1") as held:
        bad, good = held.segments
        for _ in range(2):
            with pytest.raises(CorruptError, match=r"unit 1 .*do not fit its checksum"):
                held.view(bad)
        assert held.view(good).to_pybytes() == b"good"
        with pytest.raises(CorruptError):
            held.move("disk" if tier == "memory" else "memory")
        assert held.segments == (bad, good), "a move that fails leaves what was kept"
        held.drop()
    assert contents_of(buffer, 1) == []
    assert files_of(buffer, tier) == []


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_file_that_is_gone_or_too_short_makes_the_group_an_empty_one(opened, tier, caplog):
    buffer = opened()
    for damage in (
        lambda path: path.unlink(),
        lambda path: os.truncate(path, 100),
        lambda path: os.truncate(path, 0),
    ):
        fill(buffer, 1, b"a" * 10_000, tier=tier)
        damage(files_of(buffer, tier)[0])
        with buffer.claim("1") as held:
            assert held.segments == ()
            assert held.caller == b""
        assert files_of(buffer, tier) == []
        assert buffer.notes() == {}
    assert (
        len([record for record in caplog.records if "is damaged and was dropped" in record.getMessage()]) == 3
    )


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_file_that_goes_while_the_group_is_held_is_told(opened, tier):
    buffer = opened()
    fill(buffer, 1, b"a" * 10_000, tier=tier)
    with buffer.claim("1") as held:
        files_of(buffer, tier)[0].unlink()
        with pytest.raises(CorruptError, match="No such file"):
            held.view(held.segments[0])
        held.drop()
    assert contents_of(buffer, 1) == []


def test_a_damaged_note_is_an_empty_group(opened, caplog):
    buffer = opened()
    fill(buffer, 1, b"a" * 10_000)
    flip(buffer.home.unit_folder("1") / "note", 20)
    assert contents_of(buffer, 1) == []
    assert "note of unit 1 of the buffer is damaged" in caplog.text
    assert files_of(buffer, "memory") == []


def test_a_note_that_names_a_file_elsewhere_is_refused(opened):
    buffer = opened()
    with buffer.claim("1") as held:
        for segment in (
            Segment("memory", 0, "../../../etc/passwd", 0, 1, 1),
            Segment("memory", 5, "000001-00000000.memory", 0, 1, 1),
        ):
            with pytest.raises(CorruptError, match="no such file"):
                held.view(segment)


def failing(monkeypatch, name, error, where):
    """The call fails for files under ``where``."""
    real = getattr(os, name)

    def fail(target, *rest):
        path = (
            str(Path(f"/proc/self/fd/{target}").readlink()) if isinstance(target, int) else os.fspath(target)
        )
        if str(where) in path:
            raise OSError(error, os.strerror(error), path)
        return real(target, *rest)

    monkeypatch.setattr(os, name, fail)


@pytest.mark.parametrize("error", ["ENOSPC", "EROFS", "EIO", "EDQUOT"])
def test_a_disk_that_fails_is_left_for_the_next_and_told_once(opened, tmp_path, monkeypatch, caplog, error):
    buffer = opened()
    fill(buffer, 1, b"before", tier="disk")
    failing(monkeypatch, "pwritev", getattr(errno, error), tmp_path / "disk0")
    for group in range(8):
        fill(buffer, group, bytes([group]) * 5000, tier="disk")
    assert {segment.path for note in buffer.notes().values() for segment in note.segments} == {1}
    assert len([record for record in caplog.records if "disk0" in record.getMessage()]) == 1
    failing(monkeypatch, "pwritev", getattr(errno, error), tmp_path / "disk1")
    with buffer.claim("9") as held:
        assert held.write([b"x"], "disk").tier == "memory"
    failing(monkeypatch, "pwritev", getattr(errno, error), tmp_path / "memory")
    with buffer.claim("10") as held:
        assert held.write([b"x"]) is None
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 3
    monkeypatch.undo()
    assert contents_of(buffer, 3) == [bytes([3]) * 5000]
    for tier in ("memory", "disk"):
        assert buffer.used_bytes(tier) == lengths_of(buffer, tier)


def test_a_write_that_fails_half_way_leaves_no_trace(opened, monkeypatch):
    buffer = opened(disks=0)
    fill(buffer, 1, b"a" * 5000)
    real = os.pwritev

    def half(fd, chunks, offset):
        real(fd, [chunks[0][: len(chunks[0]) // 2]], offset)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwritev", half)
    with buffer.claim("1") as held:
        assert held.write([b"b" * 5000]) is None
    assert lengths_of(buffer, "memory") == buffer.used_bytes("memory") == 5056
    assert contents_of(buffer, 1) == [b"a" * 5000]


def test_a_note_that_cannot_be_written_drops_the_group(opened, monkeypatch):
    buffer = opened()
    fill(buffer, 1, b"a" * 5000)

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "write_bytes", full)
    with buffer.claim("1") as held:
        assert not held.keep(held.segments, held.caller)
        assert held.segments == ()
    assert buffer.notes() == {}
    assert files_of(buffer, "memory") == []


@pytest.mark.parametrize("folder", ["memory", "disk0"])
def test_a_folder_deleted_while_it_is_used_is_made_again(opened, tmp_path, folder):
    buffer = opened(disks=1)
    for group in range(4):
        fill(buffer, group, b"a" * 5000, tier="memory" if group % 2 else "disk")
    shutil.rmtree(tmp_path / folder)
    for group in range(4):
        with buffer.claim(str(group)) as held:
            held.drop()
        fill(buffer, group, b"b" * 5000, tier="memory" if group % 2 else "disk")
        assert contents_of(buffer, group) == [b"b" * 5000]


def test_a_folder_deleted_while_a_group_is_held_ends_in_nothing(opened, tmp_path):
    buffer = opened(disks=1)
    with buffer.claim("1") as held:
        held.write([b"a"])
        for folder in ("memory", "disk0"):
            shutil.rmtree(tmp_path / folder)
            (tmp_path / folder).write_bytes(b"in the way")
        assert held.write([b"b"]) is None
        assert not held.keep([], b"")
    with buffer.claim("1") as held:
        assert held is None
    assert buffer.notes() == {}
    assert buffer.used_bytes("memory") == 0


def removed_once(monkeypatch, call, folder):
    """Another process, which ends its claim of the unit, removes the empty folder before the call."""
    real, done = getattr(os, call), []

    def remove_before(path, *rest, **given):
        if not done and folder in (Path(path), Path(path).parent):
            done.append(path)
            if call == "mkdir":  # it was there, and is not any more
                raise FileExistsError(errno.EEXIST, "File exists", str(path))
            folder.rmdir()
        return real(path, *rest, **given)

    monkeypatch.setattr(os, call, remove_before)
    return done


@pytest.mark.parametrize("tier", ["memory", "disk"])
@pytest.mark.parametrize("call", ["mkdir", "open"])
def test_a_folder_that_another_process_removes_meanwhile_is_made_again(
    opened, monkeypatch, caplog, call, tier
):
    """Else this process would have no cache for 60 s, with a warning that somebody deleted it."""
    buffer = opened(disks=1)
    [files] = buffer.paths(tier)
    if (call, tier) == ("open", "memory"):  # the lock is in that folder: it has none without it
        files.unit_folder("1").mkdir(parents=True)
    done = removed_once(monkeypatch, call, files.unit_folder("1"))
    fill(buffer, 1, b"a" * 5000, tier=tier)
    assert done
    assert contents_of(buffer, 1) == [b"a" * 5000]
    assert buffer.notes()["1"].segments[0].tier == tier
    assert caplog.records == []


def test_a_file_in_the_way_of_a_units_folder_is_told(opened, caplog):
    buffer = opened()
    buffer.home.unit_folder("1").parent.mkdir(parents=True)
    buffer.home.unit_folder("1").write_text("in the way")
    with buffer.claim("1") as held:
        assert held is None
    assert "File exists" in caplog.text
