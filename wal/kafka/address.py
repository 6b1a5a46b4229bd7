"""Addresses of blobs in a Kafka topic: ``<topic id>:<partition>:<bytes>:<offset>[,<offset>...]``.

A blob is one message, or several when it is longer than the largest message. Other producers may
write between its pieces, so each piece has its offset. The address contains the topic's id, because
a topic that is deleted and created again counts its offsets from 0 (T20).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tidegate.errors import CorruptError

ADDRESS = re.compile(
    r"(?P<topic_id>[A-Za-z0-9+/_-]{22}):(?P<partition>\d{1,9}):(?P<bytes>\d{1,10}):(?P<offsets>\d{1,18}(,\d{1,18})*)",
    re.ASCII,
)
PIECES_MAX = 10_000


class Address(NamedTuple):
    """A blob's location. The offsets of its pieces ascend."""

    topic_id: str
    partition: int
    length: int
    offsets: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.topic_id}:{self.partition}:{self.length}:{','.join(map(str, self.offsets))}"


def parse_address(text: str, where: str) -> Address:
    """Parse an address. Raises: CorruptError when no Kafka log returns such an address."""
    match = ADDRESS.fullmatch(text)
    offsets = () if match is None else tuple(map(int, match["offsets"].split(",")))
    if match is None or len(offsets) > PIECES_MAX or list(offsets) != sorted(set(offsets)):
        msg = f"{where}: {text[:200]!r} is not an address of this log"
        raise CorruptError(msg)
    return Address(match["topic_id"], int(match["partition"]), int(match["bytes"]), offsets)


def pieces(blob: bytes, length_max: int) -> Iterator[bytes]:
    """Split the blob into pieces of at most ``length_max`` bytes; an empty or short blob is one piece."""
    if len(blob) <= length_max:
        yield blob
        return
    view = memoryview(blob)
    for start in range(0, len(blob), length_max):
        yield bytes(view[start : start + length_max])
