"""``tidegate history``: the versions that can be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
import typer

from tidegate.cli.core.app import print_message
from tidegate.cli.core.config_files import StoreConfig, WalConfig, store_options, wal_options
from tidegate.cli.core.options import Json, MaybeWal, Namespace, Store, examples, gate_to
from tidegate.cli.core.output import print_json, print_table
from tidegate.errors import ConfigError, WalGapError
from tidegate.reader.gate import Gate
from tidegate.reader.rules import VersionInfo
from tidegate.status.log_size import short_span
from tidegate.wal.manifest import Step

EXAMPLES = examples(
    "tidegate history --store sqlite:///data/store --namespace flights",
    "tidegate history --limit 10 --json | jq '.[].changes'",
    "tidegate history --limit 1 --steps",
)


def history(
    store: Store,
    namespace: Namespace,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Only the newest N versions."),
    ] = None,
    store_config: StoreConfig = None,
    wal: MaybeWal = None,
    wal_config: WalConfig = None,
    *,
    steps: Annotated[
        bool, typer.Option("--steps", help="The calls of each version's transaction, from the log (--wal).")
    ] = False,
    json: Json = False,
) -> None:
    """List the versions that can still be read, oldest first.

    With --steps a line for each call that made them: its tasks; the rows and bytes that it gave to
    be staged; the seconds of all tasks in the merge with its state or in
    its function; the frames with changes of its tables; its ties, rows that lost to a delete with the
    same sequence.
    """
    if not steps:
        wal = None
    elif wal is None:
        raise ConfigError("--steps reads the log: give --wal, or set TIDEGATE_WAL")
    with gate_to(store, namespace, store_options(store_config), wal, wal_options(wal_config)) as gate:
        versions = gate.history(None if limit is None else min(limit, 2**63 - 1))
        if steps:
            _print_steps(_with_steps(gate, versions), json=json)
            return
    if json:
        print_json([dataclasses.asdict(info) for info in versions])
        return
    if not versions:
        print_message(f"namespace {namespace} has no visible version yet")
        return
    print_table(
        ["version", "from", "decided", "visible after", "tasks", "changes"],
        [
            (
                info.version,
                info.origin,
                info.decided_at,
                short_span((info.published_at - info.decided_at).total_seconds()),
                info.parallelism,
                ", ".join(
                    [
                        *(f"{table} {count}" for table, count in sorted(info.changes.items())),
                        *(f"{table} dropped" for table in info.dropped),
                    ]
                )
                or "none",
            )
            for info in versions
        ],
    )


def _with_steps(gate: Gate, versions: Sequence[VersionInfo]) -> Iterator[tuple[VersionInfo, Any]]:
    """Yield versions with their steps; None: the log no longer has them."""
    for info in versions:
        steps: Sequence[Step] | None = None
        try:
            steps = gate.job(info.version)
        except WalGapError as error:
            print_message(f"warning: {error}")
        yield info, steps


def _print_steps(versions: Iterator[tuple[VersionInfo, Any]], *, json: bool) -> None:
    if json:
        facts = [
            dataclasses.asdict(info) | {"steps": None if steps is None else msgspec.to_builtins(steps)}
            for info, steps in versions
        ]
        print_json(facts)
        return
    print_table(
        ["version", "step", "tables", "tasks", "rows", "bytes", "seconds", "frames", "ties"],
        (
            (
                *(info.version, step.name, ", ".join(step.tables), step.parallelism or "driver"),
                *(step.rows, step.bytes, round(step.seconds, 3), step.frames, step.ties or 0),
            )
            for info, steps in versions
            for step in steps or ()
        ),
    )
