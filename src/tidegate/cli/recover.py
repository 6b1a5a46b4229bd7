"""``tidegate recover``: finish what was decided, without Spark."""

from __future__ import annotations

from tidegate.cli.common import (
    AllowUnsafe,
    Force,
    Json,
    Namespace,
    Store,
    Wal,
    driver_for,
    examples,
    made_here,
)
from tidegate.cli.output import print_json
from tidegate.cli.wal_config import WalConfig, endpoints
from tidegate.committers.driver import Driver
from tidegate.committers.open import ensure_made, open_namespace, refuse_if_writer_alive
from tidegate.options import Options
from tidegate.wal.fold import fact_of

EXAMPLES = examples(
    "tidegate recover --store sqlite:///data/store --wal file:///data/wal --namespace flights",
)


def recover(
    store: Store,
    wal: Wal,
    namespace: Namespace,
    wal_config: WalConfig = None,
    *,
    force: Force = False,
    allow_unsafe: AllowUnsafe = False,
    json: Json = False,
) -> None:
    """Make every decided version visible, without Spark.

    It reads the log alone: for when the query is down after a decision and readers cannot wait
    for its restart. When everything decided is visible already, nothing is written. Refused
    while a writer is running, since it would fence that writer.
    """
    where = endpoints(store, wal, namespace, wal_config)
    with driver_for(where, Options(allow_unsafe=allow_unsafe)) as driver:
        made_here(driver)
        refuse_if_writer_alive(driver, "tidegate recover", force=force)
        recovered = open_namespace(driver, None) if behind(driver) else []
        visible = driver.store.pointer().visible
    if json:
        print_json({"namespace": namespace, "recovered": recovered, "visible": visible})
    elif recovered:
        print(f"made visible: version {', '.join(map(str, recovered))}; version {visible} is visible now")
    else:
        print(f"nothing to recover: version {visible} is visible, and it is the last one decided")


def behind(driver: Driver) -> bool:
    """Whether the store is not at the log's end; nothing is appended to find out."""
    if driver.store.identity() is None:
        return True
    ensure_made(driver)  # writes nothing, both are there; checks that they are one namespace
    pointer = driver.store.pointer()
    driver.fold_on()
    fact = fact_of(driver.folded, pointer.visible)
    digest = "" if fact is None else fact.digest
    return (pointer.visible, pointer.digest) != (driver.folded.last_version, digest)
