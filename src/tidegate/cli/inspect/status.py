"""``tidegate status``: the state of a namespace, in log and store, once or live. Writes nothing."""

from __future__ import annotations

import contextlib
import time
from typing import Annotated, Any

import typer

from tidegate.base.clock import Clock
from tidegate.base.text import exact_time_of, time_of
from tidegate.cli.core.app import placed_in, print_message
from tidegate.cli.core.config_files import StoreConfigs, WalConfig, stores_given, wal_options
from tidegate.cli.core.options import For, Json, Limit, MaybeWal, Namespace, Stores, end_of, examples
from tidegate.cli.core.output import Pairs, Part, Rows, print_json, print_parts, showing
from tidegate.cli.core.settings_file import shown_sources
from tidegate.committers.opening.open import WRITER_ALIVE_S
from tidegate.errors import ConfigError, TidegateError, WalGapError
from tidegate.sinks.records import Pointer
from tidegate.sinks.rules.visible import moment
from tidegate.status import log_size
from tidegate.status.look import InLog, InStore, Look, Places
from tidegate.status.probes import LIMIT_S
from tidegate.wal.fold import View
from tidegate.wal.record import Folded

EXAMPLES = examples(
    "tidegate status --store sqlite:///data/store --wal file:///data/wal --namespace flights",
    "tidegate status --watch --every 5",
    "tidegate status --watch --for 10min --json >> status.jsonl",
)


def status(  # noqa: PLR0913 - its options
    ctx: typer.Context,
    store: Stores,
    namespace: Namespace,
    store_config: StoreConfigs,
    wal: MaybeWal = None,
    wal_config: WalConfig = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    every: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="Seconds between refreshes with --watch (default 2)."),
    ] = None,
    for_: For = None,
    limit: Limit = LIMIT_S,
    json: Json = False,
) -> None:
    """Show where a namespace stands, writing nothing; with several stores a row for each.

    Without --wal only what the store knows, and so while the log does not answer (exit code 6). Exit
    code 10 when log and store do not fit, or when a version that waits may be lost: the log keeps it for a
    time only, and that is over.

    With --watch a live view on a terminal; elsewhere a block, or with --json a line, for each refresh. A
    log or store that does not answer is named there. Ctrl-C ends it with exit code 0, --for with that of the
    last refresh.
    """
    if not watch and (every is not None or for_ is not None):
        raise ConfigError("--every and --for are for --watch: add it, or leave them out")
    options = {} if wal is None else wal_options(wal_config)
    places = Places(stores_given(store, store_config), namespace, wal, options, limit)
    with contextlib.closing(places):
        seen = places.look()  # also of a live view: a wrong name or URL is refused at once
        if watch:
            code = _watch(places, seen, every or 2.0, end_of(for_), json=json)
        else:
            code = _show(seen, shown_sources(ctx), json=json)
    if code:
        raise typer.Exit(code)


def _show(seen: Look, settings: str, *, json: bool) -> int:
    if json:
        print_json(placed_in(_as_json(seen)))
    else:
        parts = [*_parts(seen, [*_as_pairs(seen), *([("settings", settings)] if settings else [])])]
        if seen.in_store.tables:
            rows = [_table_row(table) for table in seen.in_store.tables]
            parts.append(Rows(["table", "key", "value", "emptied at"], rows))
        print_parts(placed_in(parts))
    for warning in seen.warnings:
        print_message(f"warning: {warning}")
    for problem in seen.problems:
        print_message(problem)
    return _code_of(seen)


def _watch(places: Places, first: Look, every_s: float, end: float | None, *, json: bool) -> int:
    """Refresh until ``end``; return the last refresh's exit code, or 0 after Ctrl-C."""
    seen: Look | TidegateError = first
    with contextlib.suppress(KeyboardInterrupt), showing(json=json) as show:
        while True:
            show(
                (_as_json if json else _lines)(seen) if isinstance(seen, Look) else _not_seen(seen, json=json)
            )
            left = every_s if end is None else min(every_s, end - time.monotonic())
            if left <= 0:
                return _code_of(seen)
            time.sleep(left)
            try:
                seen = places.look()
            except TidegateError as error:
                seen = error
    return 0


def _code_of(seen: Look | TidegateError) -> int:
    if isinstance(seen, TidegateError):
        return seen.exit_code
    if seen.log_error is not None:
        return seen.log_error.exit_code
    return WalGapError.exit_code if seen.problems else 0


def _not_seen(error: TidegateError, *, json: bool) -> Any:
    message, now = f"{type(error).__name__}: {error}", Clock().now_us()
    return (
        {"at": moment(now), "error": message}
        if json
        else [Pairs([("at", time_of(moment(now))), ("error", message)])]
    )


def _lines(seen: Look) -> list[Part]:
    """Return a live view: the changing values, and the problems."""
    findings = [("warning", one) for one in seen.warnings] + [("problem", one) for one in seen.problems]
    return _parts(seen, [("at", time_of(moment(seen.at_us))), *_as_pairs(seen), *findings])


def _parts(seen: Look, pairs: list[tuple[str, Any]]) -> list[Part]:
    stores = Rows(["store", "at", "visible", "lag", "stands"], [row.cells() for row in seen.rows])
    return [Pairs(pairs), *([stores] if seen.several else [])]


def _as_json(seen: Look) -> dict[str, Any]:
    in_store, in_log, pointer = seen.in_store, seen.in_log, seen.in_store.pointer
    age_s = _age_s(seen)
    facts = {
        "namespace": seen.namespace,
        "at": moment(seen.at_us),
        "uuid": in_store.identity and in_store.identity.uuid,
        "key_groups": in_store.identity and in_store.identity.key_groups,
        "visible": pointer.visible,
        "decided_at": in_store.newest and moment(in_store.newest.decided_at_us),
        "age_s": age_s,
        "horizon": pointer.horizon,
        "epoch": pointer.epoch,
        "writer": pointer.driver or None,
        "removed": pointer.is_removed,
        "heartbeat_age_s": pointer.heartbeat_age_s,
        "closed_age_s": pointer.closed_age_s,
        "tables": [{k: v for k, v in table.items() if k != "shown"} for table in in_store.tables],
        "problems": seen.problems,
        "warnings": seen.warnings,
        "log_error": seen.log_error and str(seen.log_error),
    }
    if in_log is not None:
        state = in_log.view.state
        decided = state.last_version if state else 0
        facts |= {
            "decided": decided,
            "lag": decided - pointer.visible,
            "lineage": state and state.lineage,
            "last_batch": state.last_batch[1] if state and state.last_batch else None,
            "log_epoch": state.epoch if state else 0,
            "void_records": in_log.view.void,
            "void_reasons": list(in_log.view.void_reasons),
        } | log_size.as_json(in_log.facts, in_log.deadline)
    return facts | ({"stores": [row.as_json() for row in seen.rows]} if seen.several else {})


def _as_pairs(seen: Look) -> list[tuple[str, Any]]:
    in_log, pointer = seen.in_log, seen.in_store.pointer
    pairs: list[tuple[str, Any]] = [
        ("namespace", _named(seen.namespace, seen.in_store, in_log)),
        ("visible version", pointer.visible or "none yet"),
    ]
    if seen.in_store.newest is not None:
        when = exact_time_of(moment(seen.in_store.newest.decided_at_us))
        pairs.append(("its age", f"{log_size.span(_age_s(seen) or 0.0)}: decided at {when}"))
    if in_log is None:
        why = "not known without --wal" if seen.log_error is None else "not known: see the problem below"
        pairs.append(("decided version", why))
    else:
        state = in_log.view.state
        decided = state.last_version if state else 0
        waiting = decided - pointer.visible
        way = "see the problem below" if seen.problems else "`tidegate recover`, or wait"
        lag = f"{decided} ({waiting} not visible yet: {way})" if waiting > 0 else decided
        pairs.append(("decided version", lag or "none yet"))
    pairs += [
        ("oldest readable", pointer.horizon or (1 if pointer.visible else "none yet")),
        ("epoch", pointer.epoch),
        ("writer", _writer(pointer)),
    ]
    if in_log is not None:
        pairs += _log_pairs(in_log.view) + log_size.as_pairs(in_log.facts, in_log.deadline)
    return pairs


def _age_s(seen: Look) -> float | None:
    """Return the visible version's age; the difference of two hosts' clocks may distort it a little."""
    newest = seen.in_store.newest
    return None if newest is None else max(0.0, (seen.at_us - newest.decided_at_us) / 1e6)


def _named(namespace: str, in_store: InStore, in_log: InLog | None) -> str:
    state: Folded | None = in_log.view.state if in_log else None
    if in_store.identity is not None:
        return f"{namespace} ({in_store.identity.key_groups} key groups, uuid {in_store.identity.uuid})"
    if state is not None:
        return f"{namespace} ({state.key_groups} key groups, uuid {state.namespace}), in the log only"
    return namespace


def _log_pairs(view: View) -> list[tuple[str, Any]]:
    state = view.state
    batch = state.last_batch if state else None
    of_batch = f", last batch {batch[1]}" if batch else ""
    pairs: list[tuple[str, Any]] = [("follows query", f"{(state and state.lineage) or 'none yet'}{of_batch}")]
    if state is None:
        return pairs
    void = f"{view.void} (last: {view.void_reasons[-1]})" if view.void else 0
    return [*pairs, ("epoch in the log", state.epoch), ("void records", void)]


def _writer(pointer: Pointer) -> str:
    if pointer.is_removed:
        return "none: the store was removed"
    return f"{pointer.writer}, {_heartbeat(pointer)}" if pointer.writer else "none yet"


def _heartbeat(pointer: Pointer) -> str:
    age, closed_age = pointer.heartbeat_age_s, pointer.closed_age_s
    if age is None:
        return "closed" if closed_age is None else f"closed {log_size.span(closed_age)} ago"
    alive = "seems to be running" if age < WRITER_ALIVE_S else "seems to be down"
    return f"last heartbeat {log_size.span(age)} ago, {alive}"


def _table_row(table: dict[str, Any]) -> tuple[Any, ...]:
    key, value = table["shown"]
    return (
        table["name"],
        key,
        value if table["value_format"] != "bytes" else f"{value} as is",
        (f"version {table['emptied_at']}" if table["emptied_at"] else "never"),
    )
