"""The spillable buffer in one process, with real files: what is kept, viewed, moved, and given up."""

import os

import pyarrow as pa
import pytest

from support.cache.buffers import KIB, SMALL, contents_of, files_of, fill, flip, lengths_of
from tidegate.base.local_dir import LocalDir
from tidegate.errors import ConfigError, CorruptError
from tidegate.sinks.cache.buffer.buffer import Buffer, open_buffer
from tidegate.sinks.cache.buffer.limits import BufferLimits
from tidegate.sinks.cache.buffer.mapped_files import MappedFiles
from tidegate.sinks.cache.buffer.note import Segment, UnitStats


def test_what_is_kept_is_there_for_the_next_process(opened):
    fill(opened(), 7, b"first", b"second" * 1000)
    again = opened()
    with again.claim("7") as held:
        assert held.caller == b"caller"
        assert held.account == UnitStats(5 + 6000, 0)
        assert held.tier == "memory"
    assert contents_of(again, 7) == [b"first", b"second" * 1000]
    assert again.notes().keys() == {"7"}
    assert contents_of(again, 8) == []


def test_chunks_of_any_kind_become_one_aligned_segment(opened):
    buffer = opened()
    batch = pa.record_batch({"a": pa.array(range(1000), pa.int64())})
    with buffer.claim("1") as held:
        held.write([b"odd"])
        chunks = [b"", b"ab", bytearray(b"cd"), memoryview(b"ef"), pa.py_buffer(b"gh")] + [b"x"] * 2000
        segment = held.write(chunks)
        assert held.view(segment).to_pybytes() == b"abcdefgh" + b"x" * 2000
        arrow = held.write([batch.serialize()])
        view = held.view(arrow)
        assert view.address % 64 == 0
        before = pa.total_allocated_bytes()
        read = pa.ipc.read_record_batch(view, batch.schema)
        assert read.equals(batch)
        assert pa.total_allocated_bytes() == before, "reading it copied it"
        with pytest.raises(ValueError, match="at least one byte"):
            held.write([b"", b""])


def test_only_one_has_a_key_group(opened):
    buffer, other = opened(), opened()
    with buffer.claim("1") as held:
        assert held is not None
        for twin in (buffer, other):
            with twin.claim("1") as nothing:
                assert nothing is None
            with twin.claim("2") as free:
                assert free is not None
    with other.claim("1") as held:
        assert held is not None


def test_an_empty_unit_leaves_nothing_behind(opened):
    """Names of units may be new ones with each batch: nothing may be left of one that was dropped."""
    buffer = opened()
    for name in ("41-run-3", "a", "A_" * 100):
        fill(buffer, name, b"x", tier="disk")
        with buffer.claim(name) as held:
            held.drop()
        with buffer.claim("never") as held:
            held.write([b"x"])
        assert buffer.look(name) is None
    for files in (*buffer.paths("memory"), *buffer.paths("disk")):
        assert files.units() == []


def test_a_unit_of_one_segment_is_put_and_dropped(opened):
    buffer, other = opened(), opened()
    assert buffer.put("41-3", [b"a", b"b"], b"caller", groups=range(4, 9))
    note, [view] = other.look("41-3")
    assert view.to_pybytes() == b"ab"
    assert (note.caller, note.groups, note.account) == (b"caller", (4, 9), UnitStats(2, 0))
    assert other.units() == ["41-3"]
    with other.claim("41-3"):
        assert not buffer.put("41-3", [b"c"])
        assert not buffer.drop("41-3")
    assert buffer.look("41-3").note == note
    assert buffer.put("41-3", [b"c"])
    assert [view.to_pybytes() for view in other.look("41-3").views] == [b"c"]
    assert buffer.drop("41-3")
    assert buffer.drop("41-3")
    assert other.units() == []


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "a/b", "a b", "\u00e9", "a" * 201, "a\n"])
def test_what_cannot_be_a_folders_name_is_refused(opened, name):
    with pytest.raises(ValueError, match="no name of a unit"), opened().claim(name):
        pass


def test_any_number_may_look_at_a_unit_that_is_claimed(opened):
    buffer = opened()
    segments = fill(buffer, 1, b"a" * 5000, b"b")
    with buffer.claim("1") as held:
        held.write([b"not kept"])
        for one in (buffer, opened()):
            note, views = one.look("1")
            assert note.segments == tuple(segments)
            assert [view.to_pybytes() for view in views] == [b"a" * 5000, b"b"]
        held.move("disk")
        assert [view.to_pybytes() for view in views] == [b"a" * 5000, b"b"]
        held.drop()
        assert buffer.look("1") is None


def test_who_looks_sees_what_one_keep_kept(opened, monkeypatch):
    """The unit is moved, and its space given to others, between reading the note and mapping the file."""
    buffer, other = opened(), opened()
    contents = [b"a" * 6000, b"b" * 6000]
    first = fill(buffer, 1, *contents)
    assert buffer.look("1")  # verified once: from now on only the note can tell
    real, steps = MappedFiles.view, []

    def meanwhile(files, unit, name, offset, size):
        if not steps:
            steps.append("moved")
            with other.claim("1") as held:
                second = held.segments[1]
                new = [held.write([b"c" * 6000], "disk"), second]
                held.keep(new, b"")
            with other.claim("1") as held:  # the space of the first segment is used again
                again = held.write([b"d" * 6000])
                assert (again.file, again.offset) == (first[0].file, first[0].offset)
                held.keep([*held.segments, again], b"")
        return real(files, unit, name, offset, size)

    monkeypatch.setattr(MappedFiles, "view", meanwhile)
    _, views = buffer.look("1")
    assert [view.to_pybytes() for view in views] == [b"c" * 6000, b"b" * 6000, b"d" * 6000]


def test_damage_is_told_to_who_looks(opened):
    buffer = opened()
    fill(buffer, 1, b"a" * 6000)
    flip(files_of(buffer, "memory")[0], 7)
    with pytest.raises(CorruptError, match=r"unit 1 .*checksum"):
        buffer.look("1")


def test_who_looks_at_a_file_that_is_written_waits_a_moment_only(opened, monkeypatch):
    buffer = opened()
    fill(buffer, 1, b"a" * 6000)
    monkeypatch.setattr("tidegate.sinks.cache.buffer.buffer.LOOK_S", 0.05)
    with buffer.home.for_reuse("1", files_of(buffer, "memory")[0].name) as free:
        assert free
        assert buffer.look("1") is None
    assert buffer.look("1")


def test_an_error_in_the_block_gives_the_group_back(opened):
    buffer = opened()
    fill(buffer, 1, b"kept")
    with pytest.raises(OSError, match="user's"), buffer.claim("1") as held:  # noqa: PT012
        held.write([b"lost"])
        raise OSError("user's own")
    assert contents_of(buffer, 1) == [b"kept"]


def test_only_what_is_known_can_be_kept(opened):
    buffer = opened()
    [kept] = fill(buffer, 1, b"kept")
    with buffer.claim("1") as held:
        for wrong in ([Segment("memory", 0, "x", 0, 1, 2)], [kept, kept]):
            with pytest.raises(ValueError, match="kept segment"):
                held.keep(wrong, b"")
    assert contents_of(buffer, 1) == [b"kept"]


def test_space_is_used_again_and_files_go(opened):
    buffer = opened()
    for batch in range(50):
        fill(buffer, 1, bytes([batch]) * 5000, bytes([batch]) * 3000)
        assert lengths_of(buffer, "memory") <= 3 * 16 * KIB
        assert buffer.used_bytes("memory") == lengths_of(buffer, "memory")
    with buffer.claim("1") as held:
        held.drop()
        held.drop()
        assert (held.segments, held.caller, held.account) == ((), b"", UnitStats())
    assert files_of(buffer, "memory") == []
    assert buffer.used_bytes("memory") == 0
    assert buffer.notes() == {}


def test_space_is_used_again_once_nobody_looks(opened):
    buffer = opened()
    first, second = fill(buffer, 1, b"a" * 6000, b"b" * 3000)
    with buffer.claim("1") as held:
        view = held.view(first)
        held.keep([second], b"")
        assert held.write([b"c" * 6000]).offset > first.offset
    del view
    with buffer.claim("1") as held:
        assert held.write([b"d" * 6000]).offset == first.offset


def test_a_large_segment_has_a_file_of_its_own(opened):
    buffer = opened()
    small, large = fill(buffer, 1, b"s", b"l" * 100 * KIB)
    assert small.file != large.file
    assert contents_of(buffer, 1) == [b"s", b"l" * 100 * KIB]


def test_files_go_in_rotation_over_the_paths(opened):
    buffer = opened(disks=3)
    for group in range(6):
        fill(buffer, group, *[bytes([group]) * 12 * KIB] * 3, tier="disk")
    counts = [len(files.units()) for files in buffer.paths("disk")]
    assert counts == [6, 6, 6]
    assert contents_of(buffer, 3) == [bytes([3]) * 12 * KIB] * 3


@pytest.mark.parametrize("there,back", [("memory", "disk"), ("disk", "memory")])
def test_a_move_leaves_nothing_where_it_was(opened, there, back):
    buffer = opened()
    contents = [os.urandom(size) for size in (1, 5000, 40_000)]
    fill(buffer, 1, *contents, tier=there)
    with buffer.claim("1") as held:
        assert held.move(there) == 0
        assert held.move(back) == 45_001
        assert held.tier == back
        assert held.caller == b"caller"
        assert {segment.tier for segment in held.segments} == {back}
    assert files_of(buffer, there) == []
    assert buffer.used_bytes(there) == 0
    assert buffer.used_bytes(back) == lengths_of(buffer, back)
    assert contents_of(opened(), 1) == contents


def test_over_its_limit_memory_gives_way_to_the_disk_and_then_to_nothing(opened):
    buffer = opened(BufferLimits(memory_bytes_max=64 * KIB, disk_bytes_max=128 * KIB, file_bytes=16 * KIB))
    content = b"x" * 10 * KIB
    with buffer.claim("1") as held:
        tiers = [segment and segment.tier for segment in [held.write([content]) for _ in range(20)]]
        assert tiers == ["memory"] * 6 + ["disk"] * 12 + [None] * 2
        assert held.write([content], "disk") is None
        for tier, limit in (("memory", 64 * KIB), ("disk", 128 * KIB)):
            assert limit - 10 * KIB <= buffer.used_bytes(tier) == lengths_of(buffer, tier) <= limit
    with buffer.claim("2") as held:
        assert held.write([content]).tier == "memory"


def test_a_move_without_room_changes_nothing(opened):
    buffer = opened(BufferLimits(memory_bytes_max=64 * KIB, disk_bytes_max=20 * KIB, file_bytes=16 * KIB))
    segments = fill(buffer, 1, *[b"x" * 10 * KIB] * 4)
    with buffer.claim("1") as held:
        assert held.move("disk") == 0
        assert held.segments == tuple(segments)
    assert buffer.used_bytes("disk") == lengths_of(buffer, "disk") == 0
    assert contents_of(buffer, 1) == [b"x" * 10 * KIB] * 4


def test_with_only_a_disk_there_is_no_memory_tier(opened):
    buffer = opened(memory=False)
    [segment] = fill(buffer, 1, b"x")
    assert segment.tier == "disk"
    assert contents_of(opened(memory=False), 1) == [b"x"]


def test_without_a_disk_nothing_is_spilled(opened):
    buffer = opened(disks=0)
    [segment] = fill(buffer, 1, b"x", tier="disk")
    assert segment.tier == "memory"
    with buffer.claim("1") as held:
        assert held.move("disk") == 0


def test_both_tiers_may_lie_in_one_folder(tmp_path):
    local = LocalDir(str(tmp_path), "flights", "u1")
    buffer = Buffer(local, [local], SMALL)
    fill(buffer, 1, b"m")
    with buffer.claim("1") as held:
        held.keep([*held.segments, held.write([b"d"], "disk")], b"")
    assert contents_of(buffer, 1) == [b"m", b"d"]
    with buffer.claim("1") as held:
        assert held.move("disk") == 1
    assert contents_of(buffer, 1) == [b"m", b"d"]
    assert files_of(buffer, "memory") == []
    local.close()


@pytest.mark.parametrize("given", [{"memory_bytes_max": -1}, {"disk_bytes_max": 1.5}, {"file_bytes": 0}])
def test_limits_that_do_not_fit_are_refused(given):
    with pytest.raises(ConfigError, match=next(iter(given))):
        BufferLimits(**given)


def test_a_buffer_needs_a_folder():
    with pytest.raises(ConfigError, match="give local_dir"):
        Buffer(None, [], SMALL)


def test_a_small_memory_file_system_is_the_limit(opened, monkeypatch, caplog):
    """/dev/shm has 64 MB in a container."""
    real = os.statvfs

    def small(path):
        found = real(path)
        blocks = 10 * 1024 * KIB // found.f_frsize
        return os.statvfs_result([*found[:3], blocks, blocks, *found[5:10]])

    monkeypatch.setattr(os, "statvfs", small)
    buffer = opened(BufferLimits())
    assert buffer.limits.memory_bytes_max == 8 * 1024 * KIB
    assert "8 MiB of memory, not 256" in caplog.text


def test_a_namespaces_buffer_lies_in_memory_and_in_local_dir(tmp_path, monkeypatch):
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr("tidegate.sinks.cache.buffer.buffer.MEMORY_PATH", str(tmp_path / "shm"))
    buffer = open_buffer("flights", "u2", str(tmp_path / "local"))
    assert [files.local.root.name for tier in ("memory", "disk") for files in buffer.paths(tier)] == [
        "shm",
        "local",
    ]
    monkeypatch.setattr("tidegate.sinks.cache.buffer.buffer.MEMORY_PATH", str(tmp_path / "none"))
    assert open_buffer("flights", "u2", str(tmp_path / "local")).paths("memory") == []
