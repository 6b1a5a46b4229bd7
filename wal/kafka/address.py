"""Where a blob lies in a Kafka topic: ``<topic id>:<partition>:<bytes>:<offset>[,<offset>...]``.

A blob is one message, or several when it is longer than a message may be. Other producers may
write between its pieces, so each has its offset. The topic's id stands in the address, because
a topic that is deleted and made again counts its offsets from 0 (T20).
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
    """A blob's place: its pieces' offsets are in order."""

    topic_id: str
    partition: int
    length: int
    offsets: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.topic_id}:{self.partition}:{self.length}:{','.join(map(str, self.offsets))}"


def parse_address(text: str, where: str) -> Address:
    """The address in the text. CorruptError: no Kafka log gives out such an address."""
    match = ADDRESS.fullmatch(text)
    offsets = () if match is None else tuple(map(int, match["offsets"].split(",")))
    if match is None or len(offsets) > PIECES_MAX or list(offsets) != sorted(set(offsets)):
        msg = f"{where}: {text[:200]!r} is not an address of this log"
        raise CorruptError(msg)
    return Address(match["topic_id"], int(match["partition"]), int(match["bytes"]), offsets)


def pieces(blob: bytes, length_max: int) -> Iterator[bytes]:
    """The blob in pieces of at most ``length_max`` bytes; one piece when it is empty or short."""
    if len(blob) <= length_max:
        yield blob
        return
    view = memoryview(blob)
    for start in range(0, len(blob), length_max):
        yield bytes(view[start : start + length_max])
