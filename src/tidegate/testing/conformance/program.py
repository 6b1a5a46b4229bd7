"""A reader under test, as a process: it is started, asked, and ended."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.base.urls import scheme_of
from tidegate.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

REPLY_S = 60.0
"""The time that a reader may take for a reply, besides the time that the request allows it."""
REPLY_BYTES_MAX = 256 * 1024 * 1024
END_S = 5.0
READ_BYTES = 1 << 16
SHOWN = 300
LAST_BYTES = 64 * 1024
"""The end of what a reader has written to standard error, in which its last line is looked for."""


class ReaderFailedError(Exception):
    """The program broke the protocol: it ended, was silent, or gave a reply that is none."""


class UnsupportedRequestError(Exception):
    """The reader does not support the request."""


class ReaderRaisedError(Exception):
    """The reader's reply is an error: its ``name``, and the message."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name, self.message = name, message


def words_of(command: str) -> list[str]:
    """Parse a reader's command. Raises: ConfigError: it cannot be parsed, or there is no such program."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(
            f"the reader's command cannot be parsed: {error}; quote it as a shell does"
        ) from None
    if not words:
        raise ConfigError("the reader's command is empty: give a program that speaks the protocol")
    if shutil.which(words[0]) is None:
        if scheme_of(words[0]):  # not shown: it may have a login, which a space cut
            raise ConfigError("the reader's command is a URL, and must be a program that speaks the protocol")
        raise ConfigError(f"the reader {words[0]!r} is no program: check its path, and who may run it")
    return words


class Reader:
    """The process of a reader under test. One thread at a time; it is a context manager.

    The process has a group of its own: ``end`` ends what it has started, too. Its standard error is in the
    file ``output``.
    """

    def __init__(self, command: str, output: Path, reply_s: float = REPLY_S) -> None:
        words = words_of(command)
        self._reply_s, self._ids, self._rest = reply_s, 0, b""
        self.output = output
        with output.open("ab") as errors:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - the user's, as given
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                    bufsize=0,
                )
            except OSError as error:
                raise ConfigError(
                    f"the reader {words[0]!r} cannot be started: {error.strerror}; check who may run it"
                ) from None
        self.pid = self._process.pid

    # -- asking -------------------------------------------------------------------------------------------

    def ask(self, do: str, **arguments: Any) -> Any:
        """Send a request and return the ``ok`` of its reply.

        Raises: ReaderRaisedError, UnsupportedRequestError: the reply is one. ReaderFailedError: it is none.
        """
        self.send(do, **arguments)
        return self.receive()

    def send(self, do: str, **arguments: Any) -> None:
        """Send a request, whose reply ``receive`` returns. Raises: ReaderFailedError: it has ended."""
        self._ids += 1
        content = memoryview(msgspec.json.encode({"id": self._ids, "do": do, **arguments}) + b"\n")
        assert self._process.stdin is not None
        fd, end = self._process.stdin.fileno(), time.monotonic() + self._reply_s
        os.set_blocking(fd, False)
        try:
            while content:
                _, writable, _ = select.select([], [fd], [], max(end - time.monotonic(), 0.0))
                if not writable:
                    raise ReaderFailedError(f"it did not read the request {do!r} within {self._reply_s:g} s")
                content = content[os.write(fd, content) :]
        except OSError:
            raise ReaderFailedError(f"it ended before the request {do!r}{self._ended()}") from None

    def receive(self, extra_s: float = 0.0) -> Any:
        """Return the ``ok`` of the reply to the last request, which takes ``extra_s``. Raises: as ``ask``."""
        return self._receive(self._reply_s + extra_s)

    def _receive(self, limit_s: float) -> Any:
        line = self._line(limit_s)
        try:
            reply = json_decoder(dict[str, Any]).decode(line)
        except (msgspec.MsgspecError, UnicodeError):
            raise ReaderFailedError(f"a reply is no JSON object in a line: {line[:SHOWN]!r}") from None
        kinds = reply.keys() & {"ok", "error", "unsupported"}
        if reply.get("id") != self._ids or len(kinds) != 1:
            raise ReaderFailedError(
                f"the reply to request {self._ids} has not its id and one of ok, error, unsupported:"
                f" {line[:SHOWN]!r}"
            )
        if "unsupported" in reply:
            raise UnsupportedRequestError
        if "error" in reply:
            raise ReaderRaisedError(str(reply["error"]), str(reply.get("message", "")))
        return reply["ok"]

    def _line(self, limit_s: float) -> bytes:
        assert self._process.stdout is not None
        fd, end = self._process.stdout.fileno(), time.monotonic() + limit_s
        parts, size = [self._rest], len(self._rest)
        while b"\n" not in parts[-1]:
            ready, _, _ = select.select([fd], [], [], max(end - time.monotonic(), 0.0))
            if not ready:
                raise ReaderFailedError(f"it gave no reply within {limit_s:g} s")
            part = os.read(fd, READ_BYTES)
            size += len(part)
            if not part:
                raise ReaderFailedError(f"it ended without a reply{self._ended()}")
            if size > REPLY_BYTES_MAX:
                raise ReaderFailedError(f"a reply has more than {REPLY_BYTES_MAX:,} bytes")
            parts.append(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line

    def _ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        code = self._process.returncode
        with self.output.open("rb") as output:
            output.seek(max(output.seek(0, os.SEEK_END) - LAST_BYTES, 0))
            last = output.read(LAST_BYTES).decode(errors="replace").strip().splitlines()[-1:]
        return f", with exit code {code}" * (code is not None) + "".join(
            f"; its last line: {text[:SHOWN]}" for text in last
        )

    # -- ending -------------------------------------------------------------------------------------------

    def close(self) -> int:
        """Ask it to end, and wait; return its exit code. Raises: ReaderFailedError: it does not end."""
        self.send("close")
        if self._receive(END_S) is not True:
            raise ReaderFailedError("its reply to close is not true")
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            raise ReaderFailedError(f"it still runs {END_S:g} s after close") from None

    def end(self) -> None:
        """End the process and all that it has started. Repeatable."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
