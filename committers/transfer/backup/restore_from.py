"""The restore of a namespace whose store is gone, from a backup and whatever the log still has.

- *continue*: the log has every version after the backup's. The store is filled with the backup's rows and
  those versions, and the namespace continues as if nothing had happened.
- *again*: the log lost the rows of some. One new version holds the backup's rows. The decided versions after
  the backup are lost, and their batches may be replayed.
- *new*: the log is gone, too. A new log begins with the backup's state, under a new uuid, and one new version
  holds the backup's rows.

Readers see nothing until all is complete. docs/decisions/0079.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import logging
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.barrier import catalog_entry, refuse_restored_strides, value_bytes_max
from tidegate.committers.commit import until_decided
from tidegate.committers.coordinator import Coordinator, OpenRequest
from tidegate.committers.opening.begin_log import begin_log, new_uuid
from tidegate.committers.opening.open import take_over
from tidegate.committers.opening.store_list import refuse_alias
from tidegate.committers.repair.companions import add_queues
from tidegate.committers.repair.log_reach import fills_from, first_kept, is_whole, oldest_whole
from tidegate.committers.repair.log_state import LogState
from tidegate.committers.repair.lost_store import fill_and_follow
from tidegate.committers.steps.append import append_rewound
from tidegate.committers.steps.decided_versions import (
    decided_version,
    decided_versions,
    decided_versions_from,
)
from tidegate.committers.steps.stored_rows import StoredRowsBarrier, copied, stored_changes
from tidegate.committers.transfer.backup.contents import Contents, Reached, reached_at
from tidegate.errors import ConfigError, StoreUnavailableError, WalGapError
from tidegate.sinks.aliases import Target
from tidegate.sinks.capabilities import SupportsRebuild
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.reads import FILLED_FROM
from tidegate.sinks.rules.visible import schemas_by_table
from tidegate.wal.fold import last_batch_within, last_followed, recent_version
from tidegate.wal.manifest import Manifest, encode_manifest, manifest_digest
from tidegate.wal.record import (
    BatchOrigin,
    DecidedVersion,
    Folded,
    RestoreOrigin,
)

logger = logging.getLogger("tidegate")


class Way(enum.Enum):
    """The way of a restore: see the module."""

    CONTINUE = "continue"
    AGAIN = "again"
    NEW = "new"


class Plan(NamedTuple):
    """The effect of a restore. ``version`` is the backup's, ``last`` the log's last one, 0 for none.

    ``lost`` are the decided versions after the backup whose changes nothing has any more; of a log that is
    gone they are unknown. ``kept`` is the batch that the query's next one follows, and ``source_offsets`` its
    end, '' if nothing has it: of a log that lost rows it is the last batch that the restored state contains.
    """

    way: Way
    version: int
    last: int
    lost: list[DecidedVersion]
    kept: BatchOrigin | None
    source_offsets: str = ""
    within: BatchOrigin | None = None
    """The last batch that the version contains, if the log continues: a restore before may have undone later
    ones, up to ``kept``."""

    @property
    def undone(self) -> bool:
        """Whether the version lacks batches before ``kept``, which would come again after ``within``."""
        return self.within is not None and self.within != self.kept


class RestoredFrom(NamedTuple):
    """The result: the plan, the visible version, and the query that the namespace follows."""

    plan: Plan
    visible: int
    lineage: str | None


def plan_restore(coordinator: Coordinator, reached: Reached, folder: Path, *, is_newest: bool) -> Plan:
    """Find out how a backup's version can be restored here. It writes nothing.

    ``is_newest``: nobody asked for an older version, so the log's later versions are wanted, too. Raises:
    ConfigError: the store shows a version, the place is another namespace's, or a table has other key groups
    since. WalGapError: the log is behind the backup, or has another history.
    """
    store, version = coordinator.store, reached.decided.version
    state = coordinator.decisions.catch_up()
    identity = store.identity()
    pointer = store.pointer() if identity else None
    name = coordinator.endpoints.namespace
    if pointer is not None and pointer.visible:
        later, after = "", pointer.visible + 1
        if state is not None and oldest_whole(coordinator.log, state, after) == after:
            later = f" `tidegate recover` makes it show version {state.last_version}."
        raise ConfigError(
            f"{store.where} shows version {pointer.visible} of namespace {name}, so nothing was lost there."
            f" Nothing was written.{later} An older one: `tidegate restore --to VERSION`. To replace what"
            " is there: stop its query and run `tidegate drop --only-stores --force` first; or restore under"
            " a new --namespace, and set an alias"
        )
    within = last_batch_within(reached.state, version)
    followed = _origin_of(last_followed(reached.state))
    next_to = (followed, reached.next_offsets)
    if state is None:
        if identity is not None:
            raise ConfigError(
                f"{store.where} has namespace {name} without any version, and {coordinator.log.where}"
                f" is empty: check --wal; if the log is gone, run `{_drop_of_primary(coordinator)}` first."
                " Nothing was written"
            )
        refuse_alias(coordinator)
        _refuse_if_another_shows(coordinator, "", version)
        return Plan(Way.NEW, version, 0, [], *next_to)
    _refuse_other_history(coordinator, reached, folder)
    last = state.last_version
    if _is_begun(coordinator, reached):
        _refuse_if_another_shows(coordinator, state.namespace, version)
        return Plan(Way.NEW, version, last, [], *next_to)
    versions = decided_versions(coordinator.log, state, version + 1)
    is_reached = version == last or oldest_whole(coordinator.log, state, version + 1) == version + 1
    if is_reached and (is_newest or version == last) and last >= FILLED_FROM:
        return Plan(Way.CONTINUE, version, last, [], _origin_of(last_followed(state)))
    if state.recent[-1].origin != RestoreOrigin(version):  # not of an interrupted run
        _refuse_if_another_shows(coordinator, state.namespace, version)
    refuse_restored_strides(
        state,
        version,
        reached.state.tables,
        "restore under a --namespace that does not exist yet, whose log begins with the backup's state",
    )
    lost = [each for each in versions if each.origin != RestoreOrigin(version)]
    return Plan(Way.AGAIN, version, last, lost, *next_to, within)


def _drop_of_primary(coordinator: Coordinator) -> str:
    """Return the command that removes what the primary has, and leaves the other stores as they are."""
    return f"tidegate drop --only-stores --store {coordinator.endpoints.stores[0].name}=URL"


def _origin_of(decided: DecidedVersion | None) -> BatchOrigin | None:
    return decided.origin if decided is not None and isinstance(decided.origin, BatchOrigin) else None


def restore_from(coordinator: Coordinator, contents: Contents, plan: Plan) -> RestoredFrom:
    """Restore the namespace of an empty store. The driver is not open yet.

    Durable: on return a version is visible in the primary, complete; readers never saw a part of it.
    Repeatable: also after an interruption, which it continues. Raises: ConfigError: the log has other
    versions since, or the store shows one. Otherwise as ``plan_restore``, ``take_over``, ``until_decided``
    and ``fill``.
    """
    coordinator.request = OpenRequest(from_backup=True)
    _refuse_changed(coordinator, plan.last)
    if coordinator.decisions.catch_up() is None:
        _begin_log(coordinator, contents)
    last = coordinator.folded.last_version
    take_over(coordinator, None, command="restore-from")
    _refuse_changed(coordinator, last)
    if plan.way is Way.CONTINUE:
        _continue(coordinator, contents)
    else:
        if plan.way is Way.NEW:
            _name_again(coordinator, contents.reached.state)
        else:  # before the version: a log that ends with it may be one that continues
            append_rewound(coordinator.decisions, plan.version, "tidegate restore-from")
        _decide_again(coordinator, contents)
        _filled(coordinator, fill_and_follow(coordinator, contents.rows, []))
    return RestoredFrom(plan, coordinator.store.pointer().visible, coordinator.folded.lineage)


def _refuse_changed(coordinator: Coordinator, last: int) -> None:
    """Refuse a place that is not as it was planned: the log ends at ``last``, and no version is visible.

    Raises: ConfigError.
    """
    state, store = coordinator.decisions.catch_up(), coordinator.store
    now = 0 if state is None else state.last_version
    visible = store.pointer().visible if store.identity() else 0
    if now != last or visible:
        name = coordinator.endpoints.namespace
        raise ConfigError(
            f"{store.where}: namespace {name} shows version {visible} now, and its log ends at version {now};"
            f" before, nothing was visible, and it ended at version {last}. Nothing was restored; run this"
            " command again, which shows what would be lost now"
        )


def digest_of_restored(digest: str, uuid: str) -> str:
    """Return the digest at which a new log begins, so that it is known as one of this backup's history."""
    return hashlib.blake2b(f"{digest}{uuid}".encode(), digest_size=16).hexdigest()


def _is_begun(coordinator: Coordinator, reached: Reached) -> bool:
    """Whether the log is a new one that an interrupted restore began, and nothing else was decided there."""
    state, version = coordinator.folded, reached.decided.version
    known = recent_version(state, version)
    if known is None or known.digest != digest_of_restored(reached.decided.digest, state.namespace):
        return False
    return all(
        decided.origin == RestoreOrigin(version) for decided in state.recent if decided.version > version
    )


def _refuse_if_another_shows(coordinator: Coordinator, uuid: str, version: int) -> None:
    """Refuse a restore that would undo what a store besides the primary still shows. Raises: ConfigError.

    ``uuid`` is the log's, '' where it is gone: then no store that shows a version can follow the new one.
    Versions up to ``version``, the backup's, of the log's namespace stay.
    """
    name = coordinator.endpoints.namespace
    for ref, store in zip(coordinator.endpoints.also, coordinator.others, strict=True):
        try:
            identity = store.identity()
            visible = store.pointer().visible if identity else 0
        except StoreUnavailableError as error:
            logger.warning("store %s may show more than the backup, and does not answer: %s", ref.name, error)
            continue
        if identity is None or (identity.uuid == uuid and visible <= version):
            continue
        shows = f"store {ref.name} ({store.where}) still shows version {visible} of namespace {name}"
        fate = ", which the backup has" if visible <= version else ", which the restored namespace would lose"
        if identity.uuid == uuid:
            keep = f"put it first, before the empty one, which is filled then: {fills_from(coordinator, ref)}"
        else:
            keep = f"`tidegate relog --namespace {name} --to NEW` with this store alone keeps it"
        raise ConfigError(
            f"{shows}{fate}: {keep}; or remove that copy: `tidegate drop --namespace {name} --only-stores"
            f" --store {ref.name}=URL --force`, then this again. Nothing was written"
        )


def _refuse_other_history(coordinator: Coordinator, reached: Reached, folder: Path) -> None:
    state, backup = coordinator.folded, reached.decided
    where, nothing = coordinator.log.where, "nothing was written"
    known = decided_version(coordinator.decisions, backup.version)
    if known is not None and known.digest == digest_of_restored(backup.digest, state.namespace):
        return
    if state.namespace != reached.state.namespace:
        _refuse_other_version(coordinator, reached, folder)
        raise ConfigError(
            f"{folder} is of namespace {reached.state.namespace}, {where} of {state.namespace}: give a"
            f" --namespace that does not exist yet; {nothing}"
        )
    if state.last_version < backup.version:
        raise WalGapError(
            f"{where} ends at version {state.last_version}, before the backup's version {backup.version}: it"
            " lost its end, or an older copy was put back. Put the newest copy back; or remove the log"
            f" (`tidegate drop --namespace {state.name}`), and run this again, which makes a new one; or take"
            f" an older version of the backup (--to); {nothing}"
        )
    if known is not None and known.digest != backup.digest:
        raise WalGapError(
            f"version {backup.version} has digest {backup.digest} in {folder}, {known.digest} in {where}:"
            f" they are of two histories; restore under a --namespace that does not exist yet; {nothing}"
        )


def _refuse_other_version(coordinator: Coordinator, reached: Reached, folder: Path) -> None:
    """Refuse a log that a restore of another version of this backup has begun. Raises: ConfigError."""
    state, target = coordinator.folded, reached.decided.version
    for decided in state.recent:
        if not isinstance(decided.origin, RestoreOrigin) and decided.version != state.last_version:
            continue
        version = decided.origin.version if isinstance(decided.origin, RestoreOrigin) else decided.version
        known = recent_version(state, version)
        try:
            of_backup = reached_at(folder, version).decided
        except ConfigError:  # the backup does not have it
            continue
        if known is not None and known.digest == digest_of_restored(of_backup.digest, state.namespace):
            raise ConfigError(
                f"{coordinator.log.where} was begun by a restore of version {version} of {folder}, and"
                f" {coordinator.store.where} shows nothing yet: `tidegate restore-from"
                f" {shlex.quote(str(folder))} --to {version}` completes it. For version"
                f" {target} first remove what was begun: `tidegate drop --namespace {state.name} --force`;"
                " nothing was written"
            )


# -- the log continues --------------------------------------------------------------------------------


def _continue(coordinator: Coordinator, contents: Contents) -> None:
    """Fill the store at its horizon, from the backup and the log, and apply the versions after it."""
    store, version, rows = coordinator.store, contents.reached.decided.version, contents.rows
    last, mark = coordinator.folded.last_version, store.pointer().filling_at
    if 0 < mark < version and any(stamp.version > mark for stamp in store.begun()):
        raise ConfigError(
            f"{store.where} was being filled at version {mark}, from an older backup or another store: run"
            f" `{_drop_of_primary(coordinator)} --force`, then this again"
        )
    horizon = last if isinstance(store, SupportsRebuild) else max(first_kept(coordinator), version)
    if mark >= version:
        horizon = mark
    versions = decided_versions_from(coordinator.decisions, version + 1, store.where)
    rows.read(coordinator.log, itertools.islice(versions, horizon - version))
    if horizon == version:
        _as_in_log(coordinator, rows)
    _filled(coordinator, fill_and_follow(coordinator, rows, list(versions)))


def _as_in_log(coordinator: Coordinator, rows: LogState) -> None:
    """Give the rows the version as this log has it, which may be a restored one."""
    decided = decided_version(coordinator.decisions, rows.last.version)
    if decided is None:
        return
    rows.last = decided
    try:
        rows.entry = catalog_entry(decided, read_manifest(coordinator.log, decided))
    except WalGapError:
        rows.entry = msgspec.structs.replace(rows.entry, digest=decided.digest)


def _filled(coordinator: Coordinator, visible: list[int]) -> None:
    if not visible and not coordinator.store.pointer().visible:
        raise WalGapError(f"{coordinator.store.where} could not be filled: run this again")


# -- one new version -----------------------------------------------------------------------------------


def _decide_again(coordinator: Coordinator, contents: Contents) -> None:
    """Decide one version with the backup's rows, unless an interrupted run has; make it the rows' version."""
    state, rows, version = coordinator.folded, contents.rows, contents.reached.decided.version
    newest = state.recent[-1]
    if newest.origin == RestoreOrigin(version) and is_whole(coordinator.log, newest):
        decided, manifest = newest, None
    else:
        entry = add_queues(rows, rows, rows.entry, state.key_groups, value_bytes_max(coordinator))
        schemas = schemas_by_table(rows.where, version, entry.tables, rows.schemas)
        tables = copied(entry.tables, schemas)
        barrier = StoredRowsBarrier(
            coordinator.log,
            RestoreOrigin(version),
            {name: table._replace(starts=True) for name, table in tables.items()},
            lambda: _changes(rows, [*tables], state.key_groups, version),
            coordinator.clock,
            drops=frozenset(state.tables.keys() - entry.tables.keys()),
            source_offsets=contents.reached.source_offsets,
        )
        decided, manifest, *_ = until_decided(coordinator, barrier)
    rows.last = decided
    rows.entry = catalog_entry(decided, manifest or read_manifest(coordinator.log, decided))


def _changes(rows: LogState, tables: Sequence[str], key_groups: int, version: int) -> Iterator[Any]:
    for group, (index, table) in itertools.product(range(key_groups), enumerate(tables)):
        for _, batch in rows.scan_groups_stored(ReadAt(table, version), [group]):
            yield stored_changes(group, index, batch)


# -- a new log -----------------------------------------------------------------------------------------


def _begin_log(coordinator: Coordinator, contents: Contents) -> None:
    """Begin a log with the backup's state, as a log that was cut there.

    It has another uuid, since versions after the backup existed under the old one, and late writes of older
    drivers may arrive. Raises: ConfigError: it is not set up safely, or another driver began it meanwhile.
    """
    uuid, name = new_uuid(coordinator.clock), coordinator.endpoints.namespace

    def first() -> Folded:
        names = sorted(ref.name for ref in coordinator.endpoints.stores)
        recent = _placed_again(coordinator, contents.reached, uuid)
        return msgspec.structs.replace(
            contents.reached.state,
            namespace=uuid,
            name=name,
            digest=recent[-1].digest,
            writer=coordinator.writer,
            stores=tuple(names) if len(names) > 1 else (),
            recent=recent,
        )

    if begin_log(coordinator, first).namespace != uuid:
        raise ConfigError(
            f"another driver made namespace {name} in {coordinator.log.where} meanwhile. If it is that of a"
            " second run of this command, wait until it ends. Else stop it, run `tidegate drop --namespace"
            f" {name}`, then this again"
        )


def _name_again(coordinator: Coordinator, before: Folded) -> None:
    """Let the aliases that named the namespace under its uuid in the backup name it under the new one."""
    name = coordinator.endpoints.namespace
    old, new = Target(name, before.namespace), Target(name, coordinator.folded.namespace)
    for store in coordinator.stores:
        try:
            aliases = store.aliases()
            for alias, named in aliases.all().items():
                if named == old:
                    aliases.set(alias, new)
                elif named.namespace == name and named != new:
                    logger.warning(
                        "alias %s names another namespace %s, of after the backup, and is left: `tidegate"
                        " alias set %s --namespace %s` lets it name this one", alias, name, alias, name,
                    )  # fmt: skip
        except StoreUnavailableError as error:
            if store is coordinator.store:
                raise
            logger.warning(
                "%s does not answer, so its aliases of namespace %s find nothing: `tidegate alias set NAME`"
                " sets one again (%s)", store.where, name, error,
            )  # fmt: skip


def _placed_again(coordinator: Coordinator, reached: Reached, uuid: str) -> tuple[DecidedVersion, ...]:
    """Return the versions that the fold still keeps, with manifests in the new log.

    A manifest names no table and no component, since the log never had the rows: the version that follows
    has all of them. A checkpoint is made again from the source offsets of the last batch, or of the one that
    the next one follows.
    """
    state, version = reached.state, reached.decided.version
    within, followed = last_batch_within(state, version), last_followed(state)
    manifests = [
        encode_manifest(
            Manifest(
                uuid,
                decided.attempt,
                decided.version,
                state.key_groups,
                (),
                {},
                {},
                {},
                reached.next_offsets
                if decided == followed
                else reached.source_offsets
                if decided.origin == within
                else "",
            )
        )
        for decided in state.recent
    ]
    addresses = coordinator.log.stage(f"{coordinator.clock.new_id()}-manifests", manifests)
    return tuple(
        msgspec.structs.replace(
            decided,
            manifest_address=address,
            manifest_digest=manifest_digest(content),
            digest=digest_of_restored(decided.digest, uuid) if decided.version == version else decided.digest,
        )
        for decided, address, content in zip(state.recent, addresses, manifests, strict=True)
    )
