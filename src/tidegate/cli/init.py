"""``tidegate init``: make a namespace."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.common import AllowUnsafe, Json, Namespace, Store, Wal, driver_for, examples
from tidegate.cli.output import print_json
from tidegate.cli.wal_config import WalConfig, endpoints
from tidegate.committers.open import ensure_made
from tidegate.options import Options, redact

EXAMPLES = examples(
    "tidegate init --store sqlite:///data/store --wal file:///data/wal --namespace flights",
)


def init(
    store: Store,
    wal: Wal,
    namespace: Namespace,
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
    before it, and to choose the number of key groups.
    """
    options = Options(key_groups=key_groups, allow_unsafe=allow_unsafe)
    with driver_for(endpoints(store, wal, namespace, wal_config), options) as driver:
        fresh = driver.store.identity() is None
        state = ensure_made(driver)
        driver.log.create()  # again, when a part of it was removed
    facts = {"namespace": state.name, "uuid": state.namespace, "key_groups": state.key_groups, "made": fresh}
    if json:
        print_json(facts)
        return
    made = "made," if fresh else "was there already,"
    print(f"namespace {state.name} {made} with {state.key_groups} key groups (uuid {state.namespace})")
    if fresh:
        print(f"  log    {redact(wal)}")
        print(f"  store  {redact(store)}")
        print("next: start a query with tidegate.spark.VersionedSink; `tidegate status` shows its versions")
