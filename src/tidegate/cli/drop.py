"""``tidegate drop``: remove a namespace, for ever."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidegate.cli.common import Force, Json, Namespace, Store, Wal, driver_for, examples, no_namespace
from tidegate.cli.output import print_json
from tidegate.cli.wal_config import WalConfig, endpoints
from tidegate.committers.drop import drop_namespace
from tidegate.committers.open import refuse_if_writer_alive
from tidegate.errors import ConfigError, CorruptError
from tidegate.options import redact

EXAMPLES = examples(
    "tidegate drop --store sqlite:///data/store --wal file:///data/wal --namespace flights",
    "tidegate drop --yes --namespace flights",
)


def drop(
    store: Store,
    wal: Wal,
    namespace: Namespace,
    wal_config: WalConfig = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the namespace's name.")] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Remove a namespace from store and log, for ever.

    All versions, all tables. On a terminal it asks for the namespace's name; elsewhere it
    needs --yes. Refused while a writer is running, when the log does not answer, and when only
    the log is there (a wrong --store?). With --force it may be repeated when it was cut short.
    Checkpoints stay: a query that makes the namespace anew starts from a new one.
    """
    where = endpoints(store, wal, namespace, wal_config)
    if not yes:
        _ask(store, wal, namespace)
    with driver_for(where) as driver:
        try:
            refuse_if_writer_alive(driver, "tidegate drop", force=force)
            # A log that does not answer, or lets nobody in, is told before the store is gone.
            in_log = None if force else driver.fold_on()
            if in_log is not None and driver.store.identity() is None:
                raise ConfigError(
                    f"{redact(wal)} has namespace {namespace}, {redact(store)} has nothing of it, so only the"
                    " log would go: check --store; if the store is gone, or a drop was cut short, use --force"
                )
        except CorruptError:
            if not force:  # whether a writer runs cannot be told
                raise
        dropped = drop_namespace(driver)
    if not any(dropped):
        raise no_namespace(namespace, store, wal)
    if json:
        print_json({"namespace": namespace, **dropped._asdict()})
        return
    print(f"namespace {namespace} is gone")
    for there, what, url in ((dropped.store, "store", store), (dropped.log, "log", wal)):
        print(f"  {what:<6} {redact(url)}{'' if there else ' (nothing was there)'}")


def _ask(store: str, wal: str, namespace: str) -> None:
    if not _is_terminal():
        raise ConfigError(
            f"namespace {namespace} would be removed from {redact(store)} and {redact(wal)}, for ever: add"
            " --yes to do that without being asked"
        )
    print(f"This removes namespace {namespace}, all its versions and its log, for ever:", file=sys.stderr)
    print(f"  store  {redact(store)}\n  log    {redact(wal)}", file=sys.stderr)
    if typer.prompt("Type the namespace's name to go on", err=True) != namespace:
        raise ConfigError("that is not its name; nothing was removed")


def _is_terminal() -> bool:
    return sys.stdin.isatty()
