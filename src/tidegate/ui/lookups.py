"""The rows that a browser asks for: one key's history, a page of a table, the difference of two versions.

Writes nothing, not even a lease. So a version may be retired while it is read. Its rows are dropped only
after the horizon has moved past it: each answer that reads the horizon afterwards, and finds it at or below
its versions, is whole. Otherwise SnapshotExpiredError is raised.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from tidegate.base.names import listed
from tidegate.base.steps import run
from tidegate.base.text import cell, time_of
from tidegate.base.urls import redact
from tidegate.errors import ConfigError, StoreUnavailableError, TidegateError
from tidegate.options.endpoints import StoreRef
from tidegate.reader.table import TableReader, TableView, view_of
from tidegate.sinks.diff import differences_of_groups, untouched
from tidegate.sinks.records import CatalogEntry, Identity, ReadAt
from tidegate.sinks.rules.reads import check_kept, windows
from tidegate.sinks.rules.visible import no_schema
from tidegate.sinks.store import Store
from tidegate.ui.opened import Opened
from tidegate.ui.polled import within
from tidegate.values.decode import by_column
from tidegate.values.key_text import parse_key
from tidegate.wal.record import TableSchema

VERSIONS_MAX, KEY_VERSIONS_MAX = 1_000, 100
"""The number of versions that the page knows, and at which a key is looked up."""
ROWS_MAX, DIFFERENCES_MAX = 50, 200
"""The number of rows of one page of a table, and of one difference."""
SEARCH_S, WAIT_S = 5.0, 8.0
"""The time for which one answer reads rows, and the time for which it is waited for."""
CELL_MAX, KEY_CELL_MAX = 500, 20_000
"""The longest text of one column: in a list of rows, and in a key's history. The rest is cut off."""


class Lookups:
    """Reads of rows in one store, one at a time. Thread-safe.

    ``problem`` describes why the store does not answer. Every method raises ConfigError for a question that
    does not fit the namespace, SnapshotExpiredError for a version that was retired, and
    StoreUnavailableError: not answered within ``WAIT_S``. Other errors pass through.
    """

    def __init__(self, at: StoreRef, namespace: str, problem: Callable[[], str | None]) -> None:
        self._at, self._namespace, self._problem = at, namespace, problem
        self._opened = Opened(at, namespace)
        self._busy = threading.Lock()

    def close(self, end: float) -> None:
        """Release the store, by ``end``; a search that still runs keeps it until its process ends."""
        if self._busy.acquire(timeout=max(0.0, end - time.monotonic())):
            self._opened.close()
            self._busy.release()

    def key(self, table: str, texts: list[str]) -> dict[str, Any]:
        """Return a key's values at the readable versions at which it changed, newest first.

        ``texts`` are the key's columns as ``tidegate get`` takes them. A version that is retired meanwhile is
        left out.
        """
        return self._ask(lambda place: _key_history(place, table, texts))

    def rows(self, table: str, version: int | None, group: int, skip: int) -> dict[str, Any]:
        """Return at most ``ROWS_MAX`` rows of a table at a version, by default the visible one.

        They begin after ``skip`` rows of key group ``group``. ``next`` has both numbers of the next page, and
        is None after the last row.
        """
        return self._ask(lambda place: _rows(place, table, version, group, skip))

    def differences(self, before: int, after: int, table: str | None) -> dict[str, Any]:
        """Return at most ``DIFFERENCES_MAX`` rows that differ between two versions, of one table or all."""
        return self._ask(lambda place: _differences(place, before, after, table))

    def _ask(self, search: Callable[[_Place], dict[str, Any]]) -> dict[str, Any]:
        end = time.monotonic() + WAIT_S
        if not self._busy.acquire(timeout=WAIT_S):
            raise self._silent()
        try:
            return within(end - time.monotonic(), lambda: self._search(search))
        except concurrent.futures.TimeoutError:
            raise self._silent() from None

    def _search(self, search: Callable[[_Place], dict[str, Any]]) -> dict[str, Any]:
        """Search: the caller holds ``_busy``, which is released here."""
        try:
            store = self._opened.store()
            identity = store.identity()
            if identity is None:
                raise ConfigError(f"namespace {self._namespace} has no version yet")
            return search(_Place(store, identity))
        except ConfigError:
            raise
        except BaseException:
            self._opened.close()
            raise
        finally:
            self._busy.release()

    def _silent(self) -> StoreUnavailableError:
        where, problem = redact(self._at.url), self._problem()
        return StoreUnavailableError(
            f"{where}: no answer within {WAIT_S:g} s{f' ({problem})' if problem else ''}; look it up again"
        )


class OutOfTimeError(Exception):
    """The search has taken ``SEARCH_S``."""


class _Place:
    """A namespace in a store during one search, which raises OutOfTimeError after ``SEARCH_S``."""

    def __init__(self, store: Store, identity: Identity) -> None:
        self.store, self.identity = store, identity
        self.schemas = store.schemas()
        self._end = time.monotonic() + SEARCH_S

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise OutOfTimeError

    def entry(self, version: int) -> CatalogEntry:
        """Return a version's entry. Raises: ConfigError: it is not visible yet; SnapshotExpiredError."""
        pointer = self.store.pointer()
        if not 0 < version <= pointer.visible:
            raise ConfigError(f"version {version} is not visible: the visible one is {pointer.visible}")
        entries = self.store.catalog(version, version)
        check_kept(self.store.where, version, pointer.horizon if entries else version + 1)
        return entries[0]

    def view(self, entry: CatalogEntry, table: str) -> TableView:
        """Return the view of a table. Raises: ConfigError: it is not there; CorruptError: no schema."""
        view = view_of(self.store.where, self.identity, entry, table, self.schemas)
        if view is None:
            table_at = entry.tables[table]
            raise no_schema(self.store.where, entry.version, table, table_at.schema_id)
        return view

    def check_kept(self, version: int) -> None:
        """Refuse what was read at a version that was retired meanwhile. Raises: SnapshotExpiredError."""
        check_kept(self.store.where, version, self.store.pointer().horizon)

    # -- the methods of a store by which rows are compared, each bounded in time --

    @property
    def where(self) -> str:
        return self.store.where

    def pointer(self) -> Any:
        return self.store.pointer()

    def get_many(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        self.check()
        return self.store.get_many(at, keys)

    def scan_groups(self, at: ReadAt, groups: Sequence[int]) -> Iterator[Any]:
        return self._bounded(self.store.scan_groups(at, groups))

    def scan_groups_stored(self, at: ReadAt, groups: Sequence[int]) -> Iterator[Any]:
        return self._bounded(self.store.scan_groups_stored(at, groups))

    def catalog(self, oldest: int, newest: int) -> list[CatalogEntry]:
        return self.store.catalog(oldest, newest)

    def _bounded(self, pages: Iterator[Any]) -> Iterator[Any]:
        for page in pages:
            self.check()
            yield page


# -- one key --------------------------------------------------------------------------------------


def _may_change(entry: CatalogEntry, table: str, *, newest: bool) -> bool:
    """Return whether a key may have changed at this version: it wrote rows of the table, or emptied it.

    A row that has expired since is noticed at the newest version.
    """
    table_at = entry.tables.get(table)
    emptied = table_at is not None and table_at.start == entry.version
    may_have_expired = newest and table_at is not None and table_at.expires is True
    return bool(entry.changes.get(table)) or emptied or may_have_expired


def _key_history(place: _Place, table: str, texts: list[str]) -> dict[str, Any]:
    pointer = place.store.pointer()
    oldest = max(pointer.horizon, pointer.visible - VERSIONS_MAX + 1)
    entries = place.store.catalog(oldest, pointer.visible) if pointer.visible else []
    if not entries or table not in entries[-1].tables:
        names = ", ".join(listed(entries[-1].tables)) if entries else "none"
        raise ConfigError(f"there is no table {table!r}; the tables there are: {names}")
    key = parse_key(table, texts, place.view(entries[-1], table).values.schema.key)
    touched = [entry for entry in entries[1:] if _may_change(entry, table, newest=entry is entries[-1])]
    looked = (entries[:1] + touched)[-KEY_VERSIONS_MAX:]
    values: list[dict[str, Any]] = []
    is_cut = len(looked) < len(touched) + 1
    for entry in reversed(looked):
        try:
            place.check()
        except OutOfTimeError:
            is_cut = True
            break
        view = (
            view_of(place.where, place.identity, entry, table, place.schemas)
            if table in entry.tables
            else None
        )
        if view is None:
            continue
        with contextlib.suppress(TidegateError) if values else contextlib.nullcontext():
            value = run(TableReader(place.store, view, lambda: None).get(key))
            shown = None if value is None else _columns(view, value, KEY_CELL_MAX)
            if (
                values and values[-1]["columns"] == shown
            ):  # as text: there NaN equals itself, and 0.0 is not -0.0
                values.pop()  # the same value as before
            values.append(
                {"version": entry.version, "columns": shown, "decided_at": entry.decided_at_us / 1e6}
            )
    oldest = looked[0].version
    return {"table": table, "key": texts, "values": values, "cut": is_cut, "oldest": oldest}


# -- a page of a table ----------------------------------------------------------------------------


def _rows(place: _Place, table: str, version: int | None, group: int, skip: int) -> dict[str, Any]:
    entry = place.entry(place.store.pointer().visible if version is None else version)
    view, key_groups = place.view(entry, table), place.identity.key_groups
    if not (0 <= group < key_groups and skip >= 0):
        raise ConfigError(f"key group {group}, row {skip}: there is no such place in table {table}")
    page: list[dict[str, Any]] = []
    position = group, skip
    following: tuple[int, int] | None = None
    try:
        for read, first, batch in _from(place, view, group):
            start = max(0, skip - first) if read == group else 0
            rows = batch.slice(start, ROWS_MAX - len(page))
            page += [_row(view, key, value) for key, value in view.rows(rows)]
            position = read, max(first + start + rows.num_rows, skip if read == group else 0)
            if rows.num_rows < batch.num_rows - start:
                following = position
                break
    except OutOfTimeError:
        if position == (group, skip):
            raise ConfigError(
                f"table {table}: the rows before row {skip} of key group {group} take longer than"
                f" {SEARCH_S:g} s to read: `tidegate scan {table}` reads all"
            ) from None
        following = position
    place.check_kept(entry.version)
    return {
        "table": table,
        "version": entry.version,
        "decided_at": entry.decided_at_us / 1e6,
        "key_columns": [column.name for column in view.values.schema.key],
        "value_columns": _value_names(view.values.schema),
        "rows": page,
        "next": following,
    }


def _from(place: _Place, view: TableView, group: int) -> Iterator[tuple[int, int, Any]]:
    """Yield the batches from a key group on, each with its key group and its first row's number there."""
    current, first = group, 0
    for step in windows([each for each in view.groups if each >= group]):
        place.check()
        for read, batch in place.scan_groups(view.at, step):
            current, first = (current, first) if read == current else (read, 0)
            yield read, first, batch
            first += batch.num_rows


# -- two versions ---------------------------------------------------------------------------------


def _differences(place: _Place, before: int, after: int, table: str | None) -> dict[str, Any]:
    if before == after:
        raise ConfigError(f"version {before} twice: choose two versions")
    older, newer = sorted((before, after))
    sides = {version: place.entry(version) for version in (older, newer) if version}
    same = untouched(cast("Store", place), sides.get(older), sides[newer])
    tables = listed({name for entry in sides.values() for name in entry.tables})
    if table is not None and table not in tables:
        raise ConfigError(f"there is no table {table!r}; the tables there are: {', '.join(tables) or 'none'}")
    changes: list[dict[str, Any]] = []
    is_cut = False
    try:
        for name in (name for name in tables if name not in same and table in {None, name}):
            for change in _changes(place, name, sides.get(before), sides.get(after)):
                if len(changes) == DIFFERENCES_MAX:
                    is_cut = True
                    break
                changes.append(change)
    except OutOfTimeError:
        is_cut = True
    place.check_kept(older or newer)
    return {"before": before, "after": after, "changes": changes, "cut": is_cut}


def _changes(
    place: _Place, table: str, before: CatalogEntry | None, after: CatalogEntry | None
) -> Iterator[dict[str, Any]]:
    old_view, new_view = (
        place.view(entry, table) if entry is not None and table in entry.tables else None
        for entry in (before, after)
    )
    groups = range(place.identity.key_groups)
    batches = differences_of_groups(cast("Store", place), table, groups, before, after, place.check)
    for batch in batches:
        place.check()
        for index in range(batch.num_rows):
            key, old, new = (batch.column(name)[index].as_py() for name in ("key", "before", "after"))
            view = old_view if new is None else new_view
            assert view is not None, f"table {table} differs, and the version with the row lacks it"
            yield {
                "table": table,
                "key": _key_texts(view.values.decode_key(key)),
                "before": _decoded(old_view, key, old),
                "after": _decoded(new_view, key, new),
            }


def _decoded(view: TableView | None, key: bytes, value: bytes | None) -> dict[str, str | None] | None:
    return None if view is None or value is None else _columns(view, view.decode(key, value), CELL_MAX)


# -- text -----------------------------------------------------------------------------------------


def _row(view: TableView, key: Any, value: Any) -> dict[str, Any]:
    return {"key": _key_texts(key), "columns": _columns(view, value, CELL_MAX)}


def _value_names(schema: TableSchema) -> list[str]:
    return ["value"] if schema.value_format == "bytes" else [column.name for column in schema.columns]


def _columns(view: TableView, value: Any, longest: int) -> dict[str, str | None]:
    """Return a value's columns as text, null as None: a browser's numbers have 53 bits."""
    schema = view.values.schema
    columns = {"value": value} if schema.value_format == "bytes" else by_column(schema, value)
    return {name: _text(columns[name], longest) for name in _value_names(schema)}


def _text(value: Any, longest: int) -> str | None:
    if value is None:
        return None
    if isinstance(value, datetime.datetime) and not value.microsecond:
        return time_of(value, "seconds")
    text = value if isinstance(value, str) else cell(value)
    return text if len(text) <= longest else f"{text[:longest]} … ({len(text):,} characters)"


def _key_texts(key: Any) -> list[str]:
    """Return a key's columns as text that ``parse_key`` takes."""
    parts: Sequence[Any] = key if isinstance(key, tuple) else (key,)
    return [_key_text(part) for part in parts]


def _key_text(part: Any) -> str:
    if isinstance(part, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            text = part.decode()
            if text.isprintable() and not text.startswith("0x"):
                return text
        return f"0x{part.hex()}"
    return part if isinstance(part, str) else cell(part)
