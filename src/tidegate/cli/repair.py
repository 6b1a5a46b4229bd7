"""``tidegate repair``: compare the store with the log, and put back what its servers lost."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.cli.client_config import StoreConfigs, WalConfig, endpoints, store_options
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
from tidegate.committers.rebuild import Source
from tidegate.committers.rebuild_source import ExportSource, StoreSource
from tidegate.committers.recover import recover
from tidegate.committers.repair import Mended
from tidegate.committers.repair_base import Repaired, repair_all
from tidegate.options import Options
from tidegate.sinks.open_store import open_store


def as_json(done: Repaired) -> dict[str, Any]:
    """What a repair put back, and what it did not compare (null: it compared all)."""
    return {
        "put_back": [one._asdict() for one in done.put_back],
        "not_compared": done.not_compared or None,
    }


def print_repaired(done: Repaired, of: str = "") -> None:
    """A line for each version that was put back, and one for what was not compared."""
    for one in done.put_back:
        print(f"{of}{_described(one)}")
    if done.not_compared:
        print(f"{of}not compared: {done.not_compared}")


EXAMPLES = examples(
    "tidegate repair --store redis://cache:6379 --wal kafka://broker1:9092 --namespace flights",
    "tidegate repair --from cassandra://db1,db2/flights",
    "tidegate repair --from /backup/flights-41",
)


def repair(  # noqa: PLR0913 - its options
    store: Stores,
    wal: Wal,
    namespace: Namespace,
    store_config: StoreConfigs,
    wal_config: WalConfig = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL|FOLDER",
            help="Where rows are taken from that the log no longer holds: another store of this log, or what"
            " tidegate export wrote.",
        ),
    ] = None,
    source_config: Annotated[
        Path | None,
        typer.Option("--from-config", metavar="FILE", help="That store's options, as --store-config."),
    ] = None,
    *,
    force: Force = False,
    allow_unsafe: AllowUnsafe = False,
    json: Json = False,
) -> None:
    """Compare the store with the log and put back what its servers lost.

    For a server that restarted or was promoted while no query runs: until it was compared,
    readers are refused. A running query does this by itself within seconds, so the command is
    refused while a writer is running. Versions that were never lost are only looked at. What
    was decided and is not visible becomes so. Unlike a running query, the command reads the log
    as far back as it reaches, and reports which rows it could not compare.

    Exit code 10 when the log no longer holds all that was lost. Everything else is put back then,
    and what is left stays as it is; reads of those key groups are refused. With --from they are
    replaced by the rows of another store or of an export, at a version that the store shows.
    """
    where = endpoints(store, wal, namespace, wal_config, store_config)
    with driver_for(where, Options(allow_unsafe=allow_unsafe)) as driver, contextlib.ExitStack() as closing:
        made_here(driver)
        copy = None if source is None else _source(closing, source, namespace, source_config)
        refuse_if_writer_alive(driver, "tidegate repair", force=force)
        take_over(driver, None)
        repaired_here = repair_all(driver, copy)
        recovered = recover(driver)
        visible = driver.store.pointer().visible
        others = [(each, repaired(each, copy)) for each in followers_in(driver)]
        standings = [each.catch_up() for each, _ in others]
    if json:
        facts = {"namespace": namespace, "recovered": recovered, "visible": visible}
        facts |= as_json(repaired_here)
        stores = [
            one | as_json(done) for one, (_, done) in zip(stores_as_json(standings), others, strict=True)
        ]
        print_json(facts | ({"stores": stores} if stores else {}))
        fail_if_behind(standings)
        return
    for each, done in others:
        print_repaired(done, f"store {each.name}: ")
    print_repaired(repaired_here)
    if recovered:
        print(f"made visible: version {', '.join(map(str, recovered))}")
    if not repaired_here.put_back:
        of_what = " of what was compared" if repaired_here.not_compared else ""
        print(f"nothing was lost{of_what}: the store was compared with the log")
    print(f"version {visible} is visible, and every server counts as compared with the log")
    print_standings(standings)
    fail_if_behind(standings)


def _described(one: Mended) -> str:
    what = "all versions up to" if one.base else "version"
    return f"put back: {what} {one.version} in {one.key_groups} key groups"


def _source(closing: contextlib.ExitStack, place: str, namespace: str, config: Path | None) -> Source:
    """The place that ``--from`` names: a URL is a store, everything else a folder."""
    if "://" not in place:
        return ExportSource(Path(place))
    return StoreSource(
        closing.enter_context(contextlib.closing(open_store(place, namespace, store_options(config))))
    )
