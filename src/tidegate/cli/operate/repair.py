"""``tidegate repair``: comparison of the store with the log, and repair of its servers' losses."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.cli.core.app import print_message
from tidegate.cli.core.config_files import store_options
from tidegate.cli.core.operation import Operation, operation, require_namespace, stores_as_json
from tidegate.cli.core.options import For, end_of, examples
from tidegate.committers.background.follower import Follower
from tidegate.committers.coordinator import Coordinator, OpenRequest
from tidegate.committers.opening.open import take_over, writer_is_alive
from tidegate.committers.opening.recover import recover
from tidegate.committers.operations.local_coordinator import followers_in
from tidegate.committers.operations.repair_source import ExportSource, StoreSource, refuse_before_open
from tidegate.committers.repair.below_horizon import Repaired, repair_all
from tidegate.committers.repair.lost_groups import Source, pass_replaced
from tidegate.committers.repair.repair import Mended, check_schemas
from tidegate.errors import ConfigError, TidegateError
from tidegate.sinks.capabilities import SupportsRebuild
from tidegate.sinks.open_store import open_store

EXAMPLES = examples(
    "tidegate repair --store redis://cache:6379 --wal kafka://broker1:9092 --namespace flights",
    "tidegate repair --from cassandra://db1,db2/flights",
    "tidegate repair --from /backup/flights-41",
    "tidegate repair --watch --every 5",
)


@operation("tidegate repair")
def repair(
    work: Operation,
    *,
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
    every: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="Seconds between checks with --watch (default 10)."),
    ] = None,
    for_: For = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Repair whenever servers changed, until Ctrl-C; without a writer only."),
    ] = False,
) -> None:
    """Compare the store with the log and put back what its servers lost.

    For a server that restarted or was promoted while no query runs: until it was compared,
    readers are refused. A running query does this by itself within seconds, so the command is
    refused while a writer is running. Versions that were never lost are only read. A
    version that is decided becomes visible. Unlike a running query, the command reads the log
    as far back as it reaches, and reports which rows it could not compare.

    Exit code 10 when the log no longer holds all that was lost. Everything else is put back then,
    and what is left stays as it is; reads of those key groups are refused. With --from they are
    replaced by the rows of another store or of an export, at a version that the store shows.

    With --watch it checks again and again, and repairs only if servers changed and no writer runs.
    """
    if not watch and (every is not None or for_ is not None):
        raise ConfigError("--every and --for are for --watch: add it, or leave them out")
    end = end_of(for_)
    where = work.endpoints()

    def once(*, only_if_changed: bool = False) -> None:
        with contextlib.ExitStack() as closing:
            coordinator = closing.enter_context(work.coordinator(where))
            require_namespace(coordinator)
            if only_if_changed and (not _changed(coordinator) or writer_is_alive(coordinator)):
                return
            copy = None if source is None else _source(closing, source, work.namespace, source_config)
            work.refuse_if_writer_alive(coordinator)
            if copy is not None:
                refuse_before_open(coordinator, copy)
            _repair(work, coordinator, copy)

    once(only_if_changed=watch)
    if watch:
        _watch(lambda: once(only_if_changed=True), every or 10.0, end)


def _repair(work: Operation, coordinator: Coordinator, copy: Source | None) -> None:
    coordinator.request = OpenRequest(has_copy=copy is not None)
    take_over(coordinator, None, command="repair")
    followers = followers_in(coordinator)
    for each in followers if copy is not None else ():
        each.catch_up()  # the copy may be one of these, and below this store's horizon
    repaired_here = repair_all(coordinator, copy)
    recovered = recover(coordinator)
    check_schemas(coordinator)
    pass_replaced(coordinator.store, repaired_here.put_back)
    visible = coordinator.store.pointer().visible
    others = [(each, _repair_other(each, copy)) for each in followers]
    standings = [each.catch_up() for each, _ in others]
    for each, done in others:
        pass_replaced(each.store, done.put_back)
    facts = {"recovered": recovered, "visible": visible, **_as_json(repaired_here)}
    if others:
        pairs = zip(stores_as_json(standings), others, strict=True)
        facts["stores"] = [standing | _as_json(done) for standing, (_, done) in pairs]
    lines = [f"store {each.name}: {line}" for each, done in others for line in _lines(done)]
    lines += _lines(repaired_here)
    if recovered:
        lines.append(f"made visible: version {', '.join(map(str, recovered))}")
    if not repaired_here.put_back:
        compared = " of what was compared" if repaired_here.not_compared else ""
        lines.append(
            f"nothing was lost{compared}: the store has the rows that the log counts; `tidegate verify`"
            " compares their values"
        )
    lines.append(f"version {visible} is visible, and every server counts as compared with the log")
    work.report(facts, lines, standings)


def _repair_other(follower: Follower, copy: Source | None) -> Repaired:
    """Repair a store besides the primary; its ``standing`` records errors."""
    try:
        return follower.repair(copy if isinstance(follower.store, SupportsRebuild) else None)
    except TidegateError as error:
        follower.retried(error)
        return Repaired([])


def _as_json(done: Repaired) -> dict[str, Any]:
    """Return the restored versions, and the part that was not compared (null: it compared all)."""
    return {
        "put_back": [version._asdict() for version in done.put_back],
        "not_compared": done.not_compared or None,
    }


def _lines(done: Repaired) -> list[str]:
    """Return a line for each version that was restored, and one for the part that was not compared."""
    lines = [_described(version) for version in done.put_back]
    return [*lines, f"not compared: {done.not_compared}"] if done.not_compared else lines


def _watch(once: Callable[[], None], every_s: float, end: float | None) -> None:
    """Repeat until ``end`` or Ctrl-C. Errors are reported, and the next try follows."""
    with contextlib.suppress(KeyboardInterrupt):
        while (left := every_s if end is None else min(every_s, end - time.monotonic())) > 0:
            time.sleep(left)
            try:
                once()
            except TidegateError as error:
                print_message(f"{type(error).__name__}: {error}")


def _changed(coordinator: Coordinator) -> bool:
    """Return whether a store of the driver must be compared. Writes nothing."""
    return any(store.unverified() for store in (coordinator.store, *coordinator.others))


def _described(version: Mended) -> str:
    if not version.key_groups:
        return f"put back: the catalog's entry of version {version.version}"
    extent = "all versions up to" if version.base else "version"
    return f"put back: {extent} {version.version} in {version.key_groups} key groups"


def _source(
    closing: contextlib.ExitStack, place: str, namespace: str, config: Path | None
) -> StoreSource | ExportSource:
    """Return the source in ``--from``: a URL is a store, everything else a folder."""
    if "://" not in place:
        return ExportSource(Path(place))
    return StoreSource(
        closing.enter_context(contextlib.closing(open_store(place, namespace, store_options(config))))
    )
