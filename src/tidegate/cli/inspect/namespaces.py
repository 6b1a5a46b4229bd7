"""``tidegate namespaces``: the namespaces of a store."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer

from tidegate.base.clock import Clock
from tidegate.base.names import listed
from tidegate.base.urls import redact
from tidegate.cli.core.app import print_message
from tidegate.cli.core.config_files import StoreConfig, store_options
from tidegate.cli.core.options import Json, Store, examples
from tidegate.cli.core.output import print_json, print_table
from tidegate.errors import ConfigError, StoreUnavailableError, TidegateError
from tidegate.sinks.capabilities import SupportsNamespaces
from tidegate.sinks.open_store import open_store
from tidegate.sinks.rules.visible import moment
from tidegate.status.log_size import span

EXAMPLES = examples(
    "tidegate namespaces --store sqlite:///data/store",
    "tidegate namespaces --store redis://cache:6379 --json | jq -r '.namespaces[].namespace'",
)
LIMIT = 200


def namespaces(
    store: Store,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, help="Look at the first N namespaces, by name.")
    ] = LIMIT,
    store_config: StoreConfig = None,
    *,
    json: Json = False,
) -> None:
    """List the namespaces of a store, with their visible version, its age and its tables.

    Writes nothing. On Redis it scans the names of all keys of every primary. A namespace that this user may
    not read, or whose data cannot be read, is listed with the reason on standard error.
    """
    options = store_options(store_config)
    # The name that is opened here is irrelevant: the list is of the place.
    with contextlib.closing(open_store(store, "namespaces", options)) as place:
        if not isinstance(place, SupportsNamespaces):
            raise ConfigError(f"{redact(store)}: a store of this kind does not list its namespaces")
        names = place.namespaces()
    rows = [_row(store, name, options) for name in names[:limit]]
    if json:
        print_json({"namespaces": rows, "more": len(names) - len(rows)})
    elif rows:
        print_table(
            ["namespace", "visible", "age", "tables"],
            [
                (
                    row["namespace"],
                    "unreadable" if row["error"] else row["visible"] or "none yet",
                    "" if row["age_s"] is None else span(row["age_s"]),
                    ", ".join(row["tables"]),
                )
                for row in rows
            ],
        )
    else:
        print_message(f"{redact(store)} has no namespace")
    for row in rows:
        if row["error"]:
            print_message(f"namespace {row['namespace']}: {row['error']}")
    if len(names) > len(rows):
        print_message(f"{len(names) - len(rows)} more: --limit {len(names)} lists all")


def _row(url: str, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of one namespace. Raises: StoreUnavailableError."""
    row: dict[str, Any] = {"namespace": name, "visible": None, "decided_at": None, "age_s": None}
    row |= {"tables": [], "error": None}
    try:
        with contextlib.closing(open_store(url, name, options)) as store:
            version = store.pointer().visible
            newest = store.catalog(version, version) if version else []
    except StoreUnavailableError:
        raise
    except TidegateError as error:
        return row | {"error": f"{type(error).__name__}: {error}"}
    row["visible"] = version
    for entry in newest:
        age_s = max(0.0, (Clock().now_us() - entry.decided_at_us) / 1e6)
        row |= {"decided_at": moment(entry.decided_at_us), "age_s": round(age_s, 3)}
        row["tables"] = listed(entry.tables)
    return row
