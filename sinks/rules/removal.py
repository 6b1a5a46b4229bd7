"""The note that a removed store has in place of its driver's name.

``tidegate store remove`` claims the removed store once more, under the epoch of its own Open, with this note
instead of a driver's name. The claim fences every older driver there (I6), and each read of the pointer shows
the note. A driver that takes the store up again claims a higher epoch, with its own name: the note is gone.
"""

from __future__ import annotations

import datetime

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.base.text import time_of
from tidegate.base.urls import redact
from tidegate.errors import CorruptError
from tidegate.sinks.records import Pointer
from tidegate.wal.record import Count

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
SUCCESSOR_CHARS_MAX = 1_000


class Removal(msgspec.Struct, frozen=True):
    """The note: the log's last decided version when the store was removed, the time, and the successor's URL.

    ``successor`` has no login; '' means that the note names none.
    """

    removed_after: Count
    removed_at_us: Count
    successor: str = ""

    def as_writer(self) -> str:
        """Encode the note as the name that a claim stores."""
        return msgspec.json.encode(self).decode()


def removal_in(where: str, pointer: Pointer) -> Removal | None:
    """Decode the note; None: the store was not removed.

    Raises: CorruptError: it is none of tidegate's. A URL that may not be shown is refused, too.
    """
    if not pointer.is_removed:
        return None
    try:
        removal = json_decoder(Removal).decode(pointer.writer)
    except (msgspec.MsgspecError, UnicodeError):
        removal = None
    if removal is None or len(removal.successor) > SUCCESSOR_CHARS_MAX or not _is_shown(removal.successor):
        raise CorruptError(
            f"{where}: the pointer names a removal of this store that cannot be read: repeat `tidegate store"
            " remove NAME`, or add the store again with `tidegate store add NAME=URL`"
        )
    return removal


def described(where: str, pointer: Pointer) -> str:
    """Describe a removed store: since when, and the version that it keeps. Raises: as ``removal_in``."""
    removal = removal_in(where, pointer)
    assert removal is not None
    when = time_of(EPOCH + datetime.timedelta(microseconds=removal.removed_at_us))
    successor = f"; its successor is {removal.successor}" if removal.successor else ""
    return (
        f"{where} was removed from the namespace at {when}, when version {removal.removed_after} was the"
        f" newest: it keeps version {pointer.visible}, and no later one becomes visible there{successor}"
    )


def _is_shown(url: str) -> bool:
    return redact(url) == url and "***" not in url
