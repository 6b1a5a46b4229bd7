"""A disk without room, for this process alone: its files do not grow beyond a length while it lasts."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

HALF_WAY_BYTES = 100
"""So much is left beyond the longest file, where a write is to fail half-way."""


def folder_of(url: str) -> Path | None:
    """The folder whose files a log or a store at this URL writes; None: a server does."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme in ("file", "sqlite") else None


@contextlib.contextmanager
def full_disk(folder: Path, *, half_way: bool) -> Iterator[None]:
    """No file of this process grows: what would has EFBIG, as on a full disk ENOSPC; what fits in the files
    as they are is written. ``half_way``: the longest file in the folder may grow a little, so that a write of
    more is done in part. For a process of one thread: the limit is the process's.
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
        with contextlib.suppress(OSError):  # SQLite's own come and go
            longest = max(longest, path.stat().st_size if path.is_file() else 0)
    return longest
