"""What the page shows, read from the log, the stores and, if given, the driver's metrics. Writes nothing.

Handles stay open between looks, and the log is folded on from where it was, so a look costs what is new.
However many pages are open, there is one look in ``LOOK_EVERY_S``.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable
from typing import Any

from tidegate.cli import retention
from tidegate.cli.fit import misfit
from tidegate.cli.read import parse_key
from tidegate.cli.rows import StoreRow, look_at_stores, problems_of, with_log
from tidegate.clock import Clock
from tidegate.errors import ConfigError, TidegateError
from tidegate.options import StoreAt, redact
from tidegate.reading import info_of, view_of
from tidegate.sinks.open_store import open_store
from tidegate.sinks.store import CatalogEntry, Identity, Pointer, Store
from tidegate.snapshot import Held
from tidegate.values import described
from tidegate.wal.fold import View, fold_all, why_void
from tidegate.wal.log import Log
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Adopted, Open, Rewound, StoreAdded, StoreRemoved, decode_record

LOOK_EVERY_S = 1.0
STORES_EVERY_S, SLOW_EVERY_S = 5.0, 10.0
"""All stores are asked, and the log's size and its retention, so often."""
VERSIONS_MAX = 1_000
KEY_VERSIONS_MAX, KEY_S = 100, 5.0
"""A key is looked for at so many versions, and for so long, at most."""
EVENTS_MAX = 50
METRICS_BYTES_MAX, METRICS_S = 4 * 1024 * 1024, 2.0


class Facts:
    """How one namespace stands. For any thread; nothing raises but ``key`` for what a user typed wrong.

    ``metrics_url`` is a driver's ``/metrics``: phases by version come from ``/commits`` beside it.
    """

    def __init__(
        self,
        namespace: str,
        stores: tuple[StoreAt, ...],
        wal: str | None = None,
        wal_options: dict[str, Any] | None = None,
        metrics_url: str | None = None,
    ) -> None:
        self.namespace, self._stores, self._metrics_url = namespace, stores, metrics_url
        self._wal, self._wal_options = wal, wal_options or {}
        self._lock = threading.Lock()
        self._log: Log | None = None
        self._store: Store | None = None
        self._clock = Clock()
        self._view = View()
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._slow: tuple[float, retention.LogFacts] | None = None
        self._known: tuple[float, dict[str, Any]] | None = None
        self._commits: dict[int, dict[str, Any]] = {}
        self._rows: list[StoreRow] = []
        self._rows_at = 0.0
        self._looking: threading.Thread | None = None

    def close(self) -> None:
        """Release log and store."""
        with self._lock:
            self._forget()

    def look(self) -> dict[str, Any]:
        """Everything but keys; not older than ``LOOK_EVERY_S``. What does not answer is told in it."""
        with self._lock:
            now = time.monotonic()
            if self._known is None or now - self._known[0] >= LOOK_EVERY_S:
                found = self._look()
                self._known = time.monotonic(), found
            return self._known[1]

    def _look(self) -> dict[str, Any]:
        problems: list[str] = []
        facts: dict[str, Any] = {"namespace": self.namespace, "at": self._clock.now_us() / 1e6}

        def part(what: str, read: Callable[[], dict[str, Any]]) -> None:
            try:
                facts.update(read())
            except (TidegateError, OSError) as error:
                problems.append(f"{what}: {type(error).__name__}: {error}")
                self._forget()

        part("store", self._in_store)  # before the log: what is visible was decided before
        if self._wal is not None:
            part("log", lambda: self._in_log(facts.get("pointer")))
        part("stores", lambda: self._standings(problems))
        if self._metrics_url is not None:
            part("metrics", self._read_commits)
        identity, pointer = facts.pop("identity", None), facts.pop("pointer", None)
        if self._wal is not None and pointer is not None:
            wrong = misfit(self._view.state, identity, pointer)
            problems += [wrong] if wrong and wrong not in problems else []
        for version in facts.get("versions", ()):
            version["phases"] = self._commits.get(version["version"], {}).get("phases")
        return facts | {"problems": problems, "has_phases": self._metrics_url is not None}

    # -- the store ----------------------------------------------------------------------------------

    def _opened(self) -> Store:
        if self._store is None:
            at = self._stores[0]
            self._store = open_store(at.url, self.namespace, at.options)
        return self._store

    def _in_store(self) -> dict[str, Any]:
        store = self._opened()
        identity = store.identity()
        if identity is None:
            return {"identity": None, "pointer": Pointer(), "visible": 0, "versions": [], "tables": []}
        pointer = store.pointer()
        oldest = max(pointer.horizon, pointer.visible - VERSIONS_MAX + 1)
        entries = store.catalog(oldest, pointer.visible) if pointer.visible else []
        leases = [
            {"version": one.version, "age_s": one.age_s, "expires_in_s": one.expires_in_s}
            for one in sorted(store.leases(), key=lambda one: one.version)
        ]
        return {
            "identity": identity,
            "pointer": pointer,
            "key_groups": identity.key_groups,
            "visible": pointer.visible,
            "horizon": pointer.horizon,
            "epoch": pointer.epoch,
            "writer": pointer.writer,
            "heartbeat_age_s": pointer.heartbeat_age_s,
            "unverified": store.unverified(),
            "leases": leases[:EVENTS_MAX],
            "lease_count": len(leases),
            "versions": [_shown(entry) for entry in reversed(entries)],
            "tables": _tables(store, entries[-1]) if entries else [],
        }

    def _standings(self, problems: list[str]) -> dict[str, Any]:
        """A store that is down takes its time to say so: the others are not kept waiting."""
        if self._looking is None and time.monotonic() - self._rows_at >= STORES_EVERY_S:
            looking = threading.Thread(target=self._ask_stores, name="tidegate-ui-stores", daemon=True)
            self._looking = looking
            looking.start()
            looking.join(LOOK_EVERY_S)
        rows = with_log(self._rows, self._view.state) if self._rows else []
        problems += problems_of(rows) if rows else []
        return {"stores": [row.as_json() | {"stands": row.cells()[4]} for row in rows]}

    def _ask_stores(self) -> None:
        try:
            self._rows = look_at_stores(self._stores, self.namespace)[1]
        except (TidegateError, OSError) as error:
            self._rows = [StoreRow(at.name, redact(at.url), error=str(error)) for at in self._stores]
        self._rows_at, self._looking = time.monotonic(), None

    # -- the log ------------------------------------------------------------------------------------

    def _in_log(self, pointer: Pointer | None) -> dict[str, Any]:
        if self._log is None:
            self._log = open_log(str(self._wal), self.namespace, self._wal_options)
            self._view = View()
            self._events.clear()
        self._fold_on(self._log)
        now = time.monotonic()
        if self._slow is None or now - self._slow[0] >= SLOW_EVERY_S:
            self._slow = now, retention.look_at(self._log)
        state, facts = self._view.state, self._slow[1]
        decided = state.last_version if state else 0
        visible = decided if pointer is None else pointer.visible
        deadline = retention.deadline_of(facts, state, visible, self._clock.now_us())
        return {
            "decided": decided,
            "lag": None if pointer is None else max(0, decided - visible),
            "lineage": state and state.lineage,
            "void_records": self._view.void,
            "events": list(reversed(self._events)),
            "log": dict(retention.as_pairs(facts, deadline)),
        }

    def _fold_on(self, log: Log) -> None:
        start = self._view.position if self._view.state else None
        for entry in log.decisions() if start is None else log.decisions(start):
            record = decode_record(entry.content, f"{log.where}, position {entry.position}")
            reason = why_void(self._view.state, record) if self._view.state else None
            event = _event(record, reason)
            if event:
                self._events.append({"position": entry.position, "what": event, "fault": bool(reason)})
            self._view = fold_all(self._view, [entry], log.where)

    # -- the driver's metrics -----------------------------------------------------------------------

    def _read_commits(self) -> dict[str, Any]:
        url = str(self._metrics_url).removesuffix("/metrics").rstrip("/") + "/commits"
        with contextlib.closing(urllib.request.urlopen(url, timeout=METRICS_S)) as answer:  # noqa: S310
            content = answer.read(METRICS_BYTES_MAX + 1)
        if len(content) > METRICS_BYTES_MAX:
            raise OSError(f"{url}: more than {METRICS_BYTES_MAX:,} bytes")
        try:
            mine = [one for one in json.loads(content) if one["namespace"] == self.namespace]
            self._commits = {one["version"]: one for one in mine}
        except (ValueError, TypeError, KeyError) as error:
            raise OSError(f"{url}: not what a driver's metrics_port serves") from error
        return {}

    # -- one key ------------------------------------------------------------------------------------

    def key(self, table: str, texts: list[str]) -> dict[str, Any]:
        """A key's values at the versions that can be read, newest first: those at which it changed.

        ``texts`` are the key's columns as ``tidegate get`` takes them. No lease is taken: a version that is
        retired meanwhile is left out. Errors pass through.
        """
        with self._lock:
            store = self._opened()
            identity = store.identity()
            if identity is None:
                raise ConfigError(f"namespace {self.namespace} has no version yet")
            pointer = store.pointer()
            oldest = max(pointer.horizon, pointer.visible - VERSIONS_MAX + 1)
            entries = store.catalog(oldest, pointer.visible) if pointer.visible else []
            return _key_history(store, identity, table, texts, entries)

    def _forget(self) -> None:
        for opened in (self._log, self._store):
            if opened is not None:
                with contextlib.suppress(TidegateError, OSError):
                    opened.close()
        self._log = self._store = None


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
            "key": described(schemas[at.schema_id].key),
            "value": described(schemas[at.schema_id].value),
            "emptied_at": at.start,
        }
        for name, at in sorted(entry.tables.items())
        if at.schema_id in schemas
    ]


def _event(record: Any, reason: str | None) -> str | None:
    """What a record says of faults, repairs and people's words; None for what is ordinary."""
    if reason is not None:
        return f"void {type(record).__name__}: {reason}"
    match record:
        case Open(epoch=epoch, writer=writer):
            return f"driver {writer} opened, epoch {epoch}"
        case Adopted(lineage=lineage):
            return f"checkpoint {lineage} was adopted"
        case Rewound(generation=generation):
            return f"batches were rewound, generation {generation}"
        case StoreAdded(store=name):
            return f"store {name} was added"
        case StoreRemoved(store=name):
            return f"store {name} was removed"
    return None


def _key_history(
    store: Store, identity: Identity, table: str, texts: list[str], entries: list[CatalogEntry]
) -> dict[str, Any]:
    schemas, end = store.schemas(), time.monotonic() + KEY_S
    touched = [entry for entry in entries[1:] if entry.changes.get(table)]
    looked = (entries[:1] + touched)[-KEY_VERSIONS_MAX:]
    if not entries or table not in entries[-1].tables:
        there = ", ".join(sorted(entries[-1].tables)) if entries else "none"
        raise ConfigError(f"there is no table {table!r}; the tables there are: {there}")
    key = parse_key(table, texts, schemas[entries[-1].tables[table].schema_id].key)
    found: list[dict[str, Any]] = []
    cut = len(looked) < len(touched) + 1
    for entry in reversed(looked):
        if time.monotonic() > end:
            cut = True
            break
        if table not in entry.tables:
            continue
        view = view_of(store.where, identity, entry, table, schemas)
        if view is None:
            continue
        with contextlib.suppress(TidegateError) if found else contextlib.nullcontext():
            value = Held(store, view, lambda: None).get(key)
            if found and found[-1]["value"] == value:
                found.pop()  # it was so before, too
            at = entry.decided_at_us / 1e6
            found.append({"version": entry.version, "value": value, "decided_at": at})
    return {"table": table, "values": found, "cut": cut, "oldest": looked[0].version if looked else 0}
