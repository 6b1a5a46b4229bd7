"""The acks of tasks: receipts of the rows that they staged, and the bytes in which the driver gets them."""

from __future__ import annotations

import msgspec

from tidegate.base.decoders import msgpack_decoder
from tidegate.errors import CorruptError
from tidegate.wal.record import UNREADABLE, Count, FrameRef


class Refusal(msgspec.Struct, frozen=True):
    """A task's refusal of a row: the error's class name and its message."""

    error: str
    message: str


class StateReads(msgspec.Struct, frozen=True, array_like=True):
    """How a task read its state.

    ``hits``: keys whose value was in its host's cache. ``absent``: keys that the cache knew not to
    exist. ``misses``: keys that were read from the store. ``cache_bytes``: memory the cache takes
    now. ``seconds``: time spent reading. ``disk_bytes``: what its host's cache has on disks.
    ``moved``: bytes that it moved between memory and disks, by the reason.
    """

    hits: Count = 0
    absent: Count = 0
    misses: Count = 0
    cache_bytes: Count = 0
    seconds: float = 0.0
    disk_bytes: Count = 0
    moved: dict[str, Count] = {}


class CallShare(msgspec.Struct, frozen=True, array_like=True):
    """A task's share of one call: its changes that the task was given, their bytes, the time that they took.

    ``call`` is its number in the transaction. ``bytes`` are those of keys and values, ``seconds``
    those of the merge with the call's state, or of its function. ``ties`` are as in a ``Step``.
    """

    call: Count
    rows: Count = 0
    bytes: Count = 0
    seconds: float = 0.0
    ties: Count = 0


class Ack(msgspec.Struct, frozen=True):
    """A task's receipt: everything it names is durable in the log.

    With a ``refusal`` the task met a bad row, and its frames are orphans. ``host`` is the location
    at which it ran, ``executor`` the executor, empty where it has no name. ``runs`` are digests of
    the output of an earlier stage's tasks, by task, where rows came from one. ``given`` are the
    number of the task's input rows, and their bytes. ``calls`` are its shares of the transaction's calls.
    """

    attempt: str
    task: Count
    task_attempt: str
    host: str
    frames: tuple[FrameRef, ...]
    rows: Count
    refusal: Refusal | None = None
    executor: str = ""
    state: StateReads | None = None
    runs: dict[str, str] = {}
    given: tuple[Count, Count] = (0, 0)
    calls: tuple[CallShare, ...] = ()


_msgpack = msgspec.msgpack.Encoder(order="deterministic")
_ack_decoder = msgpack_decoder(Ack)


def encode_ack(ack: Ack) -> bytes:
    """Encode an ack as MessagePack, the form in which it travels from a task to the driver."""
    return _msgpack.encode(ack)


def decode_ack(content: bytes) -> Ack:
    """Decode an ack, inverting ``encode_ack``. Raises: CorruptError, these bytes are no ack."""
    try:
        return _ack_decoder.decode(content)
    except UNREADABLE as error:
        msg = f"a task returned an ack that cannot be read: {error}"
        raise CorruptError(msg) from error
