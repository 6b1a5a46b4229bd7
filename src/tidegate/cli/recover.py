"""``tidegate recover``: finish what was decided, without Spark."""

from __future__ import annotations

from tidegate.cli.client_config import StoreConfigs, WalConfig, endpoints
from tidegate.cli.common import (
    AllowUnsafe,
    Force,
    Jobs,
    Json,
    Namespace,
    Stores,
    Wal,
    driver_for,
    examples,
    followers_in,
    made_here,
)
from tidegate.cli.many import fail_if_behind, print_standings, stores_as_json
from tidegate.cli.output import print_json
from tidegate.committers.driver import Driver
from tidegate.committers.finish import finish_decided
from tidegate.committers.local_apply import LocalApply
from tidegate.options import Options

EXAMPLES = examples(
    "tidegate recover --store sqlite:///data/store --wal file:///data/wal --namespace flights",
)


def recover(  # noqa: PLR0913 - its options
    store: Stores,
    wal: Wal,
    namespace: Namespace,
    store_config: StoreConfigs,
    wal_config: WalConfig = None,
    jobs: Jobs = None,
    *,
    force: Force = False,
    allow_unsafe: AllowUnsafe = False,
    json: Json = False,
) -> None:
    """Make every decided version visible, without Spark.

    It reads the log alone: for when the query is down after a decision and readers cannot wait
    for its restart. When everything decided is visible already, nothing is written. Refused
    while a writer is running, since it would fence that writer. A large version is applied in
    several processes; all end with the command, however it ends.
    """
    where = endpoints(store, wal, namespace, wal_config, store_config)
    with driver_for(where, Options(allow_unsafe=allow_unsafe), jobs) as driver:
        made_here(driver)
        others = followers_in(driver, jobs)
        done = finish_decided(
            driver, others, "tidegate recover", force=force, starting=lambda: _start_processes(driver)
        )
    recovered, visible, standings = done
    if json:
        facts = {"namespace": namespace, "recovered": recovered, "visible": visible}
        print_json(facts | ({"stores": stores_as_json(standings)} if standings else {}))
    elif recovered:
        print(f"made visible: version {', '.join(map(str, recovered))}; version {visible} is visible now")
    elif visible:
        print(f"nothing to recover: version {visible} is visible, and it is the last one decided")
    else:
        print("nothing to recover: no version was decided yet")
    if not json:
        print_standings(standings)
    fail_if_behind(standings)


def _start_processes(driver: Driver) -> None:
    """They start while the namespace is opened: how large a version is shows only later."""
    if isinstance(driver.apply_on_executors, LocalApply):
        driver.apply_on_executors.start()
