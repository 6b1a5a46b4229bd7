"""The layout of a value in every store: one flags byte (``wal/value_flags.py``), then its parts. Pure.

Expiry is microseconds since the epoch, big-endian, signed. A sequence is at most 255 bytes
and compares as bytes. Plain values are readable in any client: ``+`` and the bytes.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from tidegate.base.extras import pa, pc
from tidegate.errors import CorruptError
from tidegate.sinks.rules.columns import PlainColumn, column_of
from tidegate.wal.value_flags import (
    DELETE,
    DELETE_SEQUENCED,
    EXPIRING,
    EXPIRING_SEQUENCED,
    EXPIRY_END,
    SEQUENCED,
    VALUE,
    VALUE_END,
    WITH_EXPIRY,
    WITH_SEQUENCE,
)

BEFORE_1970 = b"\x80"
STORED_MORE = 1 + 8 + 1 + 255
"""The most bytes that a stored value takes beyond its value."""
FEW = 16


class Stored(NamedTuple):
    """The parts of a stored value; ``value`` None means deleted."""

    value: bytes | None
    expiry_us: int | None = None
    sequence: bytes | None = None


def pack(stored: Stored) -> bytes:
    """Encode one value as stored bytes (the slow, general form; plain values are ``+`` and bytes)."""
    sequence = b"" if stored.sequence is None else bytes([len(stored.sequence)]) + stored.sequence
    if stored.value is None:
        return DELETE_SEQUENCED + sequence if sequence else DELETE
    if stored.expiry_us is None:
        return (SEQUENCED if sequence else VALUE) + sequence + stored.value
    flags = EXPIRING_SEQUENCED if sequence else EXPIRING
    return flags + struct.pack(">q", stored.expiry_us) + sequence + stored.value


def unpack(content: bytes) -> Stored:
    """Decode one stored value. Raises: CorruptError: tidegate does not write such flags or lengths."""
    flags, rest = content[:1], content[1:]
    if flags == VALUE:
        return Stored(rest)
    if flags == DELETE and not rest:
        return Stored(None)
    expiry_us = sequence = None
    try:
        if flags in WITH_EXPIRY:
            (expiry_us,), rest = struct.unpack_from(">q", rest), rest[8:]
        if flags in WITH_SEQUENCE:
            length, rest = rest[0], rest[1:]
            sequence, rest = rest[:length], rest[length:]
            if len(sequence) != length:
                raise IndexError
        if flags == DELETE_SEQUENCED and not rest:
            return Stored(None, None, sequence)
        if flags in (EXPIRING, SEQUENCED, EXPIRING_SEQUENCED):
            return Stored(rest, expiry_us, sequence)
    except (struct.error, IndexError):
        pass
    msg = (
        f"a stored value of {len(content)} bytes starts with {content[:1]!r}: not a form that tidegate writes"
    )
    raise CorruptError(msg)


def payload(content: bytes | None, at_us: int | None = None) -> bytes | None:
    """Return a reader's value for one stored value: None if there is no row, or it is deleted or expired.

    ``at_us`` as in ``payloads``.
    """
    if content is None:
        return None
    stored = unpack(content)
    if stored.value is None or stored.expiry_us is None:
        return stored.value
    if at_us is None:
        raise _no_time()
    return stored.value if at_us < stored.expiry_us else None


def payloads(stored: Any, at_us: int | None = None) -> Any:
    """Return readers' values for an Arrow binary array of stored values: null if null, deleted or expired.

    ``at_us`` is the time to read at: ``decided_at_us`` of the version that is read, never a clock's,
    so that every reader of a version gets the same. Raises: ValueError: it is missing, and a value expires.

    Plain values, and those that expire, take one vectorised pass. The other forms, and few values,
    are decoded one by one (a call of an Arrow kernel costs about 6 us).
    """
    if len(stored) <= FEW or isinstance(stored, PlainColumn):
        return _one_by_one(stored, at_us)
    flags = pc.binary_slice(stored, 0, 1)
    plain, expiring = pc.equal(flags, VALUE), pc.equal(flags, EXPIRING)
    known = pc.or_(pc.or_(plain, pc.equal(stored, DELETE)), expiring)  # a marker has nothing after its byte
    if pc.any(pc.and_(pc.is_valid(stored), pc.invert(known))).as_py():
        return _one_by_one(stored, at_us)
    nothing = pa.scalar(None, pa.binary())
    values = pc.if_else(pc.fill_null(plain, False), pc.binary_slice(stored, 1, VALUE_END), nothing)  # noqa: FBT003
    if not pc.any(expiring).as_py():
        return values
    short = pc.less(pc.binary_length(stored), EXPIRY_END)
    if at_us is None or at_us < 0 or pc.any(pc.and_(expiring, short)).as_py():
        return _one_by_one(stored, at_us)
    # Big-endian: times from 1970 on compare as bytes. The highest bit: before.
    expiry = pc.binary_slice(stored, 1, EXPIRY_END)
    later = pc.and_(pc.greater(expiry, struct.pack(">q", at_us)), pc.less(expiry, BEFORE_1970))
    live = pc.fill_null(pc.and_(expiring, later), False)  # noqa: FBT003
    return pc.if_else(live, pc.binary_slice(stored, EXPIRY_END, VALUE_END), values)


def _one_by_one(stored: Any, at_us: int | None) -> Any:
    return column_of([payload(content, at_us) for content in stored.to_pylist()])


def _no_time() -> ValueError:
    return ValueError(
        "a stored value expires, and no time was passed to read it at: pass at_us, the version's"
        " decided_at_us"
    )
