"""A log in files for tests of its bytes: fixtures ``log``, ``path`` and ``positions`` of three records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.wal.file import format as file_format
from tidegate.wal.file.log import FileLog

HEADER = file_format.HEADER_BYTES
RECORDS = [b"alpha", b"", b"gamma, the last"]


@pytest.fixture
def log(tmp_path: Path) -> FileLog:
    log = FileLog(tmp_path, "n")
    log.create()
    return log


@pytest.fixture
def path(log: FileLog) -> Path:
    return log.folder / "decisions.log"


@pytest.fixture
def positions(log: FileLog) -> list[int]:
    """The positions of RECORDS, which are there, and the end."""
    appended = [log.append_decision(record) for record in RECORDS]
    return [each.position for each in appended] + [appended[-1].next_position]


def reopened(log: FileLog) -> FileLog:
    return FileLog(log.folder.parent, log.folder.name)


def contents(log: FileLog) -> list[bytes]:
    return [entry.content for entry in log.decisions()]
