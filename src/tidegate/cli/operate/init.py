"""``tidegate init``: creation of a namespace."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.base.urls import redact
from tidegate.cli.core.config_files import StoreConfigs, WalConfig, endpoints
from tidegate.cli.core.options import AllowUnsafe, Json, Namespace, Stores, Wal, examples
from tidegate.cli.core.output import print_json
from tidegate.committers.local_coordinator import coordinator_for
from tidegate.committers.opening.open import ensure_made, refuse_other_uuid
from tidegate.options import Options
from tidegate.sinks.records import Identity

EXAMPLES = examples(
    "tidegate init --store sqlite:///data/store --wal file:///data/wal --namespace flights",
    "tidegate init --store cassandra://node1,node2/tidegate --store-config FILE --wal URL --namespace x",
)


def init(
    store: Stores,
    wal: Wal,
    namespace: Namespace,
    store_config: StoreConfigs,
    key_groups: Annotated[
        int | None,
        typer.Option(metavar="N", help="Key groups, fixed for life. Default 128; 1024 above 50 M keys."),
    ] = None,
    wal_config: WalConfig = None,
    *,
    allow_unsafe: AllowUnsafe = False,
    json: Json = False,
) -> None:
    """Make a namespace in log and store. May be repeated.

    A query makes its namespace by itself at its first batch; init is for readers that come
    before it, to choose the number of key groups, and to make Cassandra's keyspace and tables.
    """
    options = Options(key_groups=key_groups, allow_unsafe=allow_unsafe)
    where = endpoints(store, wal, namespace, wal_config, store_config)
    with coordinator_for(where, options) as coordinator:
        prepared = [what for each in (coordinator.store, *coordinator.others) for what in each.prepare()]
        fresh = coordinator.store.identity() is None
        state = ensure_made(coordinator)
        coordinator.log.create()  # again, when a part of it was removed
        for other in coordinator.others:  # the log lists them when the first query opens
            refuse_other_uuid(
                coordinator, state, other.create(Identity(state.namespace, state.name, state.key_groups))
            )
    facts = {"namespace": state.name, "uuid": state.namespace, "key_groups": state.key_groups, "made": fresh}
    facts["prepared"] = prepared
    if json:
        print_json(facts)
        return
    for what in prepared:
        print(f"made {what}")
    made = "made," if fresh else "was there already,"
    print(f"namespace {state.name} {made} with {state.key_groups} key groups (uuid {state.namespace})")
    if fresh:
        print(f"  log    {redact(wal)}")
        for at in where.stores:
            print(f"  store  {redact(at.url)}")
        print("next: start a query with tidegate.spark.VersionedSink; `tidegate status` shows its versions")
