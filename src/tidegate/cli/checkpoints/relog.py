"""``tidegate relog``: a namespace whose log is gone, saved as a new namespace with a new log."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import Annotated

import typer

from tidegate.base.names import check_name, following_name
from tidegate.base.urls import redact
from tidegate.cli.checkpoints.spark_files import checkpoint_at, refuse_unfit
from tidegate.cli.core.app import placed
from tidegate.cli.core.operation import Operation, catch_up_others, operation
from tidegate.cli.core.options import Jobs, Yes, confirm, examples
from tidegate.committers.background.follower import Standing
from tidegate.committers.opening.lifecycle import ask
from tidegate.committers.opening.open import refuse_if_writer_alive
from tidegate.committers.operations.alias import aliases_of, set_alias
from tidegate.committers.operations.local_coordinator import coordinator_for
from tidegate.committers.transfer.relog import Relogged, Saved, copies_of, fence, refuse_other, saved_of
from tidegate.committers.transfer.relog import relog as relog_to
from tidegate.errors import ConfigError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints, StoreRef
from tidegate.sinks.aliases import Target
from tidegate.sinks.open_store import open_store
from tidegate.wal.record import BatchOrigin

EXAMPLES = examples(
    "tidegate relog --namespace flights --to flights_2 --checkpoint /data/checkpoints/flights",
    "tidegate relog --namespace flights --to flights_2 --yes",
)


@operation("tidegate relog")
def relog(
    work: Operation,
    to: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The new namespace; default: the name with the next number."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="The query's checkpoint: batches that only the log had are refused."
        ),
    ] = None,
    *,
    jobs: Jobs = None,
    yes: Yes = False,
) -> None:
    """Save a namespace whose log is gone: its visible version, in a new namespace with a new log.

    For a log that was deleted, lost its change-log or its last records, or was cut below what the store
    needs. The version is copied inside the stores and compared row by row, and aliases of the namespace are
    moved. The query continues with the same checkpoint under the new name: no batch is lost, and none counts
    twice. A log that does not answer is not gone: the command refuses then.

    Versions that only the log had are lost. With commit="pipelined" Spark may count their batches as done:
    give --checkpoint, and the command names them and refuses, until the checkpoint is set back. The old
    namespace stays as it is, but its writer is fenced. May be repeated after an interruption.
    """
    to = check_name("namespace", to or following_name(work.namespace))
    if to == work.namespace:
        raise ConfigError(f"--to {to} is the namespace itself: give another name, or leave --to out")
    with work.coordinator() as old:
        saved = saved_of(old)
        ask(old, work.row, shown=saved.entry)
        work.refuse_if_writer_alive(old)
        if checkpoint is not None:
            refuse_unfit(checkpoint_at(checkpoint), saved.batch, saved.entry.version)
        where = dataclasses.replace(old.endpoints, namespace=to)
        options = Options(allow_unsafe=work.allow_unsafe, key_groups=saved.identity.key_groups)
        with coordinator_for(where, options, jobs) as new:
            refuse_other(new, saved)
            refuse_if_writer_alive(new, work.command, force=work.force)
            preview = [*_preview(work, saved, to), *_not_compared(saved, checkpoint)]
            if not yes:
                print(placed("\n".join(preview)), file=sys.stderr)
                confirm(f"namespace {to} would be made of version {saved.entry.version} of {work.namespace}")
            fence(old.stores, old.writer)
            saved = saved_of(old)
            if checkpoint is not None:  # again: a query may have continued until the fence
                refuse_unfit(checkpoint_at(checkpoint), saved.batch, saved.entry.version)
            done = relog_to(new, saved)
            standings = catch_up_others(new, jobs)
            moved = _move_aliases(saved, where, done, standings)
    origin = saved.origin
    batch = origin if isinstance(origin, BatchOrigin) else None
    facts = {
        "to": to,
        "version": saved.entry.version,
        "new": done.new,
        "rows": done.rows,
        "visible": done.visible,
        "lineage": batch and batch.lineage,
        "last_batch": batch and batch.batch_id,
        "last_batch_unknown": saved.unknown,
        "lost": [decided.version for decided in saved.lost],
        "aliases": moved,
    }
    lines = [*(preview if yes else []), *_lines(work, saved, to, done, moved)]
    next_step = _next_step(work, to, batch)
    if saved.unknown and checkpoint is None:
        again = f"`tidegate relog --namespace {work.namespace} --to {to} --checkpoint FOLDER`"
        next_step = f"first: {again} compares the query's checkpoint, and copies nothing again\n{next_step}"
    work.report(facts, lines, standings, next_step)


def _preview(work: Operation, saved: Saved, to: str) -> list[str]:
    """Return what the log lost, what is saved and what is not."""
    version, tables = saved.entry.version, ", ".join(sorted(saved.entry.tables)) or "no table"
    copies = copies_of(saved, work.endpoints())
    place = f"namespace {to}, with its log at {redact(work.wal)}"
    lines = [
        f"the loss: {saved.fault}",
        f"saved: version {version} of namespace {work.namespace} ({tables}), as version 1 of {place}",
    ]
    if copies:
        lines.append(
            f"moved: a rekey made namespace {' and '.join(copies)} of this one, where its query continues."
            " Then nothing is to be saved, unless an adoption has taken this one back"
        )
    for decided in saved.lost:
        batch = f" (batch {decided.origin.batch_id})" if isinstance(decided.origin, BatchOrigin) else ""
        lines.append(f"lost: version {decided.version}{batch}, which was decided and is not in the store")
    known = {decided.version for decided in saved.lost}
    lines += [
        f"lost: version {number}, which the store has begun and does not show"
        for number in saved.begun
        if number not in known
    ]
    lines.append("not copied: older versions; the tokens of loads: a load that is repeated counts again")
    if saved.batch is not None:
        lines.append(
            f"followed: query {saved.batch.origin.lineage}, of the last batch. If another one has taken over"
            f" since: `tidegate adopt --namespace {to} --lineage ID`, with its id"
        )
    if saved.restored:
        lines.append(
            "a restore is newer than the last batch: if that was a `restore --reprocess`, the undone batches"
            " cannot be replayed in the new namespace"
        )
    return lines


def _not_compared(saved: Saved, checkpoint: str | None) -> list[str]:
    if saved.unknown:
        what = "unknown: the last batch of the query, since no version that the store still has is a batch"
        if checkpoint is None:
            return [
                f"{what}. A batch that Spark gives again counts twice: --checkpoint FOLDER finds that out"
            ]
        return [f'{what}. Spark gives none again; with commit="pipelined" its last ones may be lost']
    if checkpoint is not None or saved.batch is None:
        return []
    last = saved.batch.origin.batch_id
    pipelined = f'With commit="pipelined" Spark may count batches above {last} as done, which are lost then'
    return [f"not compared: the query's checkpoint. {pipelined}: --checkpoint FOLDER names them"]


def _move_aliases(
    saved: Saved, where: Endpoints, done: Relogged, standings: list[Standing]
) -> dict[str, list[str]]:
    """Let each alias of the old namespace name the new one, in every store that shows it; by store."""
    behind = {each.name for each in standings if each.error}
    moved: dict[str, list[str]] = {}
    for ref in where.stores:
        names = [] if ref.name in behind else _aliases_in(ref, saved)
        for alias in names:
            set_alias(ref, alias, Target(done.identity.name, done.identity.uuid))
        if names:
            moved[ref.name] = names
    return moved


def _aliases_in(at: StoreRef, saved: Saved) -> list[str]:
    with contextlib.closing(open_store(at.url, saved.identity.name, at.options)) as store:
        return aliases_of(store, saved.identity)  # this store may have lost all but its aliases


def _lines(work: Operation, saved: Saved, to: str, done: Relogged, moved: dict[str, list[str]]) -> list[str]:
    source = f"version {saved.entry.version} of namespace {work.namespace}"
    made = "holds" if done.new else "was made before, and holds"
    if done.rows is None:
        compared = "it is retired by now, so it was not compared again"
    else:
        compared = f"{sum(done.rows.values())} rows of {len(done.rows)} tables were compared and are equal"
    aliases = sorted({alias for names in moved.values() for alias in names})
    return [
        f"version 1 of namespace {to} {made} what {source} holds: {compared}",
        *(f"alias {alias} names {to} now" for alias in aliases),
    ]


def _next_step(work: Operation, to: str, batch: BatchOrigin | None) -> str:
    old = work.namespace
    after = f"; its next batch is {batch.batch_id + 1}" if batch else ""
    return (
        f"next: in the query's options set namespace={to!r} in place of {old!r}, keep its checkpoint and its"
        f" stores, and start it{after}. Never start it with the old name again. Readers of the name {old},"
        f" which is no alias, stay on the old version: let them connect to {to}. Then `tidegate drop"
        f" --namespace {old} --force` removes what is left of the old namespace"
    )
