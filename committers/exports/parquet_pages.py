"""The memory that the rows of a Parquet file take, computed before any of them is decompressed.

A file of a kilobyte may expand to gigabytes: by compression, by one long value that a dictionary repeats, or
by a page whose size is not the one in the file's metadata. So the sizes are read from the header in front of
each page: Arrow allocates those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.committers.exports.parquet_footer import misfit
from tidegate.committers.exports.parquet_thrift import Reader

CHUNK_BYTES_MAX = 256 * 1024 * 1024
"""The most that one column of a row group may take, both in the file and decompressed."""
BATCH_BYTES = 16 * 1024 * 1024
BATCH_ROWS = 1_000
REPEATED_MAX = 128 * 1024
"""A dictionary up to this size is not read: each row of a batch may repeat all of it."""
HEADER_BYTES, HEADER_BYTES_MAX = 4 * 1024, 1024 * 1024
PAGES_MAX = 100_000
OLD_WRITER = re.compile(r"parquet-mr version 1\.[0-2]\.")
"""Writers for whose files Arrow reads some bytes more than the metadata has."""

KIND, SIZE, COMPRESSED, DATA, DICTIONARY_HEADER, DATA_2 = 1, 2, 3, 5, 7, 8
"""Fields of a page's header. The last three are structs: of a page of data with its encoding in field 2 or 4,
of a dictionary with the number of its values in field 1.
"""
DICTIONARY = 2
ENCODINGS = frozenset({0, 2, 3, 8})
"""PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY. Values in another one may be built from each other."""


class Page(NamedTuple):
    """The header of a page; ``at`` is the start of its content, ``compressed`` the length of that."""

    kind: int
    at: int
    compressed: int
    size: int
    encoding: int
    values: int


class HugeError(Exception):
    """The file would take more memory than an export may, or an unknown amount; or its metadata would end the
    process.
    """


def batches(source: BinaryIO, schema: Any) -> Iterator[Any]:
    """Yield the rows of a Parquet file of exactly this schema, as record batches of about ``BATCH_BYTES``.

    Raises: HugeError: a page or a dictionary is too large; nothing of its row group was decompressed.
    pyarrow.ArrowException, OSError: the file cannot be read, or has other columns.
    """
    from pyarrow import parquet

    texts = [field.name for field in schema if pa.types.is_binary(field.type)]
    with parquet.ParquetFile(source, pre_buffer=False) as opened:
        if not opened.schema_arrow.equals(schema):
            raise pa.ArrowInvalid(f"it has columns {_columns(opened.schema_arrow)}, not {_columns(schema)}")
        metadata = opened.metadata
        if OLD_WRITER.match(metadata.created_by or ""):
            raise HugeError(f"it was written by {metadata.created_by}, whose sizes cannot be relied on")
        if (why := misfit(source)) is not None:
            raise HugeError(why)
        with parquet.ParquetFile(source, pre_buffer=False, read_dictionary=texts) as dictionaries:
            for group in range(metadata.num_row_groups):
                repeated = _repeated(source, metadata.row_group(group))
                longest = max((_longest(dictionaries, group, *one) for one in repeated.items()), default=0)
                rows = min(BATCH_ROWS, max(1, BATCH_BYTES // max(1, longest)))
                yield from opened.iter_batches(rows, row_groups=[group], use_threads=False)


def _columns(schema: Any) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)[:200]


def _repeated(source: BinaryIO, group: Any) -> dict[str, int]:
    """Count the values in each large dictionary of the row group, by column.

    Raises: HugeError: a column is larger than ``CHUNK_BYTES_MAX``, or its pages are not as tidegate writes
    them.
    """
    counts = {}
    for index in range(group.num_columns):
        column = group.column(index)
        name, length = column.path_in_schema, column.total_compressed_size
        if not 0 <= length <= CHUNK_BYTES_MAX:
            raise HugeError(
                f"column {name} of a row group takes {length} bytes, {CHUNK_BYTES_MAX} are allowed"
            )
        first = column.data_page_offset
        if column.has_dictionary_page and 0 < column.dictionary_page_offset < first:
            first = column.dictionary_page_offset
        size, plain = 0, False
        for page in pages(source, first, length):
            size += page.size
            if size > CHUNK_BYTES_MAX:
                raise HugeError(
                    f"column {name} of a row group takes {size} bytes decompressed or more,"
                    f" {CHUNK_BYTES_MAX} are allowed"
                )
            if page.encoding not in ENCODINGS:
                raise HugeError(f"column {name} has values in encoding {page.encoding}, which no export has")
            if page.kind == DICTIONARY:
                if page.size > REPEATED_MAX and column.physical_type == "BYTE_ARRAY":
                    counts[name] = page.values
            elif plain and page.encoding:
                raise HugeError(f"column {name} goes back to its dictionary, which no writer does")
            else:
                plain = not page.encoding
    return counts


def _longest(dictionaries: Any, group: int, name: str, count: int) -> int:
    """Return the length of a dictionary's longest value, which each row may have."""
    first = next(dictionaries.iter_batches(1, row_groups=[group], columns=[name], use_threads=False), None)
    if first is None or first.num_columns != 1 or len(first.column(0).dictionary) != count:
        raise HugeError(f"the dictionary of column {name} is not the one that its page has")
    return pc.max(pc.binary_length(first.column(0).dictionary)).as_py() or 0


def pages(source: BinaryIO, first: int, length: int) -> Iterator[Page]:
    """Yield the pages in ``length`` bytes from ``first`` on. Raises: HugeError: they do not fill them."""
    offset, end = first, first + length
    for _ in range(PAGES_MAX):
        if offset == end:
            return
        page = _page_at(source, offset, end)
        offset = page.at + page.compressed
        if page.size < 0 or page.compressed < 0 or offset > end:
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
    """Decode the page header that these bytes start with. Raises: IndexError, KeyError: it is incomplete."""
    reader = Reader(content)
    fields = reader.integers()
    encoding = fields[DATA, 2] if (DATA, 2) in fields else fields.get((DATA_2, 4), 0)
    kind, values = fields[(KIND,)], fields.get((DICTIONARY_HEADER, 1), 0)
    return Page(kind, at + reader.at, fields[(COMPRESSED,)], fields[(SIZE,)], encoding, values)
