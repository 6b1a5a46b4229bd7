"""``tidegate migrate``: a namespace moves to the storage format of this release."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer

from tidegate.base.urls import redact
from tidegate.cli.core.config_files import StoreConfigs, stores_given
from tidegate.cli.core.options import Json, Namespace, Stores, examples
from tidegate.cli.core.output import print_json
from tidegate.committers.opening.open import WRITER_ALIVE_S
from tidegate.errors import ConfigError
from tidegate.options import StoreRef
from tidegate.sinks.capabilities import SupportsMigrate
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Pointer
from tidegate.status.stores import no_namespace

EXAMPLES = examples(
    "tidegate migrate --store redis://cache:6379 --namespace flights",
    "tidegate migrate --store sqlite:///data/store --namespace flights",
)


def migrate(
    store: Stores,
    namespace: Namespace,
    store_config: StoreConfigs,
    *,
    force: Annotated[bool, typer.Option("--force", help="Although a writer gave a sign of life.")] = False,
    json: Json = False,
) -> None:
    """Move a namespace of an earlier release to the storage format of this release.

    Redis and SQLite have format 2 since this release; readers and writers refuse format 1. Stop the query,
    and upgrade the readers; then migrate each store, and start the query. No row is rewritten: it
    takes a moment, whatever the size. It may be repeated, and finishes what was interrupted.
    In Cassandra there is nothing to do.
    """
    ats = stores_given(store, store_config)
    every = [_migrated(at, namespace, force=force) for at in ats]
    if json:
        print_json(every[0] if len(every) == 1 else {"namespace": namespace, "stores": every})
        return
    for at, one in zip(ats, every, strict=True):
        moved = f"format {one['format']}, before {one['before']}"
        nothing = f"format {one['format']} already: nothing to do"
        print(f"{redact(at.url)}: {moved if one['before'] != one['format'] else nothing}")


def _migrated(at: StoreRef, namespace: str, *, force: bool) -> dict[str, Any]:
    with contextlib.closing(open_store(at.url, namespace, at.options)) as opened:

        def check(pointer: Pointer) -> None:
            age_s = pointer.heartbeat_age_s
            if not force and age_s is not None and age_s < WRITER_ALIVE_S:
                raise ConfigError(
                    f"{opened.where}: its writer gave a sign of life {age_s:.0f} s ago: stop the query, wait"
                    f" {WRITER_ALIVE_S:.0f} s, and run this again; or use --force"
                )

        before = opened.migrate(check) if isinstance(opened, SupportsMigrate) else None
        identity = opened.identity()
        if identity is None:
            raise no_namespace(namespace, at.url)
        fields = {"store": at.name, "namespace": namespace, "before": before or identity.format}
        return fields | {"format": identity.format}
