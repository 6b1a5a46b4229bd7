"""A full disk for this process alone: its files do not grow beyond a length."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

HALF_WAY_BYTES = 100
"""Bytes that the longest file may still grow, so that a write fails half-way."""


def folder_of(url: str) -> Path | None:
    """Return the folder whose files a log or a store at this URL writes; None: a server writes them."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme in ("file", "sqlite") else None


@contextlib.contextmanager
def full_disk(folder: Path, *, half_way: bool) -> Iterator[None]:
    """Let no file of this process grow while the block runs.

    A write that would grow one fails with EFBIG, as on a full disk with ENOSPC. A write within the files'
    present lengths succeeds. ``half_way``: the longest file in the folder may grow a little, so that a longer
    write is done in part. Only for a process of one thread: the limit is the process's.
    """
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = HALF_WAY_BYTES + _longest(folder) if half_way else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


def _longest(folder: Path) -> int:
    longest = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # SQLite adds and removes files of its own
            longest = max(longest, path.stat().st_size if path.is_file() else 0)
    return longest
