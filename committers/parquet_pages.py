"""How much memory the rows of a Parquet file take, known before any of them is decompressed.

A file of a kilobyte may unfold to gigabytes: by compression, by one long value that a dictionary repeats, or
by a page whose size is not the one that the file's metadata has. So the sizes that count are read from the
header in front of each page: they are what Arrow allocates.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

CHUNK_BYTES_MAX = 256 * 1024 * 1024
"""The most that one column of a row group may take, as it is in the file and decompressed."""
BATCH_BYTES = 16 * 1024 * 1024
BATCH_ROWS = 1_000
REPEATED_MAX = 128 * 1024
"""A dictionary up to this size is not looked into: each row of a batch may be all of it."""
DEPTH_MAX = 8
LENGTH = struct.Struct("<I")
HEADER_BYTES, HEADER_BYTES_MAX = 4 * 1024, 1024 * 1024
PAGES_MAX = 100_000
OLD_WRITER = re.compile(r"parquet-mr version 1\.[0-2]\.")
"""Of these Arrow reads some bytes more than the metadata says."""

STOP, TRUE, FALSE, BYTE, DOUBLE, BINARY, STRUCT = 0, 1, 2, 3, 7, 8, 12
INTEGERS = (4, 5, 6)
KIND, SIZE, COMPRESSED, DATA, DATA_2 = 1, 2, 3, 5, 8
"""Fields of a page's header: the last two are structs, with the encoding in field 2 and 4."""
DICTIONARY = 2
ENCODINGS = frozenset({0, 2, 3, 8})
"""PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY. Values in another one may be built from each other."""
CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "ZSTD", "GZIP"})


class Page(NamedTuple):
    """What a page's header says; ``at`` is where its content starts, ``compressed`` how long that is."""

    kind: int
    at: int
    compressed: int
    size: int
    encoding: int


class HugeError(Exception):
    """The file would take more memory than an export may, or does not say how much."""


def batches(source: BinaryIO, schema: Any) -> Iterator[Any]:
    """The rows of a Parquet file of exactly this schema, as record batches of at most about ``BATCH_BYTES``.

    HugeError: a page or a dictionary is too large; nothing of its row group was decompressed.
    pyarrow.ArrowException, OSError: the file cannot be read, or has other columns.
    """
    from pyarrow import parquet

    with parquet.ParquetFile(source, pre_buffer=False) as opened:
        if not opened.schema_arrow.equals(schema):
            raise pa.ArrowInvalid(f"it has columns {_columns(opened.schema_arrow)}, not {_columns(schema)}")
        metadata = opened.metadata
        if OLD_WRITER.match(metadata.created_by or ""):
            raise HugeError(f"it was written by {metadata.created_by}, whose sizes cannot be relied on")
        for group in range(metadata.num_row_groups):
            longest = _longest_repeated(source, metadata.row_group(group))
            rows = min(BATCH_ROWS, max(1, BATCH_BYTES // max(1, longest)))
            yield from opened.iter_batches(rows, row_groups=[group], use_threads=False)


def _columns(schema: Any) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)[:200]


def _longest_repeated(source: BinaryIO, group: Any) -> int:
    """The length of the longest value that a dictionary of the row group has: it may be there in each row.

    HugeError: a column is larger than ``CHUNK_BYTES_MAX``, or is not made of pages as we write them.
    """
    longest = 0
    for at in range(group.num_columns):
        column = group.column(at)
        name, length = column.path_in_schema, column.total_compressed_size
        if not 0 <= length <= CHUNK_BYTES_MAX:
            raise HugeError(
                f"column {name} of a row group takes {length} bytes, {CHUNK_BYTES_MAX} are allowed"
            )
        if column.compression not in CODECS:
            raise HugeError(f"column {name} is compressed by {column.compression}, which no export is")
        first = column.data_page_offset
        if column.has_dictionary_page and 0 < column.dictionary_page_offset < first:
            first = column.dictionary_page_offset
        size = 0
        for page in pages(source, first, length):
            size += page.size
            if size > CHUNK_BYTES_MAX:
                raise HugeError(
                    f"column {name} of a row group takes {size} bytes decompressed or more,"
                    f" {CHUNK_BYTES_MAX} are allowed"
                )
            if page.encoding not in ENCODINGS:
                raise HugeError(f"column {name} has values in encoding {page.encoding}, which no export has")
            if page.kind == DICTIONARY and page.size > REPEATED_MAX:
                longest = max(longest, _longest(_content(source, page, column.compression)))
    return longest


def _content(source: BinaryIO, page: Page, compression: str) -> bytes:
    source.seek(page.at)
    content = source.read(page.compressed)
    if compression == "UNCOMPRESSED":
        return content
    found: bytes = pa.Codec(compression.lower()).decompress(content, page.size, asbytes=True)
    return found


def _longest(content: bytes) -> int:
    """The longest of values that are four bytes of length and so many bytes, each behind the other."""
    unpack, end = LENGTH.unpack_from, len(content) - 4
    at = longest = 0
    while at <= end:
        length = unpack(content, at)[0]
        if length > longest:  # noqa: PLR1730 - a call of max takes as long as all the rest
            longest = length
        at += 4 + length
    return min(longest, len(content))


def pages(source: BinaryIO, first: int, length: int) -> Iterator[Page]:
    """The pages of so many bytes from a place on. HugeError: they are not pages from end to end."""
    at, end = first, first + length
    for _ in range(PAGES_MAX):
        if at == end:
            return
        page = _page_at(source, at, end)
        at = page.at + page.compressed
        if page.size < 0 or page.compressed < 0 or at > end:
            break
        yield page
    raise HugeError("the pages of a column are not those that its metadata has")


def _page_at(source: BinaryIO, at: int, end: int) -> Page:
    most = HEADER_BYTES
    while True:
        source.seek(at)
        content = source.read(min(most, end - at))
        try:
            return page_of(content, at)
        except (IndexError, KeyError):
            if most >= min(HEADER_BYTES_MAX, end - at):
                raise HugeError("a page has a header that cannot be read") from None
            most *= 16


# -- the header of a page, in Thrift's compact protocol -----------------------------------------------


def page_of(content: bytes, at: int = 0) -> Page:
    """The page whose header these bytes start with. IndexError, KeyError: they are no whole header."""
    reader = _Reader(content)
    found: dict[int, Any] = reader.struct(0)
    encoding = found[DATA][2] if DATA in found else found[DATA_2][4] if DATA_2 in found else 0
    return Page(found[KIND], at + reader.at, found[COMPRESSED], found[SIZE], encoding)


class _Reader:
    """Reads a struct, and steps over whatever is in it. IndexError: the bytes end, or are none."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def struct(self, depth: int) -> dict[int, Any]:
        """The integers and structs among its fields, by number."""
        if depth > DEPTH_MAX:
            raise IndexError
        found: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != STOP:
            kind, step = head & 15, head >> 4
            number = number + step if step else self._signed()
            if kind in INTEGERS:
                found[number] = self._signed()
            elif kind == STRUCT:
                found[number] = self.struct(depth + 1)
            else:
                self._skip(kind)
        return found

    def _byte(self) -> int:
        self.at += 1
        return self.content[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise IndexError

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _over(self, count: int) -> None:
        self.at += count
        if self.at > len(self.content):
            raise IndexError

    def _skip(self, kind: int) -> None:
        if kind in (BYTE, DOUBLE):
            self._over(1 if kind == BYTE else 8)
        elif kind == BINARY:
            self._over(self._varint())
        elif kind not in (TRUE, FALSE):  # lists, sets, maps: no header of a page has any
            raise IndexError
