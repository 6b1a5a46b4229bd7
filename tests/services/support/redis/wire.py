"""What the proxy has to know of Redis's protocol (RESP, versions 2 and 3): where a request and a reply end.

Replies come in the order of requests, one for each. So neither subscriptions of RESP 2 (they get many) nor
CLIENT REPLY OFF (they get none) may pass.
"""

from __future__ import annotations

import asyncio

from services.support.proxy.relay import Asked, HostileFrameError

FRAME_BYTES_MAX = 512 * 2**20
LINE_BYTES_MAX = 2**16
DEPTH_MAX = 20

# The word behind these is a part of what is asked for, not of the data: a function, a script, a subcommand.
NAMED_FUNCTIONS = {"FCALL", "FCALL_RO", "EVALSHA", "EVALSHA_RO"}
CONTAINERS = {"ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "FUNCTION", "MEMORY", "OBJECT", "SCRIPT"}
LOGINS = {"AUTH", "HELLO", "SELECT"}

LINES = b"+-:_,#("
STRINGS = b"$=!"
LISTS = {ord("*"): 1, ord("~"): 1, ord(">"): 1, ord("%"): 2, ord("|"): 2}  # frames per counted element


class RedisWire:
    """A request is a list of strings, or a line (an inline command)."""

    any_order = False

    async def read_request(self, reader: asyncio.StreamReader) -> bytes:
        line = await _line(reader)
        if not line.startswith(b"*"):
            return line
        found = _Found(line)
        for _ in range(_number(line)):
            head = await _line(reader)
            if not head.startswith(b"$"):
                raise HostileFrameError
            await found.string(reader, head)
        return found.frame()

    async def read_reply(self, reader: asyncio.StreamReader) -> bytes:
        found = _Found()
        await found.value(reader, 0)
        return found.frame()

    def asked(self, frame: bytes) -> Asked:
        said = words(frame, 2)
        name = said[0].upper().decode("ascii", "replace") if said else ""
        if len(said) < 2 or name not in NAMED_FUNCTIONS | CONTAINERS:
            return Asked((name,))
        of = said[1].decode("utf-8", "replace")
        return Asked((f"{name} {of.upper() if name in CONTAINERS else of}", name))

    def answers(self, frame: bytes, asked: Asked) -> bool:
        return True

    def answered(self, frame: bytes, asked: Asked) -> None:
        """Requests do not refer to replies."""

    def unasked(self, frame: bytes) -> bool:
        return frame.startswith(b">")

    def is_login(self, frame: bytes) -> bool:
        return self.asked(frame).kinds[0] in LOGINS


class _Found:
    """The pieces of one frame, in order."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces, self._size = list(pieces), 0

    def frame(self) -> bytes:
        return b"".join(self._pieces)

    async def string(self, reader: asyncio.StreamReader, head: bytes) -> None:
        self._pieces.append(head)
        size = _number(head)
        if size >= 0:  # -1 is nothing at all, not an empty string
            self._size += size
            if self._size > FRAME_BYTES_MAX:
                raise HostileFrameError
            self._pieces.append(await reader.readexactly(size + 2))

    async def value(self, reader: asyncio.StreamReader, depth: int) -> None:
        line = await _line(reader)
        if depth > DEPTH_MAX:
            raise HostileFrameError
        kind = line[0]
        if kind in STRINGS:
            await self.string(reader, line)
            return
        self._pieces.append(line)
        if kind in LISTS:
            for _ in range(LISTS[kind] * _number(line)):
                await self.value(reader, depth + 1)
            if kind == ord("|"):  # attributes of the value that follows
                await self.value(reader, depth)
        elif kind not in LINES:
            raise HostileFrameError


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        raise HostileFrameError from None
    if len(line) > LINE_BYTES_MAX or not line.rstrip(b"\r\n"):
        raise HostileFrameError
    return line


def _number(line: bytes) -> int:
    try:
        number = int(line[1:])
    except ValueError:
        raise HostileFrameError from None
    if not -1 <= number <= FRAME_BYTES_MAX:
        raise HostileFrameError
    return number


def words(frame: bytes, count: int = FRAME_BYTES_MAX) -> list[bytes]:
    """A request's strings, at most so many: the command's name and its arguments."""
    if not frame.startswith(b"*"):
        return frame.split()[:count]
    found, at = [], frame.index(b"\n") + 1
    while at < len(frame) and len(found) < count:
        start = frame.index(b"\n", at) + 1
        end = start + int(frame[at + 1 : start])
        found.append(frame[start:end])
        at = end + 2
    return found
