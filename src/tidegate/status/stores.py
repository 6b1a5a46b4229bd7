"""A row for each store of a namespace: its visible version, its lag, whether it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from tidegate.base.text import brief, time_of
from tidegate.base.urls import redact
from tidegate.errors import ConfigError, StoreUnavailableError, TidegateError
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity, Pointer
from tidegate.sinks.rules.visible import moment
from tidegate.sinks.sqlite.discovery import has_instead
from tidegate.sinks.store import Store
from tidegate.status.fit import misfit
from tidegate.status.probes import Probe
from tidegate.wal.fold import recent_version
from tidegate.wal.record import Folded


class StoreRow(msgspec.Struct, frozen=True):
    """One store. ``pointer`` None: it does not answer, and ``error`` has the reason, or it was not given.

    ``lag`` and ``behind_since_us`` are from the log: the number of decided versions that it lacks,
    and when the first of these was decided.
    """

    name: str
    url: str = ""
    given: bool = True
    listed: bool | None = None
    identity: Identity | None = None
    pointer: Pointer | None = None
    error: str = ""
    lag: int | None = None
    behind_since_us: int | None = None
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the row for machines."""
        since = self.behind_since_us
        return {
            "name": self.name,
            "url": self.url or None,
            "listed": self.listed,
            "visible": self.pointer and self.pointer.visible,
            "horizon": self.pointer and self.pointer.horizon,
            "filling_at": (self.pointer and self.pointer.filling_at) or None,
            "lag": self.lag,
            "behind_since": since and moment(since).isoformat(),
            "heartbeat_age_s": self.pointer and self.pointer.heartbeat_age_s,
            "error": self.error or None,
        }

    def cells(self) -> tuple[Any, ...]:
        """Return the row for people."""
        visible = "not known" if self.pointer is None else self.pointer.visible or "none yet"
        return (self.name, self.url or "not given", visible, _dash(self.lag), self._stands())

    def _stands(self) -> str:
        if not self.given:
            return "in the log's list, not given here"
        if self.error:
            return f"unreachable: {self.error}"
        if self.problem:
            return self.problem
        if self.listed is False:
            return f"not in the log's list: `tidegate store add {self.name}=URL`"
        if self.identity is None:
            return "empty: filled by the query, or by `tidegate recover`" if self.listed else "empty"
        since = f" since {time_of(moment(self.behind_since_us))}" if self.behind_since_us else ""
        if self.pointer is not None and self.pointer.filling_at:
            return f"being filled at version {self.pointer.filling_at}"
        return f"behind{since}" if self.lag else "at the log's end" if self.lag == 0 else "answers"


def _dash(value: int | None) -> Any:
    return "-" if value is None else value


class Answer(NamedTuple):
    """The row of a store, and the store, open; None: it did not answer, for the reason ``error``."""

    row: StoreRow
    store: Store | None
    error: TidegateError | None = None


def ask(at: StoreRef, opened: Callable[[], Store]) -> Answer:
    """Ask a store for its namespace and its pointer. Raises: ConfigError."""
    row = StoreRow(at.name, redact(at.url))
    try:
        store = opened()
    except ConfigError:
        raise
    except TidegateError as error:
        return _unanswered(row, error)
    try:
        identity = store.identity()
        pointer = Pointer() if identity is None else store.pointer()
    except TidegateError as error:
        store.close()
        if isinstance(error, ConfigError):
            raise
        return _unanswered(row, error)
    return Answer(msgspec.structs.replace(row, identity=identity, pointer=pointer), store)


def ask_all(ats: Sequence[StoreRef], opened: Callable[[StoreRef], Store], limit_s: float) -> list[Answer]:
    """Ask all stores at once; one that does not answer before ``limit_s`` is closed when it does."""

    def late(ref: StoreRef, why: str) -> Answer:
        return _unanswered(
            StoreRow(ref.name, redact(ref.url)), StoreUnavailableError(f"{redact(ref.url)}: {why}")
        )

    probes = [Probe(partial(ask, ref, partial(opened, ref)), limit_s, _close) for ref in ats]
    return [probe.result(partial(late, ref)) for ref, probe in zip(ats, probes, strict=True)]


def rows_of(ats: Sequence[StoreRef], namespace: str, limit_s: float) -> list[StoreRow]:
    """Return a row for each store; they are opened for this call alone."""
    answers = ask_all(ats, lambda ref: open_store(ref.url, namespace, ref.options), limit_s)
    for answer in answers:
        _close(answer)
    return [answer.row for answer in answers]


def _unanswered(row: StoreRow, error: TidegateError) -> Answer:
    return Answer(msgspec.structs.replace(row, error=f"{type(error).__name__}: {error}"), None, error)


def _close(answer: Answer) -> None:
    if answer.store is not None:
        answer.store.close()


def with_log(rows: Sequence[StoreRow], state: Folded | None) -> list[StoreRow]:
    """Add the log's information to the rows, and a row for each store that it lists and was not given."""
    if state is None:
        return list(rows)
    only = next((row.name for row in rows if row.identity), "")
    given = [_with_log(row, state, only) for row in rows]
    names = {row.name for row in rows}
    return given + [StoreRow(name, given=False, listed=True) for name in state.stores if name not in names]


def _is_listed(row: StoreRow, state: Folded, only: str) -> bool | None:
    """Return whether the log lists the store; None: not known.

    An empty list means one store, whatever its name, the first that has the namespace (``only``).
    Before the first version it means nothing yet.
    """
    if state.stores:
        return row.name in state.stores
    stranger = state.last_version > 0 and only not in ("", row.name) and row.pointer is not None
    return False if stranger else None


def _with_log(row: StoreRow, state: Folded, only: str) -> StoreRow:
    row = msgspec.structs.replace(row, listed=_is_listed(row, state, only))
    if row.pointer is None:
        return row
    lag = max(0, state.last_version - row.pointer.visible)
    first = recent_version(state, row.pointer.visible + 1) if lag else None
    problem = misfit(state, row.identity, row.pointer) if row.identity else None
    return msgspec.structs.replace(
        row, lag=lag, behind_since_us=first and first.decided_at_us, problem=problem or ""
    )


def problems_of(rows: Sequence[StoreRow]) -> list[str]:
    """Return the problems of the stores, except for the first store's mismatch, which is reported
    separately.
    """
    problems = [f"store {row.name}: {row.problem}" for row in rows[1:] if row.problem]
    for row in rows:
        if not row.given:
            problems.append(
                f"store {row.name} is in the log's list and was not given: give it as --store {row.name}=URL,"
                f" or run `tidegate store remove {row.name}`"
            )
        elif row.listed is False:
            problems.append(
                f"store {row.name} is not in the log's list: run `tidegate store add {row.name}=URL`, or"
                " leave it out"
            )
    return problems


def no_namespace(namespace: str, *urls: str) -> ConfigError:
    """Return the error for a command whose namespace does not exist."""
    return ConfigError(
        f"there is no namespace {brief(namespace)} in {' nor in '.join(map(redact, urls))}:"
        " check URLs and name; a"
        " query's first batch makes it, and so does `tidegate init`; an alias (`tidegate alias list`) is for"
        f" readers alone{next(filter(None, (has_instead(url, namespace) for url in urls)), '')}"
    )
