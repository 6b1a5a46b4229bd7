"""The facts that the page shows, from the log, the stores and, if given, the driver's metrics.

Writes nothing.

Handles stay open between polls, and the fold continues from where it was, so a poll costs only what is new.
The number of open pages does not matter: there is one poll in ``LOOK_EVERY_S``.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec

from tidegate.base.clock import Clock
from tidegate.base.names import listed
from tidegate.base.urls import redact
from tidegate.committers.opening.open import WRITER_ALIVE_S
from tidegate.committers.repair.log_reach import has_manifest, held_by
from tidegate.errors import StoreUnavailableError, TidegateError, WalGapError
from tidegate.options.endpoints import StoreRef
from tidegate.reader.rules import info_of
from tidegate.sinks.records import CatalogEntry, Identity, Pointer
from tidegate.sinks.rules.fit import Held
from tidegate.sinks.store import Store
from tidegate.status import log_size
from tidegate.status.fit import misfit, passing_described, written_in
from tidegate.status.stores import StoreRow, problems_of, with_log
from tidegate.status.usage import refusal_of
from tidegate.ui.events import EVENTS_MAX, Events
from tidegate.ui.lookups import VERSIONS_MAX, Lookups
from tidegate.ui.opened import Opened
from tidegate.ui.polled import Poller, within
from tidegate.values.decode import described
from tidegate.wal.catch_up import read_manifest
from tidegate.wal.fold import View, fold_all, recent_version, why_void
from tidegate.wal.log import Log
from tidegate.wal.open_log import open_log
from tidegate.wal.record import decode_record

LOOK_EVERY_S, LOOK_S = 1.0, 2.0
"""The shortest interval between two polls, and the time for which a poll waits for answers."""
STORES_EVERY_S, SLOW_EVERY_S = 5.0, 10.0
"""The intervals at which the other stores, and the log's size and retention, are polled."""
METRICS_BYTES_MAX, METRICS_S = 4 * 1024 * 1024, 2.0


class InStore(NamedTuple):
    """A store's answer; ``facts`` is for the page."""

    identity: Identity | None
    pointer: Pointer
    facts: dict[str, Any]


class InLog(NamedTuple):
    """The log's answer; ``events`` are the newest first."""

    view: View
    events: list[dict[str, Any]]
    kept: log_size.LogFacts
    held: Held | None


class Facts:
    """The facts of one namespace. Thread-safe. Raises nothing; ``lookups`` reads rows.

    Each source is polled in a thread of its own, so that no page waits longer than ``LOOK_S`` for a server
    that does not answer. ``metrics_url`` is a driver's ``/metrics``; phases by version are read from
    ``/commits`` next to it. ``is_guess``: nobody named this URL, so its silence is no problem.
    """

    def __init__(
        self,
        namespace: str,
        stores: tuple[StoreRef, ...],
        wal: str | None = None,
        wal_options: dict[str, Any] | None = None,
        metrics_url: str | None = None,
        *,
        is_guess: bool = False,
    ) -> None:
        self.namespace, self._stores, self._metrics_url = namespace, stores, metrics_url
        self._wal, self._wal_options = wal, wal_options or {}
        self._lock = threading.Lock()
        self._clock = Clock()
        self._log: Log | None = None
        self._view = View()
        self._events = Events()
        self._slow: tuple[float, log_size.LogFacts, Held | None] | None = None
        self._known: tuple[float, dict[str, Any]] | None = None
        self._commits: dict[int, dict[str, Any]] = {}
        first, *others = (Opened(ref, namespace) for ref in stores)
        self._in_store = Poller(lambda: _in_store(first), first.close)
        self._others = [Poller(partial(_stands, one), one.close, STORES_EVERY_S) for one in others]
        self._in_log = Poller(self._read_log, self._forget_log)
        self._metrics = Poller(self._read_commits, lambda: None, STORES_EVERY_S if is_guess else 0.0)
        self._metrics_guessed = is_guess
        self.lookups = Lookups(stores[0], namespace, self._in_store.problem)

    def close(self, end: float | None = None) -> None:
        """Release log and stores; those that still wait for an answer are released when it arrives.

        ``end``, by ``time.monotonic``, is until when it waits; default: ``LOOK_S`` from now.
        """
        end = time.monotonic() + LOOK_S if end is None else end
        places: list[Poller[Any]] = [self._in_store, self._in_log, self._metrics, *self._others]
        for poller in places:
            poller.close(end)
        self.lookups.close(end)

    def look(self) -> dict[str, Any]:
        """Return everything but keys, within ``LOOK_S``.

        It is not older than ``LOOK_EVERY_S``, except for sources that do not answer, which it names.
        """
        with self._lock:
            now = time.monotonic()
            if self._known is None or now - self._known[0] >= LOOK_EVERY_S:
                facts = self._look(now + LOOK_S)
                self._known = time.monotonic(), facts
            return self._known[1]

    def job(self, version: int) -> dict[str, Any]:
        """Return the calls of the transaction that made a version, from its manifest in the log.

        ``steps`` is None where this page, or the log, does not have them. Raises: StoreUnavailableError: the
        log did not answer in time; errors of the log.
        """
        in_log, log = self._in_log.answer(), self._log
        state = in_log.view.state if in_log else None
        decided = None if state is None else recent_version(state, version)
        if log is None or decided is None:
            return {"version": version, "steps": None}
        try:
            manifest = within(LOOK_S, lambda: read_manifest(log, decided))
        except concurrent.futures.TimeoutError:
            silent = f"{log.where}: no answer within {LOOK_S:g} s; look it up again"
            raise StoreUnavailableError(silent) from None
        except WalGapError:
            return {"version": version, "steps": None}
        return {"version": version, "steps": msgspec.to_builtins(manifest.steps or ())}

    def _look(self, end: float) -> dict[str, Any]:
        sources: dict[str, Poller[Any]] = {"store": self._in_store}
        self._in_store.begin()
        for other in self._others:
            other.begin()
        if self._metrics_url is not None:
            if not self._metrics_guessed:
                sources["metrics"] = self._metrics
            self._metrics.begin()
        self._in_store.wait(end)  # before the log: every visible version was decided before
        if self._wal is not None:
            sources["log"] = self._in_log
            self._in_log.begin()
        for one in (*sources.values(), *self._others):
            one.wait(end)
        problems = [f"{what}: {why}" for what, one in sources.items() if (why := one.problem())]
        facts: dict[str, Any] = {"namespace": self.namespace, "at": self._clock.now_us() / 1e6}
        in_store, in_log = self._in_store.answer(), self._in_log.answer()
        facts |= in_store.facts if in_store else {}
        facts |= self._of_log(in_log, in_store) if in_log else {}
        state = in_log.view.state if in_log else None
        rows = with_log(list(self._rows()), state)
        problems += problems_of(rows) if in_store or in_log else []
        problems += [facts["refused_writes"]] if facts.get("refused_writes") else []
        wrong = self._misfit(in_log, in_store)
        problems += [wrong] if wrong and wrong not in problems else []
        facts["stores"] = [row.as_json() | {"stands": row.cells()[4]} for row in rows]
        if in_store is not None:  # unknown is not the same as none
            facts["versions"] = [one | self._phases(one["version"]) for one in in_store.facts["versions"]]
        return facts | {"problems": problems, "metrics": self._of_metrics()}

    def _of_metrics(self) -> dict[str, Any]:
        """Describe the metrics: their URL, and the namespaces whose versions they have; None: no answer."""
        url = None if self._metrics_url is None else redact(self._metrics_url)
        return {"url": url, "namespaces": self._metrics.answer()}

    def _phases(self, version: int) -> dict[str, Any]:
        return {"phases": self._commits.get(version, {}).get("phases")}

    def _rows(self) -> Iterator[StoreRow]:
        """Yield a row for each store that has answered, or is late."""
        for ref, poller in zip(self._stores, (self._in_store, *self._others), strict=True):
            row, answer, problem = StoreRow(ref.name, redact(ref.url)), poller.answer(), poller.problem()
            if problem is not None:
                yield msgspec.structs.replace(row, error=problem)
            elif answer is not None:
                yield msgspec.structs.replace(row, identity=answer.identity, pointer=answer.pointer)

    def _misfit(self, in_log: InLog | None, in_store: InStore | None) -> str | None:
        """Describe a mismatch of log and store, if the log was read after the store."""
        if in_log is None or in_store is None or not self._in_log.was_asked_behind(self._in_store):
            return None
        state, unverified = in_log.view.state, in_store.facts.get("unverified", False)
        problem = misfit(state, in_store.identity, in_store.pointer, in_log.held)
        return problem or passing_described(
            state,
            in_store.identity,
            in_store.pointer,
            in_store.facts.get("written", 0),
            unverified=unverified,
        )

    # -- the log ------------------------------------------------------------------------------------

    def _of_log(self, in_log: InLog, in_store: InStore | None) -> dict[str, Any]:
        state = in_log.view.state
        decided = state.last_version if state else 0
        visible = in_store.pointer.visible if in_store else decided
        waiting_after = in_store.pointer.waiting_after if in_store else decided
        deadline = log_size.deadline_of(in_log.kept, state, waiting_after, self._clock.now_us())
        return {
            "decided": decided,
            "lag": max(0, decided - visible) if in_store else None,
            "lineage": state and state.lineage,
            "void_records": in_log.view.void,
            "events": in_log.events,
            "log": dict(log_size.as_pairs(in_log.kept, deadline)),
        }

    def _read_log(self) -> InLog:
        if self._log is None:
            self._log = open_log(str(self._wal), self.namespace, self._wal_options)
            self._view = View()
            self._events = Events()
        self._fold_on(self._log)
        now = time.monotonic()
        if self._slow is None or now - self._slow[0] >= SLOW_EVERY_S:
            self._slow = now, log_size.look_at(self._log), self._held(self._log)
        return InLog(self._view, self._events.newest_first(), *self._slow[1:])

    def _held(self, log: Log) -> Held | None:
        """Find the part of the log that the store needs, by the manifests alone: frames may be large."""
        state, in_store = self._view.state, self._in_store.answer()
        if state is None or in_store is None or not in_store.pointer.visible:
            return None
        return held_by(log, state, in_store.pointer.visible, has_manifest)

    def _fold_on(self, log: Log) -> None:
        start = self._view.position if self._view.state else None
        for entry in log.decisions() if start is None else log.decisions(start):
            record = decode_record(entry.content, f"{log.where}, position {entry.position}")
            reason = why_void(self._view.state, record) if self._view.state else None
            self._events.add(entry.position, record, reason, self._view.state)
            self._view = fold_all(self._view, [entry], log.where)

    def _forget_log(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            with contextlib.suppress(TidegateError, OSError):
                log.close()

    # -- the driver's metrics -----------------------------------------------------------------------

    def _read_commits(self) -> list[str]:
        url = str(self._metrics_url).removesuffix("/metrics").rstrip("/") + "/commits"
        with contextlib.closing(urllib.request.urlopen(url, timeout=METRICS_S)) as answer:  # noqa: S310
            content = answer.read(METRICS_BYTES_MAX + 1)
        if len(content) > METRICS_BYTES_MAX:
            raise OSError(f"{redact(url)}: more than {METRICS_BYTES_MAX:,} bytes")
        try:
            commits = json.loads(content)
            mine = [one for one in commits if one["namespace"] == self.namespace]
            self._commits = {one["version"]: one for one in mine}
            return sorted({str(one["namespace"]) for one in commits})
        except (ValueError, TypeError, KeyError) as error:
            raise OSError(f"{redact(url)}: not what a driver's metrics_port serves") from error


def _stands(opened: Opened) -> InStore:
    store = opened.store()
    identity = store.identity()
    return InStore(identity, Pointer() if identity is None else store.pointer(), {})


def _in_store(opened: Opened) -> InStore:
    store = opened.store()
    identity = store.identity()
    if identity is None:
        return InStore(None, Pointer(), {"visible": 0, "versions": [], "tables": []})
    pointer = store.pointer()
    oldest = max(pointer.horizon, pointer.visible - VERSIONS_MAX + 1)
    entries = opened.entries(identity, pointer, oldest)
    leases = [
        {"version": one.version, "age_s": one.age_s, "expires_in_s": one.expires_in_s}
        for one in sorted(store.leases(), key=lambda one: one.version)
    ]
    facts = {
        "key_groups": identity.key_groups,
        "visible": pointer.visible,
        "horizon": pointer.horizon,
        "epoch": pointer.epoch,
        "writer": pointer.driver,
        "writer_state": _writer_state(pointer),
        "heartbeat_age_s": pointer.heartbeat_age_s,
        "unverified": store.unverified(),
        "refused_writes": refusal_of(store),
        "written": written_in(store, pointer),
        "leases": leases[:EVENTS_MAX],
        "lease_count": len(leases),
        "versions": [_shown(entry) for entry in reversed(entries)],
        "tables": _tables(store, entries[-1]) if entries else [],
    }
    return InStore(identity, pointer, facts)


def _writer_state(pointer: Pointer) -> str:
    if not pointer.driver:
        return "none"
    if pointer.heartbeat_age_s is None:
        return "closed"
    return "running" if pointer.heartbeat_age_s < WRITER_ALIVE_S else "silent"


def _shown(entry: CatalogEntry) -> dict[str, Any]:
    info = info_of(entry)
    decided, published = info.decided_at.timestamp(), info.published_at.timestamp()
    return {
        "version": info.version,
        "origin": info.origin,
        "decided_at": decided,
        "published_at": published,
        "took_s": max(0.0, published - decided),
        "changes": info.changes,
        "tasks": info.parallelism,
    }


def _tables(store: Store, entry: CatalogEntry) -> list[dict[str, Any]]:
    schemas = store.schemas()
    return [
        {
            "name": name,
            "key": described(schemas[table_at.schema_id].key),
            "key_columns": [[column.name, column.type] for column in schemas[table_at.schema_id].key],
            "value": described(schemas[table_at.schema_id].columns),
            "emptied_at": table_at.start,
        }
        for name, table_at in ((name, entry.tables[name]) for name in listed(entry.tables))
        if table_at.schema_id in schemas
    ]
