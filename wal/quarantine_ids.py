"""Ids for refused rows: text whose hash is of a wanted key group.

Of as many texts as there are key groups one is. So salts are tried all at once: XXH64 takes the last 8 bytes
of a text in at its very end, and what stands before them is hashed once for all of them.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import xxhash

from tidegate.key_groups import HASH_SEED

SALT_BYTES = 8
SALTS_MAX = 1 << 16
STRIPE_BYTES = 32
"""XXH64 takes so many bytes in at once, and by 8 what is left at the end."""
BITS = 64
MASK = (1 << BITS) - 1
P1, P2, P3, P4 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63
"""The primes of XXH64."""


def id_in(group: int, key_groups: int, stem: str) -> bytes:
    """An id that begins with the stem, of this key group; the same stem gives the same id."""
    for number in itertools.count():
        lead = _aligned(f"{stem}-{number}-".encode())
        fitting = np.flatnonzero(
            _hashes(lead, min(4 * key_groups, SALTS_MAX)) % np.uint64(key_groups) == group
        )
        if fitting.size:
            return lead + b"%0*d" % (SALT_BYTES, fitting[0])
    raise AssertionError("some salt fits")


def _aligned(lead: bytes) -> bytes:
    """So long that a salt behind it is the 8 bytes that are taken in last."""
    lead += b"-" * (-len(lead) % SALT_BYTES)
    return lead + b"-" * SALT_BYTES if not (len(lead) + SALT_BYTES) % STRIPE_BYTES else lead


def _hashes(lead: bytes, salts: int) -> Any:
    """The hash of this text with each of the first salts behind it."""
    hashes = np.uint64(_state_behind(lead)) ^ _salts()[:salts]
    hashes = _rotated(hashes, 27) * np.uint64(P1) + np.uint64(P4)
    for shift, prime in ((33, P2), (29, P3)):
        hashes ^= hashes >> np.uint64(shift)
        hashes *= np.uint64(prime)
    return hashes ^ hashes >> np.uint64(32)


def _state_behind(lead: bytes) -> int:
    """What XXH64 holds when the salt comes: its end undone, behind a salt of zeros, which changes nothing."""
    state = xxhash.xxh64_intdigest(lead + bytes(SALT_BYTES), seed=HASH_SEED)
    for shift, prime in ((32, P3), (29, P2)):
        state ^= state >> shift ^ state >> 2 * shift
        state = state * pow(prime, -1, 1 << BITS) & MASK
    state ^= state >> 33
    state = (state - P4) * pow(P1, -1, 1 << BITS) & MASK
    return state >> 27 | state << BITS - 27 & MASK


@functools.lru_cache(maxsize=1)
def _salts() -> Any:
    """Each salt, eight digits, as XXH64 takes it in."""
    digits = b"".join(b"%0*d" % (SALT_BYTES, number) for number in range(SALTS_MAX))
    return _rotated(np.frombuffer(digits, "<u8") * np.uint64(P2), 31) * np.uint64(P1)


def _rotated(numbers: Any, bits: int) -> Any:
    return numbers << np.uint64(bits) | numbers >> np.uint64(BITS - bits)
