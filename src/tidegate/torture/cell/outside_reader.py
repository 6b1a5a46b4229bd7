"""A reader of the user's own, in any language: a process drives it, and notes what it saw.

The protocol is that of ``conformance/README.md``. It reads in parallel with the cell's own
readers, and the same judge judges it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from tidegate.base.decoders import json_decoder
from tidegate.errors import BY_NAME, ConfigError, SnapshotExpiredError, TidegateError
from tidegate.testing.conformance.program import (
    Reader,
    ReaderFailedError,
    ReaderRaisedError,
    UnsupportedRequestError,
)
from tidegate.torture.cell.readers import LOOK_S, Notes, Plan
from tidegate.torture.history.files import Recorder

NAME = KIND = "outside"
"""The name of the process, and the kind of its clients in the history."""
OUTPUT, PID_FILE = "reader.txt", "reader.pid"
"""In the cell's work folder: the reader's standard error, and its process group while it runs."""
WRITERS_ONLY = ("create", "replication")
"""Options of a store that only writers need."""
FAILED = 1


class Ending:
    """Whether the end was requested, by SIGTERM or since the time is over."""

    def __init__(self, seconds_max: float) -> None:
        self._signals: list[int] = []
        self._end = time.monotonic() + seconds_max
        signal.signal(signal.SIGTERM, lambda number, _: self._signals.append(number))

    def is_set(self) -> bool:
        return bool(self._signals) or time.monotonic() > self._end

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return self.is_set()


def main(plan_json: str) -> int:
    """Read until SIGTERM, then once more; return 0, or FAILED if the reader broke the protocol."""
    plan = json_decoder(Plan).decode(plan_json)
    work, ending = Path(plan.folder, "work"), Ending(plan.seconds_max)
    try:
        with (
            Recorder(Path(plan.folder), plan.name, role="reader") as recorder,
            Reader(plan.reader, work / OUTPUT, plan.seconds_max) as reader,
        ):
            (work / PID_FILE).write_text(str(reader.pid))
            OutsideReader(plan, recorder, ending, reader).run()
            code = reader.close()
        (work / PID_FILE).unlink()
    except (ReaderFailedError, ConfigError) as error:
        print(f"the reader of --reader: {error}", flush=True)  # noqa: T201 - to the cell's folder
        return FAILED
    if code:
        print(f"the reader of --reader ended with exit code {code} after close", flush=True)  # noqa: T201 - likewise
    return FAILED if code else 0


def end_left(work: Path) -> None:
    """End a reader whose driving process was killed. Repeatable."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
        group = int((work / PID_FILE).read_text())
        (work / PID_FILE).unlink()
        os.killpg(group, signal.SIGKILL)


class OutsideReader(Notes):
    """The requests to the reader, and the notes of its answers."""

    def __init__(self, plan: Plan, recorder: Recorder, ending: Any, reader: Reader) -> None:
        super().__init__(KIND, plan, recorder, ending)
        self._reader, self._seen = reader, 0

    def run(self) -> None:
        """Connect one client after another, until the last round is done."""
        while self.connects_again():
            began = self.recorder.now()
            try:
                self._one_client()
            except TidegateError as error:
                self.refused(error, began)
            self.ending.wait(LOOK_S)

    def _ask(self, do: str, **arguments: Any) -> Any:
        """Ask the reader. Raises: the error that it names; ReaderFailedError: it answers nothing of use."""
        try:
            return self._reader.ask(do, **arguments)
        except UnsupportedRequestError:
            raise ReaderFailedError(f"it does not support {do!r}, which this command needs") from None
        except ReaderRaisedError as error:
            if error.name not in BY_NAME:
                raise ReaderFailedError(f"it raised {error}: there is no such error") from None
            raise BY_NAME[error.name](error.message) from None

    def _one_client(self) -> None:
        where = self.plan.where
        options = {name: value for name, value in where.store_options.items() if name not in WRITERS_ONLY}
        self._ask("connect", url=where.store, namespace=where.namespace, options=options)
        while not self._ask("version"):
            if self.ending.wait(LOOK_S):
                return
        self.connected()
        while self.another_round():
            self._round()
            self.ending.wait(LOOK_S)

    def _round(self) -> None:
        began = self.recorder.now()
        self._seen = self._ask("version")
        self.looked(self._seen, began)
        self._newest(self.chosen_tables())
        self._scan_newest(self.chance.choice(self.plan.workloads))
        self._snapshot(self._seen - 1 if self._seen > 1 and self.chance.random() < 0.3 else 0)

    def _newest(self, tables: list[str]) -> None:
        """Read keys of several tables at the newest version, in one request: it names their one version."""
        keys, began = {table: self.asked(table) for table in tables}, self.recorder.now()
        answer = self._ask("get_many", keys=_keys(keys))
        number = self.recorder.number()
        with self.held(number, answer["version"], began):
            self._note_rows(keys, answer, began, number)

    def _scan_newest(self, table: str) -> None:
        number, began = self.recorder.number(), self.recorder.now()
        answer = self._ask("scan", table=table)
        with self.held(number, answer["version"], began):
            self.scanned(table, _scanned(answer), began, number)

    def _snapshot(self, version: int) -> None:
        number, began = self.recorder.number(), self.recorder.now()
        try:
            taken = self._ask("snapshot", **({"version": version} if version else {}))
            with self.held(number, taken["version"], began, version):
                for _ in range(2):
                    self._read_twice(taken, number)
                self._ask("release", snapshot=taken["snapshot"])
        except SnapshotExpiredError as error:
            self.failed("snapshot", error, began, number)

    def _read_twice(self, taken: dict[str, Any], number: int) -> None:
        keys, began = {table: self.asked(table) for table in self.chosen_tables()}, self.recorder.now()
        answer = self._ask("get_many", keys=_keys(keys), snapshot=taken["snapshot"])
        self._check_version(taken, answer)
        self._note_rows(keys, answer, began, number)
        table, began = self.chance.choice(self.plan.workloads), self.recorder.now()
        answer = self._ask("scan", table=table, snapshot=taken["snapshot"])
        self._check_version(taken, answer)
        self.scanned(table, _scanned(answer), began, number)

    def _note_rows(
        self, by_table: dict[str, list[bytes]], answer: dict[str, Any], began: int, number: int
    ) -> None:
        for table, keys in by_table.items():
            values = zip(keys, answer["rows"][table], strict=True)
            rows = {key: _value(value) for key, value in values if value is not None}
            self.read(table, keys, rows, began, number)

    def _check_version(self, taken: dict[str, Any], answer: dict[str, Any]) -> None:
        if answer["version"] != taken["version"]:
            raise ReaderFailedError(
                f"a read of a snapshot of version {taken['version']} is of version {answer['version']}"
            )


def _keys(by_table: dict[str, list[bytes]]) -> dict[str, list[list[str]]]:
    return {table: [[key.hex()] for key in keys] for table, keys in by_table.items()}


def _scanned(answer: dict[str, Any]) -> dict[bytes, Any]:
    rows = {bytes.fromhex(key[0]): _value(value) for key, value in answer["rows"]}
    if len(rows) != len(answer["rows"]):
        raise ReaderFailedError(f"a scan has {len(answer['rows'])} rows of {len(rows)} keys")
    return rows


def _value(value: Any) -> Any:
    """Return a canonical value as ``tidegate.connect`` does: bytes, or a dict of text."""
    return value if isinstance(value, dict) else bytes.fromhex(value)
