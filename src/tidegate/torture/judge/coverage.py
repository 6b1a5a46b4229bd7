"""Coverage of a cell's history. It proves something only if it is whole, and every reader has read.

A reader that is always refused sees nothing wrong, and neither does a judge of half a file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from tidegate.torture.history import events
from tidegate.torture.history.files import SUFFIX, read_file, read_history


def gaps(folder: Path, ended: Collection[str], kinds: Collection[str]) -> Iterator[str]:
    """Describe what the history in a folder lacks.

    ``ended``: the processes that ended by themselves, whose files have to contain that. ``kinds``: the
    readers that have to have read something after the last commit returned.
    """
    for name in ended:
        path, last = folder / f"{name}{SUFFIX}", None
        for line in read_file(path) if path.exists() else ():
            last = line.event
        if not isinstance(last, events.Ended):
            yield f"the history of {name} is cut short: its process ended, and its file has no such event"
    unread = sorted(set(kinds) - _read_last(folder))
    if unread:
        yield (
            f"of the readers {', '.join(unread)} had no answer after the last commit: whether they would have"
            " been right is not known; check that they have the right to read, and run the cell again"
        )


def _read_last(folder: Path) -> set[str]:
    """Return the kinds of readers that read something after the last commit had returned."""
    clients: dict[tuple[str, int], str] = {}
    read: set[str] = set()
    for line in read_history(folder):
        match line.event:
            case events.Connected(client=client, kind=kind):
                clients[line.file, client] = kind
            case events.Returned():
                read.clear()
            case events.Read(client=client) | events.Scanned(client=client):
                read.add(clients[line.file, client])
    return read
