"""Bulk lookup of keys among sorted hashes: arrays in, arrays out, no Python per key. Pure.

A key's number only determines its position; a comparison of the bytes determines whether it is the
key. Keys of one number are adjacent and compared one after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

WORD = 8
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FINAL = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(32)
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(WORD)] + [2**64 - 1], np.uint64)
"""Masks by the number of bytes of a word that belong to the key."""


def hashes_of(keys: Any) -> Hashes:
    """Return 64 bits for each key of an Arrow large_binary array without nulls. Only this cache uses them.

    It works word by word over all keys that are long enough. Bytes after a key's end are masked
    away.
    """
    count = len(keys)
    if not count:
        return np.empty(0, np.uint64)
    _, offset_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[keys.offset : keys.offset + count + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    padded = np.zeros(last - first + WORD, np.uint8)
    if last > first:
        padded[: last - first] = np.frombuffer(data_buffer, np.uint8)[first:last]
    words: Any = np.ndarray((last - first + 1,), "<u8", padded.data, strides=(1,))  # one word at every byte
    lengths = np.diff(offsets)
    hashes: Hashes = lengths.astype(np.uint64) * _MULTIPLIER
    positions, whole = offsets[:-1] - first, int(lengths.min()) // WORD
    for _ in range(whole):  # words that every key has
        hashes ^= words[positions]
        hashes *= _MULTIPLIER
        hashes ^= hashes >> _SHIFT
        positions += WORD
    left = lengths - whole * WORD
    rows = np.flatnonzero(left)
    while rows.size:
        word = words[positions[rows]] & _MASKS[np.minimum(left[rows], WORD)]
        mixed = (hashes[rows] ^ word) * _MULTIPLIER
        hashes[rows] = mixed ^ (mixed >> _SHIFT)
        positions[rows] += WORD
        left[rows] -= WORD
        rows = rows[left[rows] > 0]
    hashes *= _FINAL
    hashes ^= hashes >> _SHIFT
    return hashes


def find(held_hashes: Hashes, held_keys: Any, numbers: Hashes, keys: Any, at: Places) -> Places:
    """Return, for each number, the position of its key among the held ones, sorted by number; -1: missing.

    ``at`` has the index of each number's key in ``keys``.
    """
    positions = np.full(len(numbers), -1, np.int64)
    rows = np.arange(len(numbers))
    places = np.searchsorted(held_hashes, numbers)
    while rows.size:
        candidates = places < len(held_hashes)
        candidates[candidates] = held_hashes[places[candidates]] == numbers[rows[candidates]]
        rows, places = rows[candidates], places[candidates]
        if not rows.size:
            break
        equal = pc.equal(held_keys.take(pa.array(places)), keys.take(pa.array(at[rows])))
        same = equal.to_numpy(zero_copy_only=False)
        positions[rows[same]] = places[same]
        rows, places = rows[~same], places[~same] + 1
    return positions
