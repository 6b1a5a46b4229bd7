"""One probe of a namespace in stores and log, for ``tidegate status``. Writes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from tidegate.base.clock import Clock
from tidegate.base.names import saved_by_relog
from tidegate.base.urls import redact
from tidegate.committers.repair.log_reach import held_for
from tidegate.errors import CorruptError, StoreUnavailableError, TidegateError, WalUnavailableError
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import CatalogEntry, Identity, Pointer
from tidegate.sinks.rules.visible import schemas_by_table
from tidegate.sinks.store import Store
from tidegate.status import log_size
from tidegate.status.fit import misfit, passing_misfit
from tidegate.status.probes import LIMIT_S, Probe, in_time, nobody_at
from tidegate.status.stores import StoreRow, ask_all, no_namespace, problems_of, with_log
from tidegate.status.usage import refusal_of
from tidegate.values.decode import described
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import View
from tidegate.wal.log import Log
from tidegate.wal.open_log import open_log

T = TypeVar("T")


class InStore(NamedTuple):
    """The state in the first store that answers; ``newest`` is the visible version, if any."""

    identity: Identity | None
    pointer: Pointer
    newest: CatalogEntry | None
    tables: list[dict[str, Any]]


class InLog(NamedTuple):
    """The state in the log."""

    view: View
    facts: log_size.LogFacts
    deadline: log_size.Deadline | None


class Look(NamedTuple):
    """The state of a namespace. ``rows`` has a row for each store; ``several``: they are worth showing."""

    namespace: str
    at_us: int
    in_store: InStore
    in_log: InLog | None
    rows: list[StoreRow]
    several: bool
    problems: list[str]
    warnings: list[str]
    log_error: WalUnavailableError | CorruptError | None = None
    """The reason why a given log is not shown: it does not answer, or cannot be read."""


class Places:
    """The stores and log of one namespace, kept open from one probe to the next.

    The fold continues where it stopped, so a probe costs only the new records, and memory does not
    grow. After a failure the next probe opens everything again.
    """

    def __init__(
        self,
        ats: Sequence[StoreRef],
        namespace: str,
        wal: str | None,
        wal_options: dict[str, Any],
        limit_s: float = LIMIT_S,
    ) -> None:
        self._ats, self._namespace, self._limit_s = ats, namespace, limit_s
        self._wal, self._wal_options = wal, wal_options
        self._stores: dict[str, Store] = {}
        self._log: Log | None = None
        self._view = View()
        self._clock = Clock()

    def look(self) -> Look:
        """Return the current state. Raises: ConfigError, there is no such namespace. Others: it
        could not be read.
        """
        try:
            return self._look()
        except TidegateError:
            self.close()
            raise

    def close(self) -> None:
        """Release stores and log."""
        stores, log = list(self._stores.values()), self._log
        self._stores, self._log, self._view = {}, None, View()
        with contextlib.ExitStack() as closing:
            for store in stores:
                closing.callback(store.close)
            if log is not None:
                closing.callback(log.close)

    def _look(self) -> Look:
        # All are asked at once, so that any number of dead servers costs one limit. The log is read after the
        # stores: visible versions were decided before, so it must have them.
        opening_log = None if self._wal is None else Probe(self._opened_log, self._limit_s, Log.close)
        store, rows = self._answered()
        in_store = self._within(store, lambda: _in_store(store))
        refusal = self._within(store, lambda: refusal_of(store)) if in_store.identity else ""
        in_log, log_error = None, None
        if opening_log is not None:
            try:
                in_log = self._in_log(opening_log, in_store.pointer.waiting_after)
            except (WalUnavailableError, CorruptError) as error:
                if in_store.identity is None:
                    raise  # nothing is known
                log_error = error
        state = in_log.view.state if in_log else None
        if in_store.identity is None and state is None:
            answered = [ref.url for ref, row in zip(self._ats, rows, strict=True) if row.pointer is not None]
            raise no_namespace(self._namespace, *answered, *([self._wal] if self._wal else []))
        problems: list[str] = []
        warnings: list[str] = []
        if in_log is not None and self._log is not None:
            problems, warnings = _found_out(store, in_store, self._log, in_log)
        warnings += [refusal] if refusal else []
        rows = with_log(rows, state)
        several = len(rows) > 1 or (state is not None and bool(state.stores))
        problems += problems_of(rows) if several else []
        if log_error is not None:
            problems.append(f"{log_error}: the log is not shown; {self._advice(log_error, in_store)}")
        return Look(
            self._namespace,
            self._clock.now_us(),
            in_store,
            in_log,
            rows,
            several,
            problems,
            warnings,
            log_error,
        )

    def _advice(self, error: TidegateError, in_store: InStore) -> str:
        if isinstance(error, CorruptError):
            return saved_by_relog(self._namespace, in_store.pointer.visible)
        return "see `tidegate doctor`"

    def _answered(self) -> tuple[Store, list[StoreRow]]:
        """Return the first store that answers, and a row for each. Raises: the first one's error."""
        answers = ask_all(self._ats, self._opened, self._limit_s)
        self._stores = {each.row.name: each.store for each in answers if each.store is not None}
        # Without a log only a store knows the namespace.
        named = [each.store for each in answers if each.row.identity] if self._wal is None else []
        alive = [store for store in [*named, *(each.store for each in answers)] if store is not None]
        if not alive:
            raise next(each.error for each in answers if each.error is not None)
        return alive[0], [each.row for each in answers]

    def _opened(self, at: StoreRef) -> Store:
        opened = self._stores.get(at.name)
        if opened is None:  # which connects to nothing yet, and has checked the URL
            opened = open_store(at.url, self._namespace, in_time(at.url, at.options, self._limit_s))
            if why := nobody_at(at.url):
                opened.close()
                raise StoreUnavailableError(f"{redact(at.url)}: {why}")
        return opened

    def _within(self, store: Store, read: Callable[[], T]) -> T:
        """Return the result of ``read``. Raises: StoreUnavailableError: the store is late."""

        def late(why: str) -> NoReturn:
            self._stores = {name: each for name, each in self._stores.items() if each is not store}
            raise StoreUnavailableError(f"{store.where}: {why}")

        return Probe(read, self._limit_s, lambda _: store.close()).result(late)

    def _opened_log(self) -> Log:
        url, log = str(self._wal), self._log
        if log is None:
            log = open_log(url, self._namespace, in_time(url, self._wal_options, self._limit_s))
            if why := nobody_at(url):
                log.close()
                raise WalUnavailableError(f"{redact(url)}: {why}")
        log.is_empty()  # it answers
        return log

    def _in_log(self, opening: Probe[Log], visible: int) -> InLog:
        self._log = opening.result(self._late)
        self._view = catch_up(self._view, self._log)
        facts = log_size.look_at(self._log)
        deadline = log_size.deadline_of(facts, self._view.state, visible, self._clock.now_us())
        return InLog(self._view, facts, deadline)

    def _late(self, why: str) -> NoReturn:
        self._log = None  # the thread that waits for it closes it
        raise WalUnavailableError(f"{redact(str(self._wal))}: {why}")


def _in_store(store: Store) -> InStore:
    identity = store.identity()
    pointer = Pointer() if identity is None else store.pointer()
    entries = store.catalog(pointer.visible, pointer.visible) if pointer.visible else []
    return InStore(
        identity,
        pointer,
        entries[0] if entries else None,
        _tables(store, identity, entries[0]) if entries else [],
    )


def _tables(store: Store, identity: Identity | None, entry: CatalogEntry) -> list[dict[str, Any]]:
    schemas, tables = schemas_by_table(store.where, entry.version, entry.tables, store.schemas()), []
    for name, table_at in sorted(entry.tables.items()):
        schema = schemas[name]
        tables.append(
            {
                "name": name,
                "key": {column.name: column.type for column in schema.key},
                "value": {column.name: column.type for column in schema.columns},
                "value_format": schema.value_format,
                "state_versions": list(schema.states),
                "schema_id": table_at.schema_id,
                "emptied_at": table_at.start,
                "key_groups": identity and identity.key_groups // table_at.apart,
                "shown": (described(schema.key), described(schema.columns)),
            }
        )
    return tables


def _found_out(store: Store, in_store: InStore, log: Log, in_log: InLog) -> tuple[list[str], list[str]]:
    """Return the problems, and the warnings of future ones."""
    state, identity, pointer = in_log.view.state, in_store.identity, in_store.pointer
    span = None if state is None else held_for(log, store, state, pointer)
    problem = misfit(state, identity, pointer, span)
    problems = [] if problem is None else [problem]
    passing = passing_misfit(state, store, identity, pointer)
    warnings, deadline = [*([passing] if passing else []), *in_log.facts.warnings()], in_log.deadline
    if deadline is not None and (deadline.near or deadline.passed):
        (problems if deadline.passed else warnings).append(deadline.told())
    return problems, warnings
