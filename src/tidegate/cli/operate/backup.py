"""``tidegate backup`` and ``tidegate restore-from``: a state that survives the loss of store and log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.base.clock import Clock
from tidegate.base.text import shown_bytes
from tidegate.base.urls import redact
from tidegate.cli.core.app import placed, print_message
from tidegate.cli.core.config_files import StoreConfig, WalConfig, store_options, wal_options
from tidegate.cli.core.operation import Operation, catch_up_others, operation
from tidegate.cli.core.options import (
    Jobs,
    Json,
    MaybeNamespace,
    MaybeStore,
    MaybeWal,
    Yes,
    examples,
)
from tidegate.cli.core.output import print_json
from tidegate.cli.core.versions import number_or_time
from tidegate.committers.opening.lifecycle import Side, refuse, refuse_other_uuid, shown_in, side_of
from tidegate.committers.opening.open import refuse_lost
from tidegate.committers.opening.rekeyed import moved_from
from tidegate.committers.transfer.backup.backup import FULL_EVERY, KEEP, BackedUp
from tidegate.committers.transfer.backup.backup import backup as make_backup
from tidegate.committers.transfer.backup.chain import FULL, Chain, Link
from tidegate.committers.transfer.backup.check import check as check_backup
from tidegate.committers.transfer.backup.contents import contents_of, reached_at, version_in
from tidegate.committers.transfer.backup.restore_from import (
    Plan,
    RestoredFrom,
    Way,
    plan_restore,
)
from tidegate.committers.transfer.backup.restore_from import (
    restore_from as restore_backup,
)
from tidegate.errors import ConfigError, StoreRemovedError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.reader.rules import described_origin
from tidegate.sinks.open_store import open_store
from tidegate.sinks.rules.visible import moment
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import View
from tidegate.wal.open_log import open_log
from tidegate.wal.record import BatchOrigin, Folded, ImportOrigin, LoadOrigin

LOST_SHOWN_MAX = 20
"""The number of lost batches that are printed one by one."""
EXAMPLES = examples(
    "tidegate backup /backup/flights",
    "tidegate backup /backup/flights --check",
)
RESTORE_EXAMPLES = examples(
    "tidegate restore-from /backup/flights",
    "tidegate restore-from /backup/flights --to 2026-11-21T10:00:00Z --namespace flights2",
)


def backup(  # noqa: PLR0913 - its options
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A new folder, or one of earlier backups.")
    ],
    store: MaybeStore = None,
    wal: MaybeWal = None,
    namespace: MaybeNamespace = None,
    store_config: StoreConfig = None,
    wal_config: WalConfig = None,
    *,
    full_every: Annotated[
        int, typer.Option("--full-every", metavar="N", min=1, help="A full backup after N increments.")
    ] = FULL_EVERY,
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=1, help="Keep N full backups, and their increments.")
    ] = KEEP,
    check: Annotated[
        bool, typer.Option("--check", help="Only read every byte, and restore in memory; it needs no server.")
    ] = False,
    json: Json = False,
) -> None:
    """Add the newest version to the backups in a folder; readers and a writer go on meanwhile.

    The first run writes all rows. Later runs write the changes since the one before, from the log; all rows
    again after --full-every of them, when they are larger than the full backup, or when the log no longer
    has them. Each run reads back its own files, and restores some of their rows in memory. A run that was
    killed leaves the backups before as they are. tidegate restore-from makes the namespace again.
    """
    if check:
        chain = check_backup(folder)
        whole = [version for version, is_last in chain.versions.items() if is_last]
        sampled = [version for version, is_last in chain.versions.items() if not is_last]
        checked = {"folder": str(folder), **_chain_facts(chain), "restored": whole, "sampled": sampled}
        restored = f"restored in memory: every row of version {', '.join(map(str, whole))}"
        if sampled:
            restored += f", some rows of {len(sampled)} older ones"
        _print(checked, f"{folder}: every byte fits; {_described(chain)}; {restored}", json=json)
        _warn_of_clock(chain.links[-1])
        return
    given = {"--store": store, "--wal": wal, "--namespace": namespace}
    missing = [option for option, value in given.items() if not value]
    if store is None or wal is None or namespace is None:
        raise ConfigError(f"{', '.join(missing)} must be given; only --check needs no server")
    done, marks = _backed_up(folder, store, wal, namespace, store_config, wal_config, full_every, keep)
    link = done.link
    facts: dict[str, Any] = {"namespace": namespace, "folder": str(folder), "version": done.version}
    facts |= {"kind": link.kind if link else None, "bytes": link.bytes if link else 0}
    facts |= {"rows": link.rows if link else 0, "cause": done.cause or None, "removed": done.removed}
    _print(facts | _chain_facts(done.chain), _line(folder, namespace, done), json=json)
    _warn_of_clock(done.chain.links[-1])
    if marks.state is not None and (moved := moved_from(marks.state)):
        stores, logs = store_options(store_config), wal_options(wal_config)
        to = side_of(Endpoints.of(moved.to, wal, store, logs, stores))
        refuse("backup", namespace, marks, to, after=True)


def _backed_up(
    folder: Path,
    store: str,
    wal: str,
    namespace: str,
    store_config: StoreConfig,
    wal_config: WalConfig,
    full_every: int,
    keep: int,
) -> tuple[BackedUp, Side]:
    opened = open_store(store, namespace, store_options(store_config))
    try:
        log = open_log(wal, namespace, wal_options(wal_config))
        try:
            shown, identity = shown_in(opened), opened.identity()
            marks = Side(catch_up(View(), log).state, shown)
            if marks.state is not None:
                refuse_other_uuid(log, opened, marks.state)
            if identity is None:
                refuse_lost(log, opened, marks.state)
                raise ConfigError(
                    f"there is no namespace {namespace} in {opened.where}: check --store and --namespace; a"
                    " query's first batch makes it"
                )
            refuse("backup", namespace, marks)
            done = make_backup(log, opened, identity, folder, full_every, keep)
            if opened.pointer().is_removed:
                raise StoreRemovedError(
                    f"{opened.where} was removed from namespace {namespace} and gets no newer version, so its"
                    f" backups end with version {done.version}, which {folder} has: let the job name a store"
                    " that remained"
                )
            return done, marks
        finally:
            log.close()
    finally:
        opened.close()


def _print(facts: dict[str, Any], line: str, *, json: bool) -> None:
    if json:
        print_json(facts)
    else:
        print(line)


def _warn_of_clock(newest: Link) -> None:
    """Warn where a restore is refused, as a query is, until this machine's clock has come further."""
    ahead_s = (newest.decided_at_us - Clock().now_us()) / 1e6
    if ahead_s > Options().wal_retain_s:
        print_message(
            f"warning: version {newest.version} was decided {ahead_s / 3600:.1f} h ahead of this clock: while"
            " that is more than wal_retain_s, restore-from without the log is refused; set the clock right"
        )


def _chain_facts(chain: Chain) -> dict[str, Any]:
    links = [
        {"name": link.name, "after": link.after, "version": link.version, "bytes": link.bytes}
        for link in chain.links
    ]
    return {"uuid": chain.uuid, "links": links}


def _described(chain: Chain) -> str:
    fulls = sum(link.kind == FULL for link in chain.links)
    size = sum(link.bytes for link in chain.links)
    return (
        f"{fulls} full and {len(chain.links) - fulls} incremental backups of namespace {chain.namespace}, the"
        f" newest at version {chain.links[-1].version}, {shown_bytes(size)}"
    )


def _line(folder: Path, namespace: str, done: BackedUp) -> str:
    if done.link is None:
        return f"{folder} has version {done.version} of namespace {namespace} already; nothing was written"
    if done.link.kind == FULL:
        kind = f"full backup ({done.cause}), {done.link.rows} rows"
    elif done.link.after == done.link.version:
        kind = "increment without versions (another query, undone batches or stores)"
    else:
        kind = f"increment after version {done.link.after}, {done.link.rows} changes"
    removed = f"; removed: {', '.join(done.removed)}" if done.removed else ""
    return (
        f"{folder}: version {done.version} of namespace {namespace}, {kind},"
        f" {shown_bytes(done.link.bytes)}, read back{removed}"
    )


@operation("tidegate restore-from")
def restore_from(
    work: Operation,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of tidegate backup.")],
    *,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="VERSION",
            parser=number_or_time,
            help="A version of the backup, or a time; default: the newest, and all that the log adds.",
        ),
    ] = None,
    jobs: Jobs = None,
    yes: Yes = False,
) -> None:
    """Make a namespace again whose store is gone, from a backup and the log.

    If the log has every version after the backup, none is lost, and the query continues with its checkpoint.
    Otherwise one new version holds the backup's rows. The command prints which batches are lost then, and
    how to have them again, before it asks. If the log is gone too, it begins a new one, with the backup's
    state: batches of the query that the backup contains are not applied again. A store that shows a version
    is refused. Readers see nothing until all is complete.
    """
    version = version_in(folder, to)  # type: ignore[arg-type]  # typer calls the parser
    reached = reached_at(folder, version)
    with work.coordinator(jobs=jobs) as coordinator:
        plan = plan_restore(coordinator, reached, folder, is_newest=to is None)
        work.refuse_if_writer_alive(coordinator)
        # The log, where there is one, knows of a later adoption than the backup.
        state = reached.state if plan.way is Way.NEW else coordinator.folded
        given = [each.name for each in coordinator.endpoints.stores]
        # A log that is there refuses another list than its own.
        not_given = sorted(set(state.stores) - set(given)) if plan.way is Way.NEW else []
        preview = [*_preview(plan, work, state), *map(_not_given, not_given)]
        if not yes:
            print(placed("\n".join(preview)), file=sys.stderr)
            work.confirm(coordinator, _question(plan, work.namespace))
        with contents_of(folder, version) as contents:
            done = restore_backup(coordinator, contents, plan)
        standings = catch_up_others(coordinator, jobs)
    facts: dict[str, Any] = {
        "way": plan.way.value,
        "backup": version,
        "visible": done.visible,
        "lineage": done.lineage,
    }
    facts |= {"lost": [_lost(each) for each in plan.lost], "source_offsets": plan.source_offsets or None}
    facts |= {"stores_not_given": not_given}
    facts |= {"last_batch": plan.kept.batch_id if plan.kept else None}
    work.report(facts, _lines(done, work.namespace, preview if yes else []), standings)


def _not_given(name: str) -> str:
    return (
        f"store {name} of the backup's list is not given. It may show a newer version, which is kept only if"
        f" you stop here: give it as --store {name}=URL, too, and the command compares it"
    )


def _lost(decided: Any) -> dict[str, Any]:
    origin = decided.origin
    batch = origin.batch_id if isinstance(origin, BatchOrigin) else None
    facts = {"version": decided.version, "batch": batch, "origin": described_origin(origin)}
    return {**facts, "decided_at": moment(decided.decided_at_us).isoformat()}


def _question(plan: Plan, namespace: str) -> str:
    where = "a new log begins, and " if plan.way is Way.NEW else ""
    return f"{where}namespace {namespace} would be made again from version {plan.version} of the backup"


def _preview(plan: Plan, work: Operation, state: Folded) -> list[str]:
    """Return what is restored, what is lost, and how the query has its rows again."""
    namespace, moved, lineage = work.namespace, moved_from(state), state.lineage
    if moved is not None:
        losses = [] if plan.way is Way.CONTINUE else _losses(plan, work)
        return [*losses, f"namespace {namespace} was moved to {moved.to}, and refuses queries as before"]
    if plan.way is Way.CONTINUE:
        line = f"the log has every version after version {plan.version} of the backup, up to {plan.last}"
        lines = [f"{line}: nothing is lost, and the query continues with its checkpoint"]
        if not state.is_rewound or not state.generation:
            return lines
        lines.append("a restore has undone its last batches, and they may come again:")
    else:
        lines = _losses(plan, work)
    if lineage is None:
        return lines
    if plan.kept is None:
        return [*lines, f"the last batch of query {lineage} that the backup contains is not known"]
    last = plan.kept.batch_id
    lines += [
        f"the next batch follows batch {last} of query {plan.kept.lineage}, which ends at the source offsets",
        f"  {plan.source_offsets or '(unknown)'}",
    ]
    if plan.kept.lineage != lineage:
        followed = f"the namespace follows {lineage}, which has taken over since, and no other query"
        return [*lines, f"{followed}: the rows after these offsets come from its checkpoint alone"]
    lines += [
        "to have the batches after it again, BEFORE the query starts: set its checkpoint back to batch",
        f"  {last}: remove the files {last + 1} and above, and their .crc files, from its folders",
        "  offsets and commits; of a query with state of Spark's own also the versions above",
        f"  {last + 1} in its folder state;",
        *_other_way(plan),
        "a checkpoint that is not set back continues after them, and their rows stay lost",
    ]
    return lines


def _other_way(plan: Plan) -> list[str]:
    """Return the command that makes a checkpoint, if the log will have what it needs."""
    if plan.undone and plan.within is not None:
        since = f"version {plan.version} was made by a restore, which has undone the batches after"
        return [f"  {since} {plan.within.batch_id}: set it back no further, or they come again"]
    makes = "  or make a checkpoint: `tidegate rebuild-checkpoint FOLDER` (Kafka)."
    return [makes] if plan.source_offsets else []


def _losses(plan: Plan, work: Operation) -> list[str]:
    if plan.way is Way.NEW:
        return [
            f"there is no log at {redact(work.wal)}: is --wal right, and the disk of a log in files mounted?",
            f"without it everything after version {plan.version} of the backup is lost; loads and imports",
            "  after it come again as they were given, with the same token",
            f"namespace {work.namespace} gets a new uuid, so readers have to connect again",
        ]
    shown = [_lost(each) for each in plan.lost]
    lines = [
        f"versions after version {plan.version} of the backup are lost, since the log lost rows or --to",
        f"  leaves them out; {len(shown)} decisions of them are still known:",
        *(
            f"  version {each['version']}, {each['origin']}, decided at {each['decided_at']}"
            for each in shown[:LOST_SHOWN_MAX]
        ),
    ]
    if len(shown) > LOST_SHOWN_MAX:
        lines.append(f"  ... {len(shown) - LOST_SHOWN_MAX} more: --json lists all")
    if any(isinstance(each.origin, LoadOrigin | ImportOrigin) for each in plan.lost):
        lines.append(
            "a load comes again under another token, an import by `tidegate import DIR --token TEXT`"
        )
    return lines


def _lines(done: RestoredFrom, namespace: str, before: list[str]) -> list[str]:
    plan = done.plan
    result = f"version {done.visible} of namespace {namespace} is visible"
    if plan.way is Way.CONTINUE:
        return [*before, f"{result}: the backup's version {plan.version}, and all that the log has after it"]
    return [*before, f"{result}, and holds what version {plan.version} of the backup held"]
