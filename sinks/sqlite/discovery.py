"""Discovery of the namespaces of file-based stores, for messages. Never raises, never contacts a server."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from tidegate.base.files import refuse_special
from tidegate.base.names import did_you_mean, escape
from tidegate.base.urls import path_of, quoted_path

LOOKED_AT, NAMED = 200, 10
IMMUTABLE = "&immutable=1"


def folder_at(url: str) -> Path | None:
    """Return the folder of a store in files; None: another kind of store.

    >>> folder_at("sqlite:///data/store"), folder_at("redis://cache:6379")
    (PosixPath('/data/store'), None)
    """
    _, scheme, rest = url.partition("sqlite://")
    path = path_of(f"sqlite://{rest}") if scheme else None
    return Path(path) if path else None


def namespaces_in(folder: Path, most: int | None = LOOKED_AT) -> list[str]:
    """Return the namespaces in a store's folder, sorted; at most ``most``, all for None."""
    return sorted(itertools.islice(_names_in(folder), most))


def has_instead(url: str, namespace: str) -> str:
    """Return the end of a message about a missing namespace: the names that exist, if known."""
    folder = folder_at(url)
    names = [] if folder is None else namespaces_in(folder)
    if not names:
        return ""
    more = f" and {len(names) - NAMED} more" * (len(names) > NAMED)
    return f"; the store has {', '.join(names[:NAMED])}{more}{did_you_mean(namespace, names)}"


def _names_in(folder: Path) -> Iterator[str]:
    """Yield the namespaces' names. Folders have escaped names, without a dot; ``meta.sqlite`` has
    the name.
    """
    import sqlite3

    from tidegate.sinks.sqlite.disk.tables import META_FILE
    from tidegate.sinks.sqlite.disk.unwritable import may_make_files_beside, takes_no_writes

    for meta in folder.glob(f"*/{META_FILE}"):
        if "." in meta.parent.name:  # left by a drop
            continue
        with contextlib.suppress(sqlite3.Error, OSError, ValueError, KeyError, TypeError):
            refuse_special(meta)
            try:
                identity = _identity_in(meta, "" if may_make_files_beside(meta) else IMMUTABLE)
            except sqlite3.OperationalError as error:  # of a folder that takes no writes
                if not takes_no_writes(error):
                    raise
                identity = _identity_in(meta, IMMUTABLE)
            if escape(name := json.loads(identity)["name"]) == meta.parent.name:  # not a copy by another name
                yield name


def _identity_in(meta: Path, unchanging: str) -> str:
    import sqlite3

    from tidegate.sinks.sqlite.disk.tables import view_or_trigger

    reader = sqlite3.connect(f"file:{quoted_path(meta)}?mode=ro{unchanging}", uri=True, timeout=0.1)
    with contextlib.closing(reader):
        if view_or_trigger(reader):
            return "{}"
        return str(reader.execute("SELECT identity FROM namespace WHERE ready = 1").fetchone()[0])
