"""First pass over a history: it adds every line to the timeline of its namespace."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from tidegate.errors import CorruptError
from tidegate.torture.history import events
from tidegate.torture.history.files import Line
from tidegate.torture.history.offers import Offer
from tidegate.torture.judge.timeline import ALWAYS, Asked, Client, Timeline, check_error
from tidegate.torture.judge.verdict import Verdict

Number = tuple[int, int]
"""A call, client or snapshot: its file, and its number in that file."""


class Timelines:
    """The timelines of all namespaces, filled by lines in the order of time."""

    def __init__(self, verdict: Verdict) -> None:
        self.by_name: dict[str, Timeline] = {}
        self._verdict = verdict
        self._files: list[str] = []
        self._file_ids: dict[str, int] = {}
        self._calls: dict[Number, tuple[Timeline, Offer] | Asked] = {}
        self._forgot_at = -1
        self._clients: dict[Number, Client] = {}
        self._snapshots: dict[Number, tuple[Client, int]] = {}
        self._takers: dict[type, Callable[[Any, Line, int], None]] = {
            events.Started: self._nothing,
            events.Ended: self._nothing,
            events.SnapshotClosed: self._nothing,
            events.Fault: self._fault,
            events.Opened: self._opened,
            events.Offered: self._offered,
            events.Returned: self._returned,
            events.Raised: self._raised,
            events.Asked: self._asked,
            events.Done: self._done,
            events.PutBack: self._mended,
            events.Connected: self._connected,
            events.Looked: self._looked,
            events.Listed: self._listed,
            events.SnapshotOpened: self._snapshot,
            events.Read: self._read,
            events.Scanned: self._read,
            events.Failed: self._failed,
        }

    def take(self, lines: Iterable[Line]) -> None:
        """Take all lines. CorruptError: one refers to a call, client or snapshot that never began."""
        for line in lines:
            file = self._file_ids.get(line.file)
            if file is None:
                file = self._file_ids[line.file] = len(self._files)
                self._files.append(line.file)
            self._verdict.count("events")
            self._takers[type(line.event)](line.event, line, file)
        self._verdict.count("files", len(self._files))
        self._verdict.count("namespaces", len(self.by_name))

    def _timeline(self, name: str) -> Timeline:
        if name not in self.by_name:
            self.by_name[name] = Timeline(name, self._files, self._verdict)
            self.by_name[name].forget(self._forgot_at)
        return self.by_name[name]

    def _nothing(self, event: events.Event, line: Line, file: int) -> None:
        pass

    def _fault(self, event: events.Fault, line: Line, file: int) -> None:
        self._verdict.count("faults")
        for timeline in self.by_name.values():
            for rows in event.destroys:
                timeline.destroyed.setdefault(rows.version, set()).add(rows.key_group)
        if event.forgets:
            self._forgot_at = ALWAYS if event.lasts else event.at
            for timeline in self.by_name.values():
                timeline.forget(self._forgot_at)
            for client in self._clients.values():
                client.seen.forget(self._forgot_at)

    # -- writers -----------------------------------------------------------------------------------

    def _opened(self, event: events.Opened, line: Line, file: int) -> None:
        self._timeline(event.namespace).opened(event, line.where)

    def _offered(self, event: events.Offered, line: Line, file: int) -> None:
        self._verdict.count("offers")
        timeline = self._timeline(event.namespace)
        self._calls[file, event.call] = timeline, timeline.offered(event, line)

    def _returned(self, event: events.Returned, line: Line, file: int) -> None:
        call = self._call(file, event.call, line)
        if isinstance(call, Asked):
            raise CorruptError(f"{line.where}: a command ends with 'done', not with 'returned'")
        call[0].returned(call[1], event, line.where)

    def _raised(self, event: events.Raised, line: Line, file: int) -> None:
        call = self._call(file, event.call, line)
        timeline = call.timeline if isinstance(call, Asked) else call[0]
        check_error(self._verdict, timeline.name, event.error, event.text, line.where)
        if isinstance(call, Asked):
            timeline.wrote(event.at)
        else:
            timeline.raised(call[1], event, line.where)

    def _asked(self, event: events.Asked, line: Line, file: int) -> None:
        self._verdict.count("commands")
        timeline = self._timeline(event.namespace)
        self._calls[file, event.call] = Asked(timeline, event.command, event.at)
        if event.command != "recover":
            timeline.wrote(event.at)

    def _done(self, event: events.Done, line: Line, file: int) -> None:
        call = self._call(file, event.call, line)
        if not isinstance(call, Asked):
            raise CorruptError(f"{line.where}: a commit ends with 'returned', not with 'done'")
        call.timeline.done(call, event, line.where)

    def _mended(self, event: events.PutBack, line: Line, file: int) -> None:
        self._verdict.count("repairs")
        self._timeline(event.namespace).mended(event, line.where)

    def _call(self, file: int, number: int, line: Line) -> tuple[Timeline, Offer] | Asked:
        call = self._calls.pop((file, number), None)
        if call is None:
            raise CorruptError(f"{line.where}: call {number} was not begun in this file, or ended before")
        return call

    # -- readers -----------------------------------------------------------------------------------

    def _connected(self, event: events.Connected, line: Line, file: int) -> None:
        self._verdict.count("clients")
        timeline = self._timeline(event.namespace)
        self._clients[file, event.client] = Client(timeline, event.store, timeline.watermark())

    def _client(self, file: int, number: int, line: Line) -> Client:
        client = self._clients.get((file, number))
        if client is None:
            raise CorruptError(f"{line.where}: client {number} was not connected in this file")
        return client

    def _saw(self, client: Client, version: int, began: int, line: Line, file: int) -> None:
        """Note that a client saw the newest version."""
        own, own_line = client.seen.before(began)
        if version < own:
            client.timeline.find(
                "monotonic",
                "a client saw the visible version go back",
                f"version {own} or later, as it had seen before",
                f"version {version}",
                own_line,
                line.where,
            )
        client.seen.add(line.event.at, version, line.where)
        client.timeline.looked(version, began, client.store, file, line)

    def _looked(self, event: events.Looked, line: Line, file: int) -> None:
        self._verdict.count("looks")
        self._saw(self._client(file, event.client, line), event.version, event.began, line, file)

    def _listed(self, event: events.Listed, line: Line, file: int) -> None:
        self._verdict.count("lists")
        client, versions = self._client(file, event.client, line), event.versions
        for version, after in itertools.pairwise(versions):
            if after != version + 1:
                client.timeline.find(
                    "hole",
                    "the readable versions have a hole",
                    f"version {version + 1} after version {version}",
                    f"version {after}",
                    line.where,
                )
        if versions:
            self._saw(client, versions[-1], event.began, line, file)
            if not client.store:
                client.timeline.horizon.add(event.at, versions[0], line.where)

    def _snapshot(self, event: events.SnapshotOpened, line: Line, file: int) -> None:
        self._verdict.count("snapshots")
        client = self._client(file, event.client, line)
        self._snapshots[file, event.snapshot] = client, event.version
        if not event.asked:
            self._saw(client, event.version, event.began, line, file)
            return
        if event.asked != event.version:
            client.timeline.find(
                "other-version",
                "a snapshot is of another version than the requested one",
                f"version {event.asked}",
                f"version {event.version}",
                line.where,
            )
        client.timeline.note_visible(event.at, event.version, client.store, line.where)

    def _read(self, event: events.Read | events.Scanned, line: Line, file: int) -> None:
        self._verdict.count("reads")
        client = self._client(file, event.client, line)
        if not event.snapshot:
            client.timeline.loose_read(event, client.store, line)
            return
        snapshot = self._snapshots.get((file, event.snapshot))
        if snapshot is None or snapshot[0] is not client:
            raise CorruptError(f"{line.where}: client {event.client} opened no snapshot {event.snapshot}")
        client.timeline.read(snapshot[1], file, line)

    def _failed(self, event: events.Failed, line: Line, file: int) -> None:
        client = self._client(file, event.client, line)
        timeline = client.timeline
        check_error(self._verdict, timeline.name, event.error, event.text or event.what, line.where)
        if event.error == "VersionRegressedError":
            client.seen.forget(event.at)
            if timeline.forgot_at < 0:
                timeline.find(
                    "regressed",
                    "a read raised VersionRegressedError, though no fault made the store forget",
                    "a visible version that only grows",
                    event.error,
                    line.where,
                )
