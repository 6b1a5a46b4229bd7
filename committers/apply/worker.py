"""The worker process that applies parts of a version. Its protocol is JSON lines on stdin and stdout.

It reads two lines: the URLs of log and store, and later its works. It answers with a line for each event. Its
standard input stays open until its parent ends; then this process ends too, in any state, as if it were
killed. Its command line contains no secret.
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
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.wal.open_log import open_log

LOGGER = "tidegate"
PROGRAM = (
    "import sys; sys.path[:] = filter(None, sys.path);"  # not the current folder: it may have a tidegate too
    " from tidegate.committers.apply.worker import main; main()"
)
"""The program of such a process: ``python -c PROGRAM``."""


class Went(msgspec.Struct, frozen=True, tag="went"):
    """A sign of progress: log and store are open, or one more chunk is in the store."""


class Said(msgspec.Struct, frozen=True, tag="said"):
    """A warning for the log of the parent."""

    logger: str
    level: int
    text: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The error that ended the job: the name of a class in ``errors``, or '' for any other error."""

    error: str
    message: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The end: every work is applied and sealed, durably."""


Told: TypeAlias = Went | Said | Failed | Done


def main() -> None:
    """Open log and store, do the works once they arrive, report the outcome, and end."""
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
    """The parent ended before it had sent everything."""


def _do(given: BinaryIO, went: Callable[[], None]) -> None:
    """Open log and store, which imports their modules and connects to nothing yet; then do the works."""
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
    """Build the function that writes to the parent. Other output goes to standard error from now on."""
    out = os.dup(1)
    os.dup2(2, 1)
    one_tells = threading.Lock()

    def tell(report: Told) -> None:
        line = memoryview(msgspec.json.encode(report) + b"\n")
        try:
            with one_tells:
                while line:
                    line = line[os.write(out, line) :]
        except OSError:
            os._exit(1)  # the parent has ended

    return tell


def _end_with_parent() -> None:
    """End this process with its parent. ``sys.stdin`` is not read: its lock would be held at exit."""
    while os.read(0, 1):
        pass
    os._exit(1)  # as if killed: the work is repeatable


def _known_name(error: TidegateError) -> str:
    """Name the error's class, or its nearest base class in ``errors``."""
    return next(cls.__name__ for cls in type(error).__mro__ if BY_NAME.get(cls.__name__) is cls)


class _Forwarder(logging.Handler):
    """A handler that sends warnings to the parent's log, so that the command line logs them as its own."""

    def __init__(self, tell: Callable[[Told], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(Said(record.name, record.levelno, record.getMessage()))


if __name__ == "__main__":
    sys.exit("this is started by tidegate itself: see committers/apply/processes.py")
