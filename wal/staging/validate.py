"""Validation of rows before staging: vectorised checks, and error messages for rows that fail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.base.decoders import json_decoder
from tidegate.errors import BadRecordError, CorruptError
from tidegate.keys.columns import is_python_time, parts_of
from tidegate.keys.groups import TIMES, decode_key
from tidegate.wal.staging.spec import StageSpec
from tidegate.wal.value_flags import EXPIRY_END, NO_TIME, NOT_TEXT, UNUSABLE, WITH_EXPIRY

MARKS = (NOT_TEXT, NO_TIME, UNUSABLE)
YEARS = "that is not of the years 1 to 9999"
OUTSIDE = re.compile(rb'"(?:[+-][0-9]{4,}|0000)-[0-9]{2}-[0-9]{2}')
"""How Spark writes a date outside these years in JSON."""
DAY, FIRST_YEAR = 10, b"0001"
"""The length of a date as text, and the first four characters of Python's earliest date."""


class BadRow(NamedTuple):
    """A refused row of a batch, the reason, and advice to its owner."""

    row: int
    why: str
    advice: str


def refused(batches: Iterable[Any], spec: StageSpec) -> Iterator[Any]:
    """Yield the batches unchanged. Raises: BadRecordError for the first bad row; nothing is decided."""
    for batch in batches:
        for bad in bad_rows(batch, spec)[:1]:
            raise BadRecordError(describe(batch, bad, spec))
        yield batch


def bad_rows(batch: Any, spec: StageSpec) -> list[BadRow]:
    """Return the rows that cannot be staged, in row order, each with its first cause.

    Rows that are already in the quarantine and are checked again have limits of their own.
    """
    keys, values = batch["k"], batch["v"]
    reasons: dict[int, BadRow] = {}

    def note(mask: Any, why: str, advice: str, sizes: Any = None) -> None:
        hit = pc.fill_null(mask, fill_value=False).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(hit).tolist():
            size = "" if sizes is None else sizes[row].as_py()
            reasons.setdefault(row, BadRow(row, why.format(size=size), advice))

    for row in _marked(values, UNUSABLE):
        reasons[row] = BadRow(row, *reason_of(values[row].as_py()))
    if keys.null_count:
        note(pc.is_null(keys), "its key is null", "filter such rows out")
    if values.null_count:
        note(pc.is_null(values), "its value is null", "use delete to remove a key")
    note(
        pc.starts_with(values, NOT_TEXT),
        "a text in its value is not valid UTF-8",
        "make it valid (make_valid_utf8), or use a binary column",
    )
    for column, what in ((keys, "key"), (values, "value")):
        limit = spec.bytes_max(what)
        if column.nbytes <= limit:
            continue  # then no row is longer: an Arrow kernel call costs more than this
        sizes = pc.binary_length(column)
        if column is values:
            sizes = pc.subtract(sizes, _before_value(values))
        if (pc.max(sizes).as_py() or 0) > limit:
            why = f"its {what} takes {{size}} bytes, {limit} are allowed"
            note(pc.greater(sizes, limit), why, spec.size_advice(what), sizes)
    for row in _not_utf8(batch, spec):
        reasons.setdefault(row, BadRow(row, "its key is not valid UTF-8", "use a binary key column"))
    for row, why in (*_no_time_in_keys(batch, spec), *_no_time_in_values(batch, spec)):
        reasons.setdefault(row, BadRow(row, why, "mend or filter such rows, or use a string column"))
    return [reasons[row] for row in sorted(reasons) if batch["t"][row].as_py() != spec.quarantine]


def _before_value(values: Any) -> Any:
    """Return the bytes of each stored value that its limit leaves out: the flags byte and an expiry.

    Staging adds the expiry after this check, so a value that was accepted is accepted again with one.
    """
    expiring = pc.is_in(pc.binary_slice(values, 0, 1), pa.array(WITH_EXPIRY, values.type))
    return pc.if_else(expiring, EXPIRY_END, 1)


def _marked(values: Any, mark: bytes) -> list[int]:
    """Return the rows whose value begins with this mark."""
    marked = pc.fill_null(pc.starts_with(values, mark), fill_value=False)
    return np.flatnonzero(marked.to_numpy(zero_copy_only=False)).tolist()  # type: ignore[no-any-return]


def reason_of(unusable: bytes) -> tuple[str, str]:
    """Return why a value cannot be used, and the advice."""
    why, advice, _ = unusable[len(UNUSABLE) :].split(b"\0", 2)
    return why.decode(), advice.decode()


def content_of(stored: bytes) -> bytes:
    """Return a value without its flags byte, and without the reason for which it cannot be used."""
    return (stored.split(b"\0", 2)[2] if stored.startswith(UNUSABLE) else stored)[1:]


def _not_utf8(batch: Any, spec: StageSpec) -> list[int]:
    rows: list[int] = []
    for table, types in enumerate(spec.key_types):
        if "string" not in types:
            continue
        mine = pc.equal(batch["t"], table)
        try:
            batch["k"].filter(mine).cast(pa.string())
        except pa.ArrowInvalid:
            places = np.flatnonzero(mine.to_numpy(zero_copy_only=False)).tolist()
            rows += [row for row in places if not _is_text(batch["k"][row].as_py(), types)]
    return rows


def _no_time_in_values(batch: Any, spec: StageSpec) -> Iterator[tuple[int, str]]:
    for row in _marked(batch["v"], NO_TIME):
        names = dict(spec.time_columns[batch["t"][row].as_py()] if spec.time_columns else ())
        value = memoryview(batch["v"][row].as_py())[len(NO_TIME) :]
        cells = json_decoder(dict[str, msgspec.Raw]).decode(value)
        fields = [field for field in names if field in cells] or list(cells)  # a function's rows have others
        hit = [field for field in fields if OUTSIDE.search(bytes(cells[field]))]
        shown = [names.get(field, field) for field in hit[:1] or fields]
        where = f"column {shown[0]}" if hit else f"one of the columns {', '.join(shown)}"
        yield row, f"{where} of its value has a date or time {YEARS}"


def _no_time_in_keys(batch: Any, spec: StageSpec) -> Iterator[tuple[int, str]]:
    for table, types in enumerate(spec.key_types):
        if not {"date", *TIMES}.intersection(types):
            continue
        mine = pc.and_(pc.equal(batch["t"], table), pc.is_valid(batch["k"]))
        rows = np.flatnonzero(mine.to_numpy(zero_copy_only=False))
        for index, part in enumerate(parts_of(batch["k"].filter(mine), len(types))):
            if types[index] == "date":
                what = "date"
                fits = pc.and_(pc.equal(pc.binary_length(part), DAY), pc.greater_equal(part, FIRST_YEAR))
            elif types[index] in TIMES:
                what, fits = "time", is_python_time(part.cast(pa.string()).cast(pa.int64()))
            else:
                continue
            name = spec.key_names[table][index] if spec.key_names else str(index + 1)
            for row in rows[~fits.to_numpy(zero_copy_only=False)].tolist():
                yield row, f"column {name} of its key has a {what} {YEARS}"


def _is_text(key: bytes | None, types: Sequence[str]) -> bool:
    """Return whether the key's strings are UTF-8; its binaries may be anything."""
    try:
        if key is not None and "binary" in types:
            decode_key(key, types)
        else:
            (key or b"").decode()
    except (UnicodeDecodeError, CorruptError):
        return False
    return True


def describe(batch: Any, bad: BadRow, spec: StageSpec) -> str:
    """Describe the refusal: table, key, cause, and remedy. It has no part of the value."""
    key, value = batch["k"][bad.row].as_py(), batch["v"][bad.row].as_py()
    table = batch["t"][bad.row].as_py()
    shown = "a row without a key"
    if key is not None:
        shown = f"key {shown_key(key, spec.key_types[table])}"
    elif value is not None:
        shown += f", whose value takes {len(content_of(value))} bytes"
    aside = '; on_bad_record="quarantine" sets such rows aside instead' * (spec.quarantine is None)
    if spec.stored:
        aside = (
            "; stored rows and derived ones are not set aside: change it where it is from, derive smaller"
            " groups or fewer values, or take a store that allows it"
        )
    return f"table {spec.tables[table]}, {shown}: {bad.why}; nothing was decided; {bad.advice}{aside}"


def shown_key(key: bytes, types: Sequence[str]) -> str:
    """Format the key as a reader would write it, or its bytes where they cannot be decoded.

    >>> shown_key(b"k7", ("string",)), shown_key(b"x", ("int",)), shown_key(b"k7", ())
    ("'k7'", "b'x'", "b'k7'")
    """
    try:
        return _short(repr(decode_key(key, types)), len(key))
    except (CorruptError, UnicodeDecodeError):
        return _short(repr(key), len(key))


def _short(text: str, size: int, most: int = 120) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({size} bytes)"
