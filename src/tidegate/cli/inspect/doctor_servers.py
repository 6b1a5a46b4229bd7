"""The part of ``tidegate doctor`` about log and store: whether they answer, their set-up, whether
they match.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from tidegate.base.checks import Check, Outcome
from tidegate.base.urls import redact
from tidegate.cli.core.config_files import store_options, wal_options
from tidegate.cli.inspect.doctor_disks import check_room, check_writable, folder_of, free_bytes
from tidegate.cli.inspect.doctor_limits import check_balance, check_tables
from tidegate.cli.inspect.doctor_logins import check_open_log, check_open_store, check_private
from tidegate.committers.opening.store_list import suggested_fixes
from tidegate.committers.repair.log_reach import held_for
from tidegate.errors import ConfigError, TidegateError, WalUnavailableError
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity, Pointer
from tidegate.sinks.store import Store
from tidegate.status.fit import misfit, passing_misfit
from tidegate.status.probes import LIMIT_S, Probe, in_time, nobody_at, timed
from tidegate.status.usage import refusal_of
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import View, fold_all
from tidegate.wal.log import Log
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Folded

OF_LOG, OF_STORE = "a decided version becomes visible (I4)", "everything"
NOT_YET = "no namespace yet; the first batch or `tidegate init` makes it"
ANY_NAME = "doctor"
"""A log is opened under this name only to validate URL and options; that touches nothing."""


class ServerArguments(NamedTuple):
    """doctor's arguments: URLs, a name, option files; ``also`` are the stores besides the primary."""

    store: str | None
    wal: str | None
    namespace: str | None
    wal_config: Path | None
    store_config: Path | None
    also: tuple[StoreRef, ...] = ()
    name: str = ""
    """The primary's, in the log's list."""


class Seen(NamedTuple):
    """The checks, and the log's state when it could be read."""

    checks: list[Check]
    state: Folded | None


@dataclasses.dataclass(slots=True)
class LogSeen:
    """The checks of the log; ``log`` and ``view`` are set when it is whole."""

    checks: list[Check] = dataclasses.field(default_factory=list)
    log: Log | None = None
    view: View = dataclasses.field(default_factory=View)


@dataclasses.dataclass(slots=True)
class StoreSeen:
    """The checks of a store; the other fields are valid when ``store`` is set."""

    checks: list[Check] = dataclasses.field(default_factory=list)
    store: Store | None = None
    identity: Identity | None = None
    pointer: Pointer = dataclasses.field(default_factory=Pointer)


Fields = TypeVar("Fields", LogSeen, StoreSeen)


class Asked(Generic[Fields]):
    """A server that is asked in a thread of its own; ``seen`` is filled in as its answers arrive."""

    def __init__(
        self,
        what: str,
        url: str,
        seen: Fields,
        look: Callable[[Fields, contextlib.ExitStack], None],
        limit_s: float,
    ) -> None:
        self._what, self._url = what, url
        self._seen: Fields = seen
        self._look: Callable[[Fields, contextlib.ExitStack], None] = look
        self._probe = Probe(self._run, limit_s)

    def _run(self) -> contextlib.ExitStack:
        opened = contextlib.ExitStack()
        self._look(self._seen, opened)
        return opened

    def result(self, closing: contextlib.ExitStack) -> Fields:
        """Return the answers; after the limit those that arrived, and a failed check for the rest."""
        late: list[str] = []

        def missed(why: str) -> contextlib.ExitStack:
            late.append(why)
            return contextlib.ExitStack()

        closing.enter_context(self._probe.result(missed))
        if not late:
            return self._seen
        part = "set-up" if self._seen.checks else "reachable"
        promise = OF_LOG if self._what == "log" else OF_STORE
        check = Check(f"{self._what}: {part}", "fail", f"{redact(self._url)}: {late[0]}", promise)
        return type(self._seen)([*self._seen.checks, check])  # its thread still uses the handles


def look_at(given: ServerArguments, limit_s: float = LIMIT_S) -> Seen:
    """Run all checks of log and stores that the arguments allow: each server at once, then all together.

    A log or store that has not answered after ``limit_s`` is a failed check.
    """
    with contextlib.ExitStack() as closing:
        probes = [Asked("store", url, StoreSeen(), look, limit_s) for url, look in _stores_of(given, limit_s)]
        in_log = LogSeen()
        if given.wal is not None:
            look = partial(_check_wal, given.wal, given.namespace, given.wal_config, limit_s)
            in_log = Asked("log", given.wal, in_log, look, limit_s).result(closing)
        in_stores = [each.result(closing) for each in probes]
        late: list[str] = []
        Probe(partial(_compare, given, in_log, in_stores), limit_s).result(late.append)
        state, checks = in_log.view.state, [*in_log.checks]
        if late:
            checks.append(Check("log and store: compared", "fail", late[0], OF_STORE))
        if state is not None:
            checks.append(check_tables(state))
            if in_stores and (given.also or state.stores):
                checks.append(check_list(state, [given.name, *(ref.name for ref in given.also)]))
        for name, seen in zip(["", *(f"{ref.name}: " for ref in given.also)], in_stores, strict=False):
            checks += [check._replace(check=f"{name}{check.check}") for check in seen.checks]
    return Seen(checks, state)


def _stores_of(
    given: ServerArguments, limit_s: float
) -> Iterator[tuple[str, Callable[[StoreSeen, contextlib.ExitStack], None]]]:
    if given.store is not None:
        yield given.store, partial(_check_store, given.store, given.namespace, given.store_config, limit_s)
    for s in given.also:
        yield s.url, partial(_look_at_store, s.url, given.namespace, in_time(s.url, s.options, limit_s))


def _compare(given: ServerArguments, in_log: LogSeen, in_stores: Sequence[StoreSeen]) -> None:
    """Compare log and stores, and add the checks to those of each store."""
    log = in_log.log
    if log is None:
        return
    try:
        # A version that a store shows may have been decided after the log was read.
        in_log.view = catch_up(in_log.view, log)
    except (TidegateError, OSError) as error:
        in_log.checks.append(_failed("log: reachable", str(given.wal), error, OF_LOG))
        return
    state = in_log.view.state
    for number, seen in enumerate(in_stores):
        if seen.store is None:
            continue
        seen.checks.append(check_one_namespace(state, seen.identity, seen.pointer, log, seen.store))
        if number == 0 and state is not None and seen.identity is not None:
            free = free_bytes(str(given.wal))
            seen.checks += timed(partial(_room, log, seen.store, state, free))


def _room(log: Log, store: Store, state: Folded, free: int | None) -> list[Check]:
    return list(check_room(log, store, state, free))


# -- the log ------------------------------------------------------------------------------------


def _check_wal(
    url: str,
    namespace: str | None,
    config: Path | None,
    limit_s: float,
    seen: LogSeen,
    closing: contextlib.ExitStack,
) -> None:
    try:
        options = in_time(url, wal_options(config), limit_s)
    except ConfigError as error:
        seen.checks.append(Check("log: options", "fail", str(error), OF_LOG))
        return
    if namespace is not None:
        check_log(url, namespace, options, seen, closing)
        return
    try:
        open_log(url, ANY_NAME, options).close()
    except (TidegateError, OSError) as error:
        seen.checks.append(_failed("log: reachable", url, error, OF_LOG))
        return
    if folder_of(url) is None:
        message = f"{redact(url)}: not looked at: give --namespace, the log's topics are named after it"
        seen.checks.append(Check("log: reachable", "warn", message, OF_LOG))


def check_log(
    url: str, namespace: str, options: dict[str, Any], seen: LogSeen, closing: contextlib.ExitStack
) -> None:
    """Check that the decision log can be read from start to end, and its set-up."""
    began = time.perf_counter()
    try:
        log = open_log(url, namespace, options)
    except (TidegateError, OSError) as error:
        seen.checks.append(_failed("log: reachable", url, error, OF_LOG))
        return
    closing.callback(log.close)
    if why := nobody_at(url):
        seen.checks.append(Check("log: reachable", "fail", f"{redact(url)}: {why}", OF_LOG))
        return
    try:
        view = fold_all(View(), log.decisions(), log.where)
    except (TidegateError, OSError) as error:
        seen.checks.append(_failed("log: reachable", url, error, OF_LOG))
        if not isinstance(error, WalUnavailableError | ConfigError):
            seen.checks += _set_up(log, url)
        return
    message = NOT_YET
    if view.state is not None:
        message = f"whole, {view.state.last_version} versions decided, {view.void} void records"
    took = round(time.perf_counter() - began, 3)
    seen.checks.append(Check("log: reachable", "pass", f"{log.where}: {message}", OF_LOG, seconds=took))
    seen.checks += timed(lambda: _set_up(log, url))
    seen.checks += check_private("log", url, options)
    seen.checks += timed(lambda: check_open_log(url, namespace, options))
    seen.log, seen.view = log, view


def _set_up(log: Log, url: str) -> list[Check]:
    try:
        return [check._replace(check=f"log: {check.check}") for check in log.checks()]
    except (TidegateError, OSError) as error:
        return [_failed("log: set-up", url, error, OF_LOG)]


def refuse_unusable(
    wal: str | None, store: str | None, wal_options: dict[str, Any], store_options: dict[str, Any]
) -> None:
    """Raise ConfigError, before anything begins, for an invalid URL or option, or an unwritable folder.

    None is the command's own location. No server is contacted.
    """
    if store is not None:
        open_store(store, ANY_NAME, store_options).close()
    if wal is not None:
        open_log(wal, ANY_NAME, wal_options).close()
    for given_as, url in (("--store", store or ""), ("--wal", wal or "")):
        folder = folder_of(url)
        check = None if folder is None else check_writable(given_as, folder)
        if check is not None and check.outcome == "fail":
            raise ConfigError(f"{given_as} {redact(url)}: {check.found}; give one that is")


# -- the store ----------------------------------------------------------------------------------


def _check_store(
    url: str,
    namespace: str | None,
    config: Path | None,
    limit_s: float,
    seen: StoreSeen,
    closing: contextlib.ExitStack,
) -> None:
    try:
        options = in_time(url, store_options(config), limit_s)
    except ConfigError as error:
        seen.checks.append(Check("store: options", "fail", str(error), OF_STORE))
        return
    _look_at_store(url, namespace, options, seen, closing)
    if seen.store is not None and seen.identity is not None:
        seen.checks += timed(partial(_balance, url, seen.store, seen.identity, seen.pointer))


def _balance(url: str, store: Store, identity: Identity, pointer: Pointer) -> list[Check]:
    try:
        return [check_balance(store, identity, pointer)]
    except (TidegateError, OSError) as error:
        return [_failed("key groups", url, error, OF_STORE)]


def _look_at_store(
    url: str, namespace: str | None, options: dict[str, Any], seen: StoreSeen, closing: contextlib.ExitStack
) -> None:
    if namespace is not None:
        check_store(url, namespace, options, seen, closing)
    else:
        seen.checks += [
            check._replace(found=check.found.replace(f", namespace {ANY_NAME}", ""))
            for check in _set_up_alone(url, options, closing)
        ]


def _set_up_alone(url: str, options: dict[str, Any], closing: contextlib.ExitStack) -> list[Check]:
    """Check what a store without a namespace shows."""
    try:
        store = open_store(url, ANY_NAME, options)
    except (TidegateError, OSError) as error:
        return [_failed("store: reachable", url, error, OF_STORE)]
    closing.callback(store.close)
    return [] if folder_of(url) is not None else _store_set_up(store, url)


def check_store(
    url: str, namespace: str, options: dict[str, Any], seen: StoreSeen, closing: contextlib.ExitStack
) -> None:
    """Check that the store answers, its state, and its set-up."""
    began = time.perf_counter()
    try:
        store = open_store(url, namespace, options)
        closing.callback(store.close)
        if why := nobody_at(url):
            seen.checks.append(Check("store: reachable", "fail", f"{redact(url)}: {why}", OF_STORE))
            return
        identity = store.identity()
        pointer = Pointer() if identity is None else store.pointer()
    except (TidegateError, OSError) as error:
        seen.checks.append(_failed("store: reachable", url, error, OF_STORE))
        return
    message = NOT_YET if identity is None else f"version {pointer.visible} is visible"
    took = round(time.perf_counter() - began, 3)
    seen.checks.append(Check("store: reachable", "pass", f"{store.where}: {message}", OF_STORE, seconds=took))
    seen.checks += timed(lambda: _store_set_up(store, url))
    seen.checks += check_private("store", url, options)
    seen.checks += timed(lambda: check_open_store(url, namespace, options))
    if identity is not None:
        refusal = refusal_of(store)
        seen.checks.append(Check("store: writes", "fail" if refusal else "pass", refusal or "taken", OF_LOG))
    seen.store, seen.identity, seen.pointer = store, identity, pointer


def _store_set_up(store: Store, url: str) -> list[Check]:
    try:
        checks = store.checks(thorough=True)
    except (TidegateError, OSError) as error:
        return [_failed("store: set-up", url, error, OF_STORE)]
    return [check._replace(check=f"store: {check.check}") for check in checks]


# -- both ---------------------------------------------------------------------------------------


def check_one_namespace(
    state: Folded | None, identity: Identity | None, pointer: Pointer, log: Log, store: Store
) -> Check:
    """Check that log and store belong together, and that the log has what the store lacks."""
    name, promise = "log and store: one namespace", "no version is skipped or invented (I10)"
    try:
        part = None if state is None else held_for(log, store, state, pointer)
        problem = misfit(state, identity, pointer, part)
        passing = None if problem else passing_misfit(state, store, identity, pointer)
    except (TidegateError, OSError) as error:
        return Check(name, "fail", f"not known: {error}", promise)
    message = problem or passing or (state.namespace if state else "neither has it yet")
    outcome: Outcome = "fail" if problem else "warn" if passing else "pass"
    return Check(name, outcome, message, promise)


def check_list(state: Folded, names: Sequence[str]) -> Check:
    """Check that the given stores are those of the log's list: a query with others is refused."""
    ways = suggested_fixes(state, names)
    message = "; ".join(f"store {way}" for way in ways) or f"{', '.join(names)}, as the log lists them"
    return Check("log and stores: the list", "fail" if ways else "pass", message, OF_LOG)


def _failed(check: str, url: str, error: Exception, promise: str) -> Check:
    named = isinstance(error, ConfigError) or redact(url) in str(error)
    message = str(error) if named else f"{redact(url)}: {error}"
    return Check(check, "fail", message, promise)
