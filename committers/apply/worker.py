"""A local process that applies works: what it is told, what it tells, and what it does.

It reads two lines of JSON from standard input: where log and store are, and, maybe much later, its works.
It answers on standard output, a line of JSON each. Its standard input stays open as long as its parent
lives: when it ends, so does this process, wherever it is, as if it were killed. Nothing secret stands on
its command line.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import BinaryIO, TypeAlias

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.committers.apply import apply
from tidegate.committers.apply.apply import ApplyWork
from tidegate.errors import BY_NAME, TidegateError
from tidegate.options import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.wal.open_log import open_log

LOGGER = "tidegate"
PROGRAM = (
    "import sys; sys.path[:] = filter(None, sys.path);"  # not the current folder: it may have a tidegate too
    " from tidegate.committers.apply.worker import main; main()"
)
"""What Python runs in such a process: ``python -c PROGRAM``."""


class Went(msgspec.Struct, frozen=True, tag="went"):
    """A sign of progress: log and store are opened, or one more chunk is in the store."""


class Said(msgspec.Struct, frozen=True, tag="said"):
    """A warning for the log of the parent."""

    logger: str
    level: int
    text: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The job ended with this error: the name of a class in ``errors``, or empty for any other error."""

    error: str
    message: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Every work is applied and sealed, durably."""


Told: TypeAlias = Went | Said | Failed | Done


def main() -> None:
    """Open log and store, do the works once they come, tell how it went, end."""
    tell = _reporter()
    logger = logging.getLogger(LOGGER)
    logger.addHandler(_Forwarder(tell))
    logger.propagate = False
    try:
        with open(0, "rb", closefd=False) as given:
            _do(given, lambda: tell(Went()))
    except _ParentEndedError:
        return
    except TidegateError as error:
        tell(Failed(_known_name(error), str(error)))
    except Exception as error:  # noqa: BLE001 - a defect; the parent says that there was one
        traceback.print_exc()
        tell(Failed("", f"{type(error).__name__}: {error}"))
    else:
        tell(Done())


class _ParentEndedError(Exception):
    """It had not said all."""


def _do(given: BinaryIO, went: Callable[[], None]) -> None:
    """Opening imports what belongs to log and store, and connects to nothing yet."""
    where = json_decoder(Endpoints).decode(_line(given))
    with (
        contextlib.closing(open_log(where.wal, where.namespace, where.wal_options)) as log,
        contextlib.closing(open_store(where.store, where.namespace, where.store_options)) as store,
    ):
        works = json_decoder(tuple[ApplyWork, ...]).decode(_line(given))
        threading.Thread(target=_end_with_parent, daemon=True).start()
        went()
        for work in works:
            apply.do(work, log, store, went)


def _line(given: BinaryIO) -> bytes:
    line = given.readline()
    if not line.endswith(b"\n"):
        raise _ParentEndedError
    return line


def _reporter() -> Callable[[Told], None]:
    """Writes to the parent. What else is printed to standard output goes to standard error from now on."""
    out = os.dup(1)
    os.dup2(2, 1)
    one_tells = threading.Lock()

    def tell(told: Told) -> None:
        line = memoryview(msgspec.json.encode(told) + b"\n")
        try:
            with one_tells:
                while line:
                    line = line[os.write(out, line) :]
        except OSError:
            os._exit(1)  # nobody listens: the parent has ended

    return tell


def _end_with_parent() -> None:
    """Not a read of ``sys.stdin``: its lock would be held when the interpreter ends."""
    while os.read(0, 1):
        pass
    os._exit(1)  # as if killed: what is under way is repeatable


def _known_name(error: TidegateError) -> str:
    """The error's class, or the nearest one above it that ``errors`` lists."""
    return next(cls.__name__ for cls in type(error).__mro__ if BY_NAME.get(cls.__name__) is cls)


class _Forwarder(logging.Handler):
    """Warnings go to the parent's log, so that the command line says them as its own."""

    def __init__(self, tell: Callable[[Told], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(Said(record.name, record.levelno, record.getMessage()))


if __name__ == "__main__":
    sys.exit("this is started by tidegate itself: see committers/apply/processes.py")
