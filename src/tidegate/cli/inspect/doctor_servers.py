"""The part of ``tidegate doctor`` about log and store: whether they answer, their set-up, whether
they match.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tidegate.base.checks import Check, Outcome
from tidegate.base.urls import redact
from tidegate.cli.core.config_files import store_options, wal_options
from tidegate.cli.inspect.doctor_disks import BOUNDED, check_room, check_writable, folder_of, free_bytes
from tidegate.cli.inspect.doctor_limits import check_tables
from tidegate.committers.opening.store_list import suggested_fixes
from tidegate.committers.repair.log_reach import held_for
from tidegate.errors import ConfigError, TidegateError, WalUnavailableError
from tidegate.options import StoreRef
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity, Pointer
from tidegate.sinks.store import Store
from tidegate.status.fit import misfit, passing_misfit
from tidegate.status.probes import LIMIT_S, Probe, timed
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


Fields = TypeVar("Fields", "LogSeen", "StoreSeen")


class Seen(NamedTuple):
    """The checks, and the log's state when it could be read."""

    checks: list[Check]
    state: Folded | None


@dataclasses.dataclass(slots=True)
class LogSeen:
    """The checks of the log; ``log`` and ``state`` are set when it is whole."""

    checks: list[Check]
    log: Log | None = None
    state: Folded | None = None


@dataclasses.dataclass(slots=True)
class StoreSeen:
    """The checks of the store; the other fields are valid when ``store`` is set."""

    checks: list[Check]
    store: Store | None = None
    identity: Identity | None = None
    pointer: Pointer = dataclasses.field(default_factory=Pointer)


def look_at(given: ServerArguments, limit_s: float = LIMIT_S) -> Seen:
    """Run all checks of log and store that the arguments allow: of the stores at once, then of the log.

    A log or store that has not answered after ``limit_s`` is a failed check.
    """
    in_log, in_store = LogSeen([]), StoreSeen([])
    with contextlib.ExitStack() as closing:
        # The stores first: visible versions were decided before, so a log read later must have them.
        first = given.store and _started(
            partial(_check_store, given.store, given.namespace, given.store_config), limit_s
        )
        also = [
            _started(partial(_look_at_store, at.url, given.namespace, at.options), limit_s)
            for at in given.also
        ]
        if first:
            in_store = _result(first, closing, partial(_late_store, given.store))
        others = [
            (at, _result(probe, closing, partial(_late_store, at.url)))
            for at, probe in zip(given.also, also, strict=True)
        ]
        if given.wal is not None:
            probe = _started(partial(_check_wal, given.wal, given.namespace, given.wal_config), limit_s)
            in_log = _result(probe, closing, partial(_late_log, given.wal))
        checks, state = [*in_log.checks, *in_store.checks], in_log.state
        if state is not None:
            checks.append(check_tables(state))
        if in_log.log is not None and in_store.store is not None:
            checks.append(
                check_one_namespace(state, in_store.identity, in_store.pointer, in_log.log, in_store.store)
            )
            if state is not None and in_store.identity is not None:
                room = partial(check_room, in_log.log, in_store.store, state, free_bytes(str(given.wal)))
                sizes = Probe(lambda: timed(lambda: list(room())), limit_s)
                checks += sizes.result(lambda why: [Check("size", "warn", f"not known: {why}", BOUNDED)])
        if state is not None and given.store is not None and (others or state.stores):
            checks.append(check_list(state, [given.name, *(at.name for at in given.also)]))
        for at, seen in others:
            if in_log.log is not None and seen.store is not None:
                seen.checks.append(
                    check_one_namespace(state, seen.identity, seen.pointer, in_log.log, seen.store)
                )
            checks += [check._replace(check=f"{at.name}: {check.check}") for check in seen.checks]
    return Seen(checks, state)


def _started(
    look: Callable[[contextlib.ExitStack], Fields], limit_s: float
) -> Probe[tuple[Fields, contextlib.ExitStack]]:
    def run() -> tuple[Fields, contextlib.ExitStack]:
        closing = contextlib.ExitStack()
        return look(closing), closing

    return Probe(run, limit_s)


def _result(
    probe: Probe[tuple[Fields, contextlib.ExitStack]],
    closing: contextlib.ExitStack,
    late: Callable[[str], Fields],
) -> Fields:
    seen, opened = probe.result(lambda why: (late(why), contextlib.ExitStack()))
    closing.enter_context(opened)
    return seen


def _late_store(url: str | None, why: str) -> StoreSeen:
    return StoreSeen([Check("store: reachable", "fail", f"{redact(str(url))}: {why}", OF_STORE)])


def _late_log(url: str, why: str) -> LogSeen:
    return LogSeen([Check("log: reachable", "fail", f"{redact(url)}: {why}", OF_LOG)])


# -- the log ------------------------------------------------------------------------------------


def _check_wal(
    url: str, namespace: str | None, config: Path | None, closing: contextlib.ExitStack
) -> LogSeen:
    try:
        options = wal_options(config)
    except ConfigError as error:
        return LogSeen([Check("log: options", "fail", str(error), OF_LOG)])
    if namespace is not None:
        return check_log(url, namespace, options, closing)
    try:
        open_log(url, ANY_NAME, options).close()
    except (TidegateError, OSError) as error:
        return LogSeen([_failed("log: reachable", url, error, OF_LOG)])
    if folder_of(url) is not None:
        return LogSeen([])
    found = f"{redact(url)}: not looked at: give --namespace, the log's topics are named after it"
    return LogSeen([Check("log: reachable", "warn", found, OF_LOG)])


def check_log(url: str, namespace: str, options: dict[str, Any], closing: contextlib.ExitStack) -> LogSeen:
    """Check that the decision log can be read from start to end, and its set-up."""
    began = time.perf_counter()
    try:
        log = open_log(url, namespace, options)
    except (TidegateError, OSError) as error:
        return LogSeen([_failed("log: reachable", url, error, OF_LOG)])
    closing.callback(log.close)
    try:
        view = fold_all(View(), log.decisions(), log.where)
    except (TidegateError, OSError) as error:
        failed = _failed("log: reachable", url, error, OF_LOG)
        answers = not isinstance(error, WalUnavailableError | ConfigError)
        return LogSeen([failed, *(_set_up(log, url) if answers else [])])
    found = NOT_YET
    if view.state is not None:
        found = f"whole, {view.state.last_version} versions decided, {view.void} void records"
    took = round(time.perf_counter() - began, 3)
    reached = Check("log: reachable", "pass", f"{log.where}: {found}", OF_LOG, seconds=took)
    return LogSeen([reached, *timed(lambda: _set_up(log, url))], log, view.state)


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
    url: str, namespace: str | None, config: Path | None, closing: contextlib.ExitStack
) -> StoreSeen:
    try:
        options = store_options(config)
    except ConfigError as error:
        return StoreSeen([Check("store: options", "fail", str(error), OF_STORE)])
    return _look_at_store(url, namespace, options, closing)


def _look_at_store(
    url: str, namespace: str | None, options: dict[str, Any], closing: contextlib.ExitStack
) -> StoreSeen:
    if namespace is not None:
        return check_store(url, namespace, options, closing)
    seen = _look_at_set_up(url, options, closing)
    unnamed = [
        check._replace(found=check.found.replace(f", namespace {ANY_NAME}", "")) for check in seen.checks
    ]
    return StoreSeen(unnamed)


def _look_at_set_up(url: str, options: dict[str, Any], closing: contextlib.ExitStack) -> StoreSeen:
    """Check what a store without a namespace shows."""
    try:
        store = open_store(url, ANY_NAME, options)
    except (TidegateError, OSError) as error:
        return StoreSeen([_failed("store: reachable", url, error, OF_STORE)])
    closing.callback(store.close)
    return StoreSeen([] if folder_of(url) is not None else _store_set_up(store, url))


def check_store(
    url: str, namespace: str, options: dict[str, Any], closing: contextlib.ExitStack
) -> StoreSeen:
    """Check that the store answers, its state, and its set-up."""
    began = time.perf_counter()
    try:
        store = open_store(url, namespace, options)
        closing.callback(store.close)
        identity = store.identity()
        pointer = Pointer() if identity is None else store.pointer()
    except (TidegateError, OSError) as error:
        return StoreSeen([_failed("store: reachable", url, error, OF_STORE)])
    found = NOT_YET if identity is None else f"version {pointer.visible} is visible"
    took = round(time.perf_counter() - began, 3)
    reached = Check("store: reachable", "pass", f"{store.where}: {found}", OF_STORE, seconds=took)
    return StoreSeen([reached, *timed(lambda: _store_set_up(store, url))], store, identity, pointer)


def _store_set_up(store: Store, url: str) -> list[Check]:
    try:
        found = store.checks(thorough=True)
    except (TidegateError, OSError) as error:
        return [_failed("store: set-up", url, error, OF_STORE)]
    return [check._replace(check=f"store: {check.check}") for check in found]


# -- both ---------------------------------------------------------------------------------------


def check_one_namespace(
    state: Folded | None, identity: Identity | None, pointer: Pointer, log: Log, store: Store
) -> Check:
    """Check that log and store belong together, and that the log has what the store lacks."""
    held = None if state is None else held_for(log, store, state, pointer)
    problem = misfit(state, identity, pointer, held)
    passing = None if problem else passing_misfit(state, store, identity, pointer)
    found = problem or passing or (state.namespace if state else "neither has it yet")
    promise = "no version is skipped or invented (I10)"
    outcome: Outcome = "fail" if problem else "warn" if passing else "pass"
    return Check("log and store: one namespace", outcome, found, promise)


def check_list(state: Folded, names: Sequence[str]) -> Check:
    """Check that the given stores are those of the log's list: a query with others is refused."""
    ways = suggested_fixes(state, names)
    found = "; ".join(f"store {way}" for way in ways) or f"{', '.join(names)}, as the log lists them"
    return Check("log and stores: the list", "fail" if ways else "pass", found, OF_LOG)


def _failed(check: str, url: str, error: Exception, promise: str) -> Check:
    named = isinstance(error, ConfigError) or redact(url) in str(error)
    found = str(error) if named else f"{redact(url)}: {error}"
    return Check(check, "fail", found, promise)
