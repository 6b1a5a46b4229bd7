"""A driver process that counts its I/O, or dies by SIGKILL at the n-th one.

    TIDEGATE_IO_CRASH=count      python -m crash.sweep.io_crash <arguments of driver_process>
    TIDEGATE_IO_CRASH=before@137 python -m crash.sweep.io_crash <the same arguments>

``count`` ends with one JSON line that lists every point: its kind, the step of the protocol that did it, the
file, and whether it can be torn. ``before@n`` dies instead of doing the n-th, ``after@n`` right after it,
``torn@n`` after half of it: half of the bytes of a write, half of the ``-wal`` frames of a COMMIT. ``,old``
after any of them, or alone, makes everything staged look as if it had been staged long ago, so that it is
dropped as soon as nothing needs it.

Points are writes, syncs, renames, unlinks, truncations, the making of files and folders, and of SQLite every
statement that writes, every COMMIT of those, every close. Nothing but this process is touched, and nothing in
the library imports this.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import pathlib
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from support import driver_process
from tidegate.testing.process.forked import WithoutPandas

ENVIRONMENT_VARIABLE = "TIDEGATE_IO_CRASH"
MODES = ("before", "after", "torn")

STEPS = {
    "tidegate.committers.opening.open": "open",
    "tidegate.committers.steps.epoch": "open",
    "tidegate.committers.commit": "manifest",
    "tidegate.committers.steps.decide": "decide",
    "tidegate.committers.apply.apply": "apply",
    "tidegate.committers.steps.seal": "apply",
    "tidegate.committers.steps.publish": "publish",
    "tidegate.committers.steps.retire": "retire",
    "tidegate.committers.steps.trim": "trim",
    "tidegate.testing.arrow_barrier": "stage",
    "tidegate.testing.process.driver": "end",
}
"""Steps by the innermost of these modules on the stack, unless the function is listed here:"""
FUNCTIONS = {"summarise_if_due": "summary", "seal": "seal", "_write": "checkpoint"}
FUNCTIONS_IN = ("tidegate.committers.", "tidegate.sinks.", "tidegate.testing.process.driver")

Result = TypeVar("Result")


class Point(NamedTuple):
    """One I/O: its kind, the step of the protocol, the file; ``torn``: half of it can be done."""

    kind: str
    step: str
    file: str
    torn: bool


def step() -> str:
    """Return the step of the protocol that the caller is in."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if function in FUNCTIONS and module.startswith(FUNCTIONS_IN):
            return FUNCTIONS[function]
        if module in STEPS:
            return STEPS[module]
        frame = frame.f_back
    return "end"


class Meter:
    """A counter of this process's I/O, which ends the process at the requested point."""

    def __init__(self, specification: str) -> None:
        action, *more = specification.split(",")
        if action == "old":
            action, more = "count", ["old", *more]
        mode, _, nth = action.partition("@")
        if mode not in (*MODES, "count") or (mode == "count") != (not nth) or set(more) - {"old"}:
            msg = f"{ENVIRONMENT_VARIABLE}: {specification!r} is not count, old, or one of {MODES} with @n"
            raise ValueError(msg)
        self.mode, self.at, self.old = mode, int(nth or 0), bool(more)
        self.points: list[Point] = []
        self.above: frozenset[str] = frozenset()
        """Folders above the place, which are synced as well: their number does not depend on the driver."""
        self._inside = False

    def io(
        self,
        kind: str,
        file: object,
        do: Callable[[], Result],
        half: Callable[[], object] | None = None,
    ) -> Result:
        """Do it, as one point that includes the I/O of ``do`` itself. ``half`` does half of it."""
        if self._inside:
            return do()
        name = os.path.basename(os.fsdecode(file)) if isinstance(file, str | bytes | os.PathLike) else ""  # noqa: PTH119
        self.points.append(Point(kind, step(), name, half is not None))
        hit = self.mode if len(self.points) == self.at else ""
        self._inside = True
        try:
            if hit == "before":
                die()
            if hit == "torn":
                if half is not None:
                    half()
                die()
            return do()
        finally:
            if hit == "after":
                die()
            self._inside = False


def die() -> None:
    """Send SIGKILL to this process: nothing is flushed, nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


# -- files ------------------------------------------------------------------------------------------


def _file_of(fd: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - called from within patched paths
    return ""


def patch_files(meter: Meter) -> None:
    """Make a point of every change to files through ``os``, ``open`` and ``pathlib``."""
    write, fsync = os.write, os.fsync

    def counted_write(fd: int, content: Any) -> int:
        view = memoryview(content)
        half = (lambda: write(fd, view[: len(view) // 2])) if len(view) > 1 else None
        return meter.io("write", _file_of(fd), lambda: write(fd, view), half)

    def counted_fsync(fd: int) -> None:
        file = _file_of(fd)
        if file in meter.above:
            fsync(fd)
            return
        meter.io("fsync", file, lambda: fsync(fd))
        if meter.old and file.endswith(".seg"):
            os.utime(fd, (1, 1))

    setattr(os, "write", counted_write)  # noqa: B010 - a type checker would compare the overloads
    setattr(os, "fsync", counted_fsync)  # noqa: B010
    for name in ("fdatasync", "ftruncate"):
        _patch(meter, os, name, name, lambda fd, *_: _file_of(fd))
    for name in ("rename", "replace"):
        _patch(meter, os, name, "rename", lambda _, target, *__, **___: target)
        _patch(meter, pathlib.Path, name, "rename", lambda _, target: target)
    for name in ("unlink", "remove"):
        _patch(meter, os, name, "unlink", lambda path, *_, **__: path)
    _patch(meter, pathlib.Path, "unlink", "unlink", lambda path, *_, **__: path)
    _patch(meter, os, "mkdir", "make", lambda path, *_, **__: path)
    _patch(meter, pathlib.Path, "mkdir", "make", lambda path, *_, **__: path)
    _patch_opens(meter)


def _patch(meter: Meter, owner: Any, name: str, kind: str, file: Callable[..., object]) -> None:
    plain = getattr(owner, name)

    def counted(*args: Any, **options: Any) -> Any:
        return meter.io(kind, file(*args, **options), lambda: plain(*args, **options))

    setattr(owner, name, counted)


def _patch_opens(meter: Meter) -> None:
    os_open, any_open, write_text = os.open, builtins.open, pathlib.Path.write_text

    def counted_os_open(path: Any, flags: int, *args: Any, **options: Any) -> int:
        changes = flags & os.O_TRUNC or (flags & os.O_CREAT and not os.path.exists(path))  # noqa: PTH110
        do: Callable[[], int] = functools.partial(os_open, path, flags, *args, **options)
        return meter.io("make", path, do) if changes else do()

    def counted_open(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        do: Callable[[], Any] = functools.partial(any_open, file, mode, *args, **options)
        return meter.io("make", file, do) if set(mode) & set("wax+") else do()

    def counted_write_text(path: pathlib.Path, data: str, *args: Any, **options: Any) -> int:
        half = (lambda: write_text(path, data[: len(data) // 2], *args, **options)) if len(data) > 1 else None
        return meter.io("write", path, lambda: write_text(path, data, *args, **options), half)

    setattr(os, "open", counted_os_open)  # noqa: B010
    setattr(builtins, "open", counted_open)  # noqa: B010
    setattr(io, "open", counted_open)  # noqa: B010
    setattr(pathlib.Path, "write_text", counted_write_text)  # noqa: B010


# -- SQLite -----------------------------------------------------------------------------------------

READS = ("SELECT", "PRAGMA", "EXPLAIN", "ROLLBACK")


def _connection(meter: Meter, base: Any) -> type[sqlite3.Connection]:
    """Make a class of connections whose writing statements, COMMITs and close are points.

    ``base`` is the class that the caller of ``connect`` has given.
    """

    class Counted(base):  # type: ignore[misc] # known here alone
        def __init__(self, database: str | os.PathLike[str], *args: Any, **options: Any) -> None:
            name = os.fspath(database)
            self._file = unquote(urlsplit(name).path) if name.startswith("file:") else name
            self._writing = False
            super().__init__(database, *args, **options)

        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            do: Callable[[], sqlite3.Cursor] = functools.partial(super().execute, sql, *args)
            match sql.split(None, 1)[0].upper():
                case "BEGIN":
                    self._writing = "IMMEDIATE" in sql
                    return do()
                case "COMMIT":
                    if not self._writing:
                        return do()
                    self._writing = False
                    return meter.io("sql commit", self._file, do, lambda: self._commit_half(do))
                case first if first in READS and "journal_mode" not in sql:
                    return do()
                case _:
                    return meter.io("sql write", self._file, do)

        def executemany(self, sql: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
            do: Callable[[], sqlite3.Cursor] = functools.partial(super().executemany, sql, rows)
            return meter.io("sql write", self._file, do)

        def executescript(self, script: str, /) -> sqlite3.Cursor:
            cursor: sqlite3.Cursor = self.cursor()
            for statement in _statements(script):
                cursor = self.execute(statement)
            return cursor

        def close(self) -> None:
            meter.io("sql close", self._file, super().close)

        def _commit_half(self, commit: Callable[[], object]) -> None:
            """Commit as when the process dies during the writes of a COMMIT: some of its frames are there."""
            wal = f"{self._file}-wal"
            before = os.stat(wal).st_size if os.path.exists(wal) else 0  # noqa: PTH110, PTH116
            commit()
            after = os.stat(wal).st_size  # noqa: PTH116
            if after > before:  # otherwise it restarted at the front, and its end is unknown
                os.truncate(wal, (before + after) // 2)

    return Counted


def _statements(script: str) -> Iterator[str]:
    held = ""
    for piece in script.split(";"):
        held += piece
        if held.strip() and sqlite3.complete_statement(held + ";"):
            yield held
            held = ""
        elif held.strip():
            held += ";"
        else:
            held = ""


def patch_sqlite(meter: Meter) -> None:
    """Count every connection made from here on."""
    plain, counted = sqlite3.connect, functools.cache(functools.partial(_connection, meter))

    def counted_connect(database: Any, *args: Any, **options: Any) -> sqlite3.Connection:
        options["factory"] = counted(options.get("factory", sqlite3.Connection))
        made: sqlite3.Connection = plain(database, *args, **options)
        return made

    setattr(sqlite3, "connect", counted_connect)  # noqa: B010


# -- the process ------------------------------------------------------------------------------------


def run(specification: str, argv: Sequence[str] | None = None) -> int:
    """Run a driver in this process with its I/O counted; return its exit code. The process is spoilt then."""
    meter = Meter(specification)
    log = Path(urlsplit(driver_process.arguments(argv).wal).path)
    meter.above = frozenset(map(str, log.parent.parents))
    patch_files(meter)
    patch_sqlite(meter)
    code = driver_process.main(argv)
    meter._inside = True
    driver_process.say("io", points=meter.points)
    return code


if __name__ == "__main__":
    sys.meta_path.insert(0, WithoutPandas())
    sys.exit(run(os.environ.get(ENVIRONMENT_VARIABLE, "count")))
