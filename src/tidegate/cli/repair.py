"""``tidegate repair``: compare the store with the log, and put back what its servers lost."""

from __future__ import annotations

from tidegate.cli.client_config import StoreConfigs, WalConfig, endpoints
from tidegate.cli.common import (
    AllowUnsafe,
    Force,
    Json,
    Namespace,
    Stores,
    Wal,
    driver_for,
    examples,
    followers_in,
    made_here,
)
from tidegate.cli.many import fail_if_behind, print_standings, repaired, stores_as_json
from tidegate.cli.output import print_json
from tidegate.committers.open import refuse_if_writer_alive, take_over
from tidegate.committers.recover import recover
from tidegate.committers.repair import repair as put_back_what_was_lost
from tidegate.options import Options

EXAMPLES = examples(
    "tidegate repair --store redis://cache:6379 --wal kafka://broker1:9092 --namespace flights",
)


def repair(
    store: Stores,
    wal: Wal,
    namespace: Namespace,
    store_config: StoreConfigs,
    wal_config: WalConfig = None,
    *,
    force: Force = False,
    allow_unsafe: AllowUnsafe = False,
    json: Json = False,
) -> None:
    """Compare the store with the log and put back what its servers lost.

    For a server that restarted or was promoted while no query runs: until it was compared,
    readers are refused. A running query does this by itself within seconds, so the command is
    refused while a writer is running. Versions that were never lost are only looked at. What
    was decided and is not visible becomes so.

    Exit code 10 when the log no longer reaches back to what was lost.
    """
    where = endpoints(store, wal, namespace, wal_config, store_config)
    with driver_for(where, Options(allow_unsafe=allow_unsafe)) as driver:
        made_here(driver)
        refuse_if_writer_alive(driver, "tidegate repair", force=force)
        take_over(driver, None)
        mended = put_back_what_was_lost(driver)
        recovered = recover(driver)
        visible = driver.store.pointer().visible
        others = [(each, repaired(each)) for each in followers_in(driver)]
        standings = [each.catch_up() for each, _ in others]
    if json:
        facts = {"namespace": namespace, "recovered": recovered, "visible": visible}
        facts["put_back"] = [one._asdict() for one in mended]
        print_json(facts | ({"stores": stores_as_json(standings)} if standings else {}))
        fail_if_behind(standings)
        return
    for each, put_back in others:
        for one in put_back:
            print(f"store {each.name}: put back: version {one.version} in {one.key_groups} key groups")
    for one in mended:
        print(f"put back: version {one.version} in {one.key_groups} key groups")
    if recovered:
        print(f"made visible: version {', '.join(map(str, recovered))}")
    if not mended:
        print("nothing was lost: the store was compared with the log")
    print(f"version {visible} is visible, and every server counts as compared with the log")
    print_standings(standings)
    fail_if_behind(standings)
