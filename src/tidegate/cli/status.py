"""``tidegate status``: where a namespace stands, in log and store. Writes nothing."""

from __future__ import annotations

from typing import Any

import typer

from tidegate.cli import retention
from tidegate.cli.client_config import StoreConfigs, WalConfig, stores_given, wal_options
from tidegate.cli.commands import say
from tidegate.cli.common import Json, MaybeWal, Namespace, Stores, examples
from tidegate.cli.fit import misfit
from tidegate.cli.output import print_json, print_pairs, print_table
from tidegate.cli.rows import look_at_stores, problems_of, with_log
from tidegate.clock import Clock
from tidegate.committers.open import WRITER_ALIVE_S
from tidegate.errors import ConfigError, WalGapError
from tidegate.options import redact
from tidegate.sinks.open_store import open_store
from tidegate.sinks.store import CatalogEntry, Pointer
from tidegate.sinks.store import Store as StoreInterface
from tidegate.values import described
from tidegate.wal.fold import View, fold_all
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Folded

EXAMPLES = examples(
    "tidegate status --store sqlite:///data/store --wal file:///data/wal --namespace flights",
)


def status(
    store: Stores,
    namespace: Namespace,
    store_config: StoreConfigs,
    wal: MaybeWal = None,
    wal_config: WalConfig = None,
    *,
    json: Json = False,
) -> None:
    """Show where a namespace stands, writing nothing; with several stores a row for each.

    Without --wal only what the store knows. Exit code 10 when log and store do not fit, or
    when a version that waits may be lost: the log keeps it for a time only, and that is over.
    """
    # The store first: what is visible was decided before, so a log read later must have it.
    ats = stores_given(store, store_config)
    primary, rows = look_at_stores(ats, namespace)
    in_store = _in_store(primary.url, namespace, primary.options)
    options = {} if wal is None else wal_options(wal_config)
    in_log = None if wal is None else _in_log(wal, namespace, options, in_store["pointer"].visible)
    if in_store["uuid"] is None and (in_log is None or in_log["uuid"] is None):
        where = redact(primary.url) if wal is None else f"{redact(primary.url)} nor in {redact(wal)}"
        raise ConfigError(
            f"there is no namespace {namespace!r} in {where}: check URLs and name; a query's first batch"
            " makes it, and so does `tidegate init`"
        )
    problems, warnings = ([], []) if in_log is None else _found_out(in_store, in_log)
    state = in_log["view"].state if in_log else None
    rows = with_log(rows, state)
    told = len(rows) > 1 or (state is not None and bool(state.stores))
    problems += problems_of(rows) if told else []
    if json:
        facts = _as_json(namespace, in_store, in_log, problems) | {"warnings": warnings}
        print_json(facts | ({"stores": [row.as_json() for row in rows]} if told else {}))
    else:
        print_pairs(_as_pairs(namespace, in_store, in_log))
        if told:
            print()
            print_table(["store", "at", "visible", "lag", "stands"], [row.cells() for row in rows])
        if in_store["tables"]:
            print()
            print_table(["table", "key", "value", "emptied at"], [_table_row(t) for t in in_store["tables"]])
    for warning in warnings:
        say(f"warning: {warning}")
    for problem in problems:
        say(problem)
    if problems:
        raise typer.Exit(WalGapError.exit_code)


def _found_out(in_store: dict[str, Any], in_log: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What is wrong, and what may become so."""
    problem = misfit(in_log["view"].state, in_store["identity"], in_store["pointer"])
    problems = [] if problem is None else [problem]
    warnings, deadline = in_log["facts"].warnings(), in_log["deadline"]
    if deadline is not None and (deadline.near or deadline.passed):
        (problems if deadline.passed else warnings).append(deadline.told())
    return problems, warnings


def _in_store(url: str, namespace: str, options: dict[str, Any]) -> dict[str, Any]:
    kept = open_store(url, namespace, options)
    try:
        identity = kept.identity()
        pointer = Pointer() if identity is None else kept.pointer()
        entries = kept.catalog(pointer.visible, pointer.visible) if pointer.visible else []
        tables = _tables(kept, entries[0]) if entries else []
    finally:
        kept.close()
    return {
        "identity": identity,
        "uuid": identity and identity.uuid,
        "key_groups": identity and identity.key_groups,
        "pointer": pointer,
        "tables": tables,
    }


def _tables(kept: StoreInterface, entry: CatalogEntry) -> list[dict[str, Any]]:
    schemas = kept.schemas()
    found = []
    for name, at in sorted(entry.tables.items()):
        schema = schemas[at.schema_id]
        found.append(
            {
                "name": name,
                "key": {column.name: column.type for column in schema.key},
                "value": {column.name: column.type for column in schema.value},
                "value_format": schema.value_format,
                "schema_id": at.schema_id,
                "emptied_at": at.start,
                "shown": (described(schema.key), described(schema.value)),
            }
        )
    return found


def _in_log(url: str, namespace: str, options: dict[str, Any], visible: int) -> dict[str, Any]:
    log = open_log(url, namespace, options)
    try:
        view = fold_all(View(), log.decisions(), log.where)
        facts = retention.look_at(log)
    finally:
        log.close()
    deadline = retention.deadline_of(facts, view.state, visible, Clock().now_us())
    return {"uuid": view.state and view.state.namespace, "view": view, "facts": facts, "deadline": deadline}


def _as_json(
    namespace: str, in_store: dict[str, Any], in_log: dict[str, Any] | None, problems: list[str]
) -> dict[str, Any]:
    pointer: Pointer = in_store["pointer"]
    facts = {
        "namespace": namespace,
        "uuid": in_store["uuid"],
        "key_groups": in_store["key_groups"],
        "visible": pointer.visible,
        "horizon": pointer.horizon,
        "epoch": pointer.epoch,
        "writer": pointer.writer or None,
        "heartbeat_age_s": pointer.heartbeat_age_s,
        "tables": [{k: v for k, v in table.items() if k != "shown"} for table in in_store["tables"]],
        "problems": problems,
    }
    if in_log is not None:
        view: View = in_log["view"]
        state = view.state
        decided = state.last_version if state else 0
        facts |= {
            "decided": decided,
            "lag": decided - pointer.visible,
            "lineage": state and state.lineage,
            "last_batch": state.last_batch[1] if state and state.last_batch else None,
            "log_epoch": state.epoch if state else 0,
            "void_records": view.void,
            "void_reasons": list(view.void_reasons),
        } | retention.as_json(in_log["facts"], in_log["deadline"])
    return facts


def _as_pairs(
    namespace: str, in_store: dict[str, Any], in_log: dict[str, Any] | None
) -> list[tuple[str, Any]]:
    pointer: Pointer = in_store["pointer"]
    pairs: list[tuple[str, Any]] = [
        ("namespace", _named(namespace, in_store, in_log)),
        ("visible version", pointer.visible or "none yet"),
    ]
    if in_log is None:
        pairs.append(("decided version", "not known without --wal"))
    else:
        state = in_log["view"].state
        decided = state.last_version if state else 0
        waiting = decided - pointer.visible
        lag = (
            f"{decided} ({waiting} not visible yet: `tidegate recover`, or wait)" if waiting > 0 else decided
        )
        pairs.append(("decided version", lag or "none yet"))
    pairs += [
        ("oldest readable", pointer.horizon or (1 if pointer.visible else "none yet")),
        ("epoch", pointer.epoch),
        ("writer", f"{pointer.writer}, {_heartbeat(pointer)}" if pointer.writer else "none yet"),
    ]
    if in_log is not None:
        pairs += _log_pairs(in_log["view"]) + retention.as_pairs(in_log["facts"], in_log["deadline"])
    return pairs


def _named(namespace: str, in_store: dict[str, Any], in_log: dict[str, Any] | None) -> str:
    state: Folded | None = in_log["view"].state if in_log else None
    if in_store["identity"] is not None:
        return f"{namespace} ({in_store['key_groups']} key groups, uuid {in_store['uuid']})"
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


def _heartbeat(pointer: Pointer) -> str:
    age = pointer.heartbeat_age_s
    if age is None:
        return "no heartbeat"
    alive = "seems to be running" if age < WRITER_ALIVE_S else "seems to be down"
    return f"last heartbeat {age:.0f} s ago, {alive}"


def _table_row(table: dict[str, Any]) -> tuple[Any, ...]:
    key, value = table["shown"]
    return (
        table["name"],
        key,
        value if table["value_format"] == "json" else f"{value} as is",
        (f"version {table['emptied_at']}" if table["emptied_at"] else "never"),
    )
