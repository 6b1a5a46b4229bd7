"""What the proxy has to know of Cassandra's native protocol, version 4: frames, and the CQL in them.

Version 5 wraps frames in checksummed segments, and compressed ones cannot be read: a client that uses them is
hung up on. tidegate's and the tests' own use neither.
"""

from __future__ import annotations

import asyncio
import enum
import struct
from collections.abc import Sequence

from services.support.proxy.relay import Asked, HostileFrameError

FRAME_BYTES_MAX = 256 * 2**20
HEAD = struct.Struct(">BBhBi")  # version, flags, stream, opcode, size of what follows
VERSIONS = {3, 4}
COMPRESSED, TRACED, PAYLOAD, WARNED = 0x01, 0x02, 0x04, 0x08  # flags
REPLY = 0x80  # in the version
EVENTS = -1  # the stream of what the server says unasked


class Op(enum.IntEnum):
    """Kinds of frames."""

    ERROR = 0x00
    STARTUP = 0x01
    READY = 0x02
    AUTHENTICATE = 0x03
    OPTIONS = 0x05
    SUPPORTED = 0x06
    QUERY = 0x07
    RESULT = 0x08
    PREPARE = 0x09
    EXECUTE = 0x0A
    REGISTER = 0x0B
    EVENT = 0x0C
    BATCH = 0x0D
    AUTH_CHALLENGE = 0x0E
    AUTH_RESPONSE = 0x0F
    AUTH_SUCCESS = 0x10


PREPARED = 4  # a kind of RESULT
ADDRESSES_IN = tuple(b"\0\6system\0%c%s" % (len(table), table) for table in (b"local", b"peers", b"peers_v2"))
AS_VALUE, IN_EVENT = b"\0\0\0\4\x7f\0\0", b"\4\x7f\0\0"  # an address but for its last byte


class CassandraWire:
    """A request is named by its kind, and where it has one by its CQL too: ``"EXECUTE INSERT INTO ..."``.

    An EXECUTE holds a number that the server gave for the CQL of a PREPARE: the wire keeps those that it
    sees. moved: what clients are told of the nodes' addresses, in place of what the nodes say (both the last
    number of 127.0.0.x): so they stay on the proxy when they look for the other nodes.
    """

    any_order = True

    def __init__(self, moved: dict[int, int] | None = None) -> None:
        self._prepared: dict[bytes, str] = {}
        self._moved = dict(moved or {})

    # -- frames -----------------------------------------------------------------------------------

    async def read_request(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readexactly(HEAD.size)
        version, flags, _, opcode, size = HEAD.unpack(head)
        fits = version & ~REPLY in VERSIONS and opcode in Op._value2member_map_ and not flags & COMPRESSED
        if not fits or not 0 <= size <= FRAME_BYTES_MAX:
            raise HostileFrameError
        return head + await reader.readexactly(size)

    async def read_reply(self, reader: asyncio.StreamReader) -> bytes:
        return self._as_told(await self.read_request(reader))

    def asked(self, frame: bytes) -> Asked:
        _, _, stream, opcode, _ = HEAD.unpack_from(frame)
        kind = Op(opcode).name
        text = self.cql(frame)
        return Asked((f"{kind} {text}", kind) if text else (kind,), correlation_id=stream)

    def answers(self, frame: bytes, asked: Asked) -> bool:
        return HEAD.unpack_from(frame)[2] == asked.correlation_id

    def unasked(self, frame: bytes) -> bool:
        return HEAD.unpack_from(frame)[2] == EVENTS

    def is_login(self, frame: bytes) -> bool:
        """Also USE: the statements that follow mean tables of that keyspace."""
        opcode = HEAD.unpack_from(frame)[3]
        return opcode in (Op.STARTUP, Op.AUTH_RESPONSE) or (
            opcode == Op.QUERY and self.cql(frame).upper().startswith("USE ")
        )

    def answered(self, frame: bytes, asked: Asked) -> None:
        """Keep the number that the server gives for a statement."""
        body = _Body(frame)
        if asked.kinds[-1] == Op.PREPARE.name and body.opcode == Op.RESULT and body.number(4) == PREPARED:
            self._prepared[body.bytes(2)] = asked.kinds[0].removeprefix("PREPARE ")

    # -- what they hold ---------------------------------------------------------------------------

    def cql(self, frame: bytes) -> str:
        """Of a request; of a BATCH every different statement, with "; " between them. Empty where there is
        none, and for what was not prepared through this proxy."""
        try:
            return self._cql(_Body(frame))
        except (struct.error, IndexError):
            raise HostileFrameError from None

    def _cql(self, body: _Body) -> str:
        if body.opcode in (Op.QUERY, Op.PREPARE):
            return body.text()
        if body.opcode == Op.EXECUTE:
            return self._prepared.get(body.bytes(2), "")
        if body.opcode != Op.BATCH:
            return ""
        body.number(1)  # logged or not
        found = []
        for _ in range(body.number(2)):
            prepared = body.number(1)
            found.append(self._prepared.get(body.bytes(2), "") if prepared else body.text())
            for _ in range(body.number(2)):
                body.bytes(4)
        return "; ".join(dict.fromkeys(found))

    def _as_told(self, frame: bytes) -> bytes:
        """The same, and the nodes are where the proxy listens."""
        opcode = HEAD.unpack_from(frame)[3]
        if opcode == Op.EVENT:
            return self._move(frame, IN_EVENT)
        if opcode == Op.RESULT and any(table in frame[:100] for table in ADDRESSES_IN):
            return self._move(frame, AS_VALUE)
        return frame

    def _move(self, frame: bytes, before: bytes) -> bytes:
        for theirs, ours in self._moved.items():
            frame = frame.replace(before + bytes([theirs]), before + bytes([ours]))
        return frame


class _Body:
    """Reads what follows a frame's head, in order. struct.error, IndexError: it ends too early."""

    def __init__(self, frame: bytes) -> None:
        self._frame, self._at = frame, HEAD.size
        is_reply, flags, self.opcode = frame[0] & REPLY, frame[1], frame[4]
        if is_reply and flags & TRACED:
            self._take(16)
        if is_reply and flags & WARNED:
            for _ in range(self.number(2)):
                self.bytes(2)
        if flags & PAYLOAD:
            for _ in range(self.number(2)):
                self.bytes(2)
                self.bytes(4)

    def number(self, size: int) -> int:
        found = self._take(size)
        return int.from_bytes(found, "big", signed=size == 4)

    def bytes(self, size_bytes: int) -> bytes:
        """What is as long as the number before it says; nothing where that is negative."""
        return self._take(max(0, self.number(size_bytes)))

    def text(self) -> str:
        return self.bytes(4).decode("utf-8", "replace")

    def _take(self, size: int) -> bytes:
        found = self._frame[self._at : self._at + size]
        if len(found) < size:
            raise IndexError
        self._at += size
        return found


def named(kinds: Sequence[str]) -> bool:
    """Whether these are kinds of requests."""
    return all(kind in Op.__members__ for kind in kinds)
