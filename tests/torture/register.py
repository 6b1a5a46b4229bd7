"""The visible version as a register, for linearizability checkers: its writes and reads, with their times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidegate.torture.history import events
from tidegate.torture.history.files import read_history
from tidegate.torture.judge.candidates import Candidates
from tidegate.torture.judge.first_pass import Timelines
from tidegate.torture.judge.verdict import Verdict


class Operation(msgspec.Struct, frozen=True):
    """An operation that took effect at one moment between ``began`` and ``ended``.

    "publish": this version replaced the one before. "look": exactly this version was visible. "returned":
    this version, or a later one, was visible, as when a commit returned it.
    """

    kind: str
    version: int
    client: int
    began: int
    ended: int


def register(folder: Path, namespace: str) -> list[Operation]:
    """List the operations on a namespace's primary store, by the time they ended.

    A publish begins with the first offer of its batch and ends with the first commit that returned it. When
    none did, it may have been as late as the end of the history.
    """
    timelines = Timelines(Verdict())
    timelines.take(read_history(folder))
    timeline = timelines.by_name[namespace]
    candidates = Candidates(timeline)
    operations, last = _seen(folder, namespace)
    returned: dict[int, int] = {}
    for operation in operations:
        if operation.kind == "returned":
            returned.setdefault(operation.version, operation.ended)
    for version, choices in enumerate(candidates.choices):
        if choices:  # a version that no batch can be is not published
            began = min(choice.offer.at for choice in choices)
            ended = max(returned.get(version, last), began)
            operations.append(Operation("publish", version, 0, began, ended))
    return sorted(operations, key=lambda operation: operation.ended)


def _seen(folder: Path, namespace: str) -> tuple[list[Operation], int]:
    """Return the operations that commits returned and clients saw, and the end of the history."""
    operations: list[Operation] = []
    calls: dict[tuple[str, int], int] = {}
    clients: dict[tuple[str, int], int] = {}
    last = 0
    for line in read_history(folder):
        event, file = line.event, line.file
        last = event.at
        if isinstance(event, events.Offered | events.Asked) and event.namespace == namespace:
            calls[file, event.call] = event.at
        elif isinstance(event, events.Connected) and event.namespace == namespace and not event.store:
            clients[file, event.client] = len(clients) + 1
        elif isinstance(event, events.Returned) and (file, event.call) in calls:
            began = calls[file, event.call]
            operations.append(Operation("returned", event.version, 0, began, event.at))
        elif isinstance(event, events.Done) and event.visible is not None and (file, event.call) in calls:
            operations.append(Operation("look", event.visible, 0, calls[file, event.call], event.at))
        elif isinstance(event, events.Looked | events.SnapshotOpened | events.Listed):
            client = clients.get((file, event.client))
            if client is not None:
                operations.append(_look(event, client))
    return operations, last


def _look(event: events.Looked | events.SnapshotOpened | events.Listed, client: int) -> Operation:
    """Turn a client's sight into an operation.

    A requested version need not be the newest; the last listed one is.
    """
    if isinstance(event, events.Listed):
        kind = "look" if event.versions else "returned"
        return Operation(kind, max(event.versions, default=0), client, event.began, event.at)
    asked = isinstance(event, events.SnapshotOpened) and event.asked
    return Operation("returned" if asked else "look", event.version, client, event.began, event.at)


def lines(operations: list[Operation]) -> Iterator[bytes]:
    """Yield one JSON object per line."""
    for operation in operations:
        yield msgspec.json.encode(operation) + b"\n"
