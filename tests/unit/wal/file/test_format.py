"""The bytes of the file log, where a file changes under who reads it."""

import itertools
import struct

import pytest
import xxhash

from tidegate.wal.file import format as file_format
from tidegate.wal.file.format import frame_prefix, scan


def test_a_file_that_is_cut_while_it_is_scanned_ends_at_its_last_whole_frame():
    """Another driver takes a torn tail away between the look at the file's size and the read."""
    frames = [frame_prefix(content) + content + b"\n" for content in (b"first", b"second")]
    whole = b"".join(frames)
    cut = whole[: -len(b"nd\n")]
    scanned = scan(lambda at, count: cut[at : at + count], 0, len(whole))
    assert next(scanned) == (0, len(frames[0]), b"first")
    with pytest.raises(StopIteration) as ended:
        next(scanned)
    assert ended.value.value == len(frames[0])


# -- torn by sectors ----------------------------------------------------------------------------------

SECTOR = file_format.SECTOR_BYTES


def frame_of(content):
    return frame_prefix(content) + content + b"\n"


def scanned(whole):
    """Contents of the whole frames, and where they stop."""
    found, frames = [], scan(lambda at, count: whole[at : at + count], 0, len(whole))
    while True:
        try:
            found.append(next(frames)[2])
        except StopIteration as stop:
            return found, stop.value


def with_first_frame_of(size):
    """A file whose second frame starts at ``size``; it has 1,400 bytes without a zero among them."""
    first = frame_of(b"f" * (size - file_format.FRAME_EXTRA_BYTES))
    return first + frame_of(b"x" * 1_383)


def sectors_of(start, end):
    return [(max(at, start), min(at + SECTOR, end)) for at in range(start - start % SECTOR, end, SECTOR)]


def without(whole, sectors):
    torn = bytearray(whole)
    for a, b in sectors:
        torn[a:b] = bytes(b - a)
    return bytes(torn)


@pytest.mark.parametrize("start", [*range(490, 517), 700, 1_007, 1_020])
def test_a_last_frame_without_some_of_its_sectors_is_torn(start):
    """A disk writes sectors in any order: every way to have some of them and not all."""
    whole = with_first_frame_of(start)
    first, *others = sectors_of(start, len(whole))
    for lost in (set(some) for count in range(5) for some in itertools.combinations(others, count)):
        if lost:
            assert scanned(without(whole, lost)) == ([b"f" * (start - 17)], start), lost
        if first[1] - start > 4:
            assert scanned(without(whole, {first, *lost})) == ([b"f" * (start - 17)], start), lost


def test_what_only_looks_like_a_frame_behind_a_lost_length_is_none():
    """A record may hold such bytes: the prefix of a frame longer than the file, or of another content."""
    first = frame_of(b"f" * 483)
    inside = b"x" * 600 + frame_prefix(b"y" * 9_999) + frame_prefix(b"y" * 20) + b"z" * 40
    whole = first + frame_of(inside)
    assert scanned(whole) == ([b"f" * 483, inside], len(whole))
    assert scanned(without(whole, [(500, SECTOR)])) == ([b"f" * 483], 500)


@pytest.mark.parametrize("start", [508, 509])
def test_a_length_alone_that_is_gone_is_taken_for_damage(start):
    """The first bytes of a length are zeros anyway: that they are proves nothing."""
    whole = with_first_frame_of(start)
    with pytest.raises(file_format.Damage, match="the length of a record"):
        scanned(without(whole, [(start, SECTOR)]))


@pytest.mark.parametrize("start", [500, 700])
def test_a_frame_that_lacks_a_sector_and_is_not_the_last_is_damaged(start):
    """Each append is synced before the next: what stands before another frame was whole once."""
    whole = with_first_frame_of(start)
    for sector in sectors_of(start, len(whole)):
        with pytest.raises(file_format.Damage):
            scanned(without(whole + frame_of(b"behind it"), [sector]))


@pytest.mark.parametrize("start", [500, 509, 511, 700])
def test_a_byte_that_changed_in_the_last_frame_is_damage(start):
    whole = with_first_frame_of(start)
    for at in range(start, len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        with pytest.raises(file_format.Damage):
            scanned(bytes(damaged))


def test_a_record_that_claims_more_than_any_has_is_damage_and_is_not_read():
    """Its length fits its own checksum, in a file that seems to be as long."""
    length = struct.pack(">I", 2**32 - 1)
    first = frame_of(b"f" * 483)
    claimed = first + length + xxhash.xxh32_digest(length) + bytes(100)
    asked = []

    def read(at, count):
        asked.append(count)
        return claimed[at : at + count].ljust(count, b"x")

    with pytest.raises(file_format.Damage, match="claims 4294967295 bytes, 8388608 are the most"):
        list(file_format.scan(read, 0, 5 * 2**30))
    assert max(asked) < 1_000


def test_a_tail_longer_than_any_record_is_damage_without_a_search_for_records():
    first, asked = frame_of(b"f" * 483), []

    def read(at, count):
        asked.append(count)
        return first[at : at + count].ljust(count, b"\0") if at < 1_000 else b"x" * count

    with pytest.raises(file_format.Damage, match="the length of a record"):
        list(file_format.scan(read, 0, 5 * 2**30))
    assert max(asked) < 1_000_000
