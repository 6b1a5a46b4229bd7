"""The bytes of the file log, where a file changes under who reads it."""

import pytest

from tidegate.wal.file_format import frame_prefix, scan


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
