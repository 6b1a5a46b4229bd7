"""A namespace whose log is gone: its visible version, as the first version of a new namespace with a new log.

The new namespace is an ordinary one, so nothing of the lost log is needed: no record, no epoch and no attempt
of it means anything there. Its first version has the origin of the last batch that the store shows. So the
query's checkpoint continues in the new namespace: that batch is skipped when Spark gives it again, and the
next one follows it (I2).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tidegate.base.names import RELOG_TOKEN, following_name, relog_command
from tidegate.committers.background.pin import VersionPin
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.begin_log import new_uuid
from tidegate.committers.opening.open import ensure_made, not_shown, open_namespace
from tidegate.committers.opening.rekeyed import is_whole, source_of
from tidegate.committers.repair.log_reach import held_for
from tidegate.committers.steps.decided_versions import LastBatch, decided_versions
from tidegate.committers.steps.fill_groups import live_rows
from tidegate.committers.steps.stored_rows import StoredRowsBarrier, copied, stored_changes
from tidegate.committers.transfer.compare import VersionOf, compare
from tidegate.errors import ConfigError, CorruptError, FencedError, TidegateError, WalGapError
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.capabilities import SupportsNamespaces
from tidegate.sinks.records import CatalogEntry, Identity
from tidegate.sinks.rules.fit import Fit, described, fit_of
from tidegate.sinks.rules.visible import no_entry, schemas_by_table
from tidegate.sinks.store import Store
from tidegate.wal.catch_up import catch_up, source_offsets_of
from tidegate.wal.fold import View, decided_for, once_key, recent_version
from tidegate.wal.log import Log
from tidegate.wal.open_log import open_log
from tidegate.wal.record import (
    BatchOrigin,
    DecidedVersion,
    Folded,
    ImportOrigin,
    Origin,
    RestoreOrigin,
    digest_after,
)

MENDED = (Fit.LOG_GONE, Fit.LOG_BEHIND, Fit.OTHER_HISTORY, Fit.BEHIND_CUT, Fit.CHANGES_GONE)
"""The misfits of a log and a store after which the store's visible version is all that can be saved."""

LOOKED_AT_MAX = 100


class Saved(NamedTuple):
    """The part of a namespace that its store still has, and the loss.

    ``batch`` is the last batch up to the visible version; None: there is none, or it is ``unknown``, since
    it was retired in the store and the log cannot be read. ``fault`` is the log's. ``lost`` are the versions
    above the visible one that the log decided, as far as it can be read; ``begun`` the numbers of those that
    the store has begun.
    """

    store: Store
    identity: Identity
    entry: CatalogEntry
    batch: LastBatch | None
    unknown: bool
    restored: bool
    """Whether a restore is newer than the last batch."""
    fault: str
    lost: tuple[DecidedVersion, ...]
    begun: tuple[int, ...]

    @property
    def origin(self) -> Origin:
        """The origin of the new namespace's first version."""
        if self.batch is not None:
            batch = self.batch.origin
            return BatchOrigin(batch.lineage, 0, batch.batch_id, batch.fingerprint)
        return ImportOrigin(f"{RELOG_TOKEN}{self.identity.uuid}:{self.entry.version}")

    def mark_of(self, copy: str) -> str:
        """Return the token in the first record of a copy of this version, by the copy's uuid.

        No other is a copy. One that continued the same checkpoint has versions of the same batches, and other
        rows. A load, a rename or older copies of log and store give another version of the same last batch.
        """
        version = f"{self.entry.version}:{self.entry.digest}"
        return once_key(ImportOrigin(f"{RELOG_TOKEN}{self.identity.uuid}:{version}:{copy}"))


class Relogged(NamedTuple):
    """The result of a relog. ``rows`` is None when the new namespace has retired its first version."""

    identity: Identity
    new: bool
    rows: dict[str, int] | None
    visible: int


def saved_of(old: Coordinator) -> Saved:
    """Find what the stores still have of a namespace, and what its log has lost. It writes nothing.

    Of several stores, the one with the newest visible version counts. Raises: ConfigError: no store shows a
    version, or the log has everything that the store needs. WalUnavailableError: the log does not answer,
    which does not mean that it is gone.
    """
    store, identity = _newest(old)
    pointer = store.pointer()
    fault, lost, state = _fault_of(old, store, identity)
    entries = store.catalog(pointer.horizon, pointer.visible)
    if not entries or entries[-1].version != pointer.visible:
        raise no_entry(store.where, pointer.visible)
    batch, unknown = _last_batch(old.log, state, entries)
    unfinished = tuple(sorted(stamp.version for stamp in store.begun() if stamp.version > pointer.visible))
    restored = any(
        isinstance(entry.origin, RestoreOrigin) and batch is not None and entry.version > batch.version
        for entry in entries
    )
    return Saved(store, identity, entries[-1], batch, unknown, restored, fault, lost, unfinished)


def _last_batch(
    log: Log, state: Folded | None, entries: Sequence[CatalogEntry]
) -> tuple[LastBatch | None, bool]:
    """Return the last batch up to the visible version, and whether it is unknown.

    Where every version that the store still has is a load, an import or a restore, the log may know it, if
    it has one of these versions.
    """
    for entry in reversed(entries):
        if isinstance(entry.origin, BatchOrigin):
            return LastBatch(entry.origin, entry.version, entry.decided_at_us, entry.source_offsets), False
    if entries[0].version == 1:
        return None, False
    for entry in reversed(entries):
        decided = None if state is None else recent_version(state, entry.version)
        if state is None or decided is None or decided.digest != entry.digest:
            continue
        for older in reversed(state.recent):
            if older.version < entry.version and isinstance(older.origin, BatchOrigin):
                offsets = source_offsets_of(log, older)
                return LastBatch(older.origin, older.version, older.decided_at_us, offsets), False
        return None, bool(state.batches)
    return None, True


def _newest(old: Coordinator) -> tuple[Store, Identity]:
    by_store = [(store, store.identity()) for store in old.stores]
    present = [(store, identity) for store, identity in by_store if identity is not None]
    name = old.endpoints.namespace
    if not present:
        raise ConfigError(
            f"no store given has namespace {name}, so there is nothing to save: check --store and"
            " --namespace; if the log has its versions, `tidegate recover` rebuilds the store"
        )
    if len({identity.uuid for _, identity in present}) > 1:
        raise ConfigError(f"the stores given are of different namespaces named {name}: give those of one")
    newest = max(present, key=lambda each: each[0].pointer().visible)
    if not newest[0].pointer().visible:
        dropped = (
            f": `tidegate drop --namespace {name}`, then start the query on a new checkpoint; or, if there is"
            " a backup, `tidegate restore-from FOLDER` after the drop"
        )
        raise ConfigError(
            f"{newest[0].where} shows no version of namespace {name}, so there is nothing to save"
            f"{not_shown(old.decisions.catch_up()) or dropped}"
        )
    return newest


def _fault_of(
    old: Coordinator, store: Store, identity: Identity
) -> tuple[str, tuple[DecidedVersion, ...], Folded | None]:
    """Describe what the log lost, with the decided versions that the store does not show, and its fold.

    Raises: ConfigError: the log lost nothing that the store needs.
    """
    name, pointer = old.endpoints.namespace, store.pointer()
    try:
        state = old.decisions.catch_up()
    except (CorruptError, WalGapError) as error:
        return f"the log cannot be read: {error}", (), None
    part = None if state is None else held_for(old.log, store, state, pointer)
    fit = fit_of(state, identity, pointer, part)
    if fit is Fit.OTHER_NAMESPACE:
        raise ConfigError(
            f"{described(fit, state, identity, pointer)}; to save namespace {name}, give as --wal a place"
            " without a log of this name"
        )
    if fit not in MENDED or state is None:
        if fit is Fit.LOG_GONE:
            return f"the log {old.log.where} has nothing of the namespace", (), None
        raise ConfigError(
            f"the log {old.log.where} has what {store.where} needs, so nothing is to be saved: `tidegate"
            f" recover --namespace {name}` makes every decided version visible, and `tidegate status` shows"
            " both"
        )
    lost: tuple[DecidedVersion, ...] = ()
    if state.last_version > pointer.visible:
        lost = tuple(decided_versions(old.log, state, pointer.visible + 1))
    return described(fit, state, identity, pointer, part), lost, state


def fence(stores: Sequence[Store], writer: str) -> None:
    """Claim a higher epoch in each store of the old namespace, so that no driver of it publishes any more.

    Durable. Repeatable. Raises: FencedError: a driver claimed one at the same time; nothing was copied.
    """
    for store in stores:
        if store.identity() is None:
            continue
        epoch = store.pointer().epoch + 1
        if store.claim(epoch, writer) > epoch or store.pointer().writer != writer:
            raise FencedError(
                f"{store.where}: another driver took this namespace over meanwhile; nothing was copied: stop"
                " it, and run this command again"
            )


def copies_of(saved: Saved, where: Endpoints) -> list[str]:
    """Return the namespaces of the store's place that a rekey made of this one, and made whole.

    The mark of the move was in the lost log; theirs is in their own logs. One whose log cannot be read is
    passed over, and only ``LOOKED_AT_MAX`` are looked at, those with the like names first.
    """
    store, copies = saved.store, []
    names = store.namespaces() if isinstance(store, SupportsNamespaces) else []
    stem = saved.identity.name.rpartition("_")[0] or saved.identity.name
    for name in sorted(names, key=lambda name: not name.startswith(stem))[:LOOKED_AT_MAX]:
        with (
            contextlib.suppress(TidegateError),
            contextlib.closing(open_log(where.wal, name, where.wal_options)) as log,
        ):
            if _is_moved_there(catch_up(View(), log).state, saved):
                copies.append(name)
    return copies


def refuse_other(new: Coordinator, saved: Saved) -> None:
    """Refuse a new namespace that has versions of another origin. Raises: ConfigError."""
    state, name = new.decisions.catch_up(), new.endpoints.namespace
    exists = new.store.identity() is not None
    if state is None and exists:
        raise ConfigError(
            f"namespace {name} has a store without a log, too: give another name with --to, or save that one"
            f" first: `{relog_command(name)}`"
        )
    if state is None:
        return
    if _is_moved_there(state, saved):
        raise ConfigError(
            f"namespace {name} was made of this one by a rekey, and its query continues there: set"
            f" namespace={name!r} in the query's options, and nothing is to be saved. Only if an"
            f" adoption has taken this one back since: `tidegate relog"
            f" --namespace {saved.identity.name} --to {following_name(name)}`"
        )
    is_copy = saved.mark_of(state.namespace) in state.once
    another = (
        f"give another name, `tidegate relog --namespace {saved.identity.name} --to {following_name(name)}`"
    )
    if state.key_groups != saved.identity.key_groups:
        raise ConfigError(
            f"namespace {name} was made with key_groups={state.key_groups}; the saved version of namespace"
            f" {saved.identity.name} has {saved.identity.key_groups}: {another}"
        )
    if state.last_version and not (is_copy and decided_for(state, saved.origin)):
        raise ConfigError(
            f"namespace {name} has {state.last_version} versions, and none is a copy of version"
            f" {saved.entry.version} of namespace {saved.identity.name}: {another}"
        )
    if not is_copy and any(token.startswith(once_key(ImportOrigin(RELOG_TOKEN))) for token in state.once):
        raise ConfigError(
            f"namespace {name} was begun as a copy of another namespace or version, and has no version:"
            f" `tidegate drop --namespace {name} --force`, then run this command again"
        )
    # Older copies of the stores may have been put back since the copy was begun.
    missing = sorted({*state.stores} - {ref.name for ref in new.endpoints.stores})
    if is_copy and missing and state.last_version <= 1:
        raise ConfigError(
            f"namespace {name}, which this command has begun, has store {', '.join(missing)}, too: give it as"
            f" {missing[0]}=URL, or, if the namespace has it no more, `tidegate drop --namespace {name}"
            " --force`, then run this command again"
        )


def _is_moved_there(state: Folded | None, saved: Saved) -> bool:
    if state is None:
        return False
    source = source_of(state)
    return source is not None and source.uuid == saved.identity.uuid and is_whole(state, source)


def relog(new: Coordinator, saved: Saved) -> Relogged:
    """Make the saved version the first one of a new namespace, and compare both.

    The old namespace is fenced; the new driver is not open yet. Durable: on return the version is in the new
    log, and visible in the primary. Repeatable: an interrupted one continues, a second one only compares.
    Raises: ConfigError: the new namespace has versions of its own. CorruptError: the copy differs. Otherwise
    as ``open_namespace`` and ``commit``.
    """
    refuse_other(new, saved)
    origin = saved.origin
    ensure_made(new, _first_state(new, saved))
    lineage = origin.lineage if isinstance(origin, BatchOrigin) else None
    open_namespace(new, lineage, command="relog --to")
    decided = decided_for(new.folded, origin)
    made = decided is None
    pin = VersionPin(saved.store, saved.entry.version, new.clock)
    try:
        if decided is None:
            at_us = saved.entry.decided_at_us  # that of the first record may be an older version's
            new.begun_us = max(new.begun_us, at_us)
            decided = commit(new, _barrier(new, saved, pin.keep))
        rows = _compared(new, saved, decided, pin.keep)
    finally:
        pin.give_back()
    identity = new.store.identity()
    assert identity is not None, "the namespace was opened"
    return Relogged(identity, made, rows, new.store.pointer().visible)


def _first_state(new: Coordinator, saved: Saved) -> Folded:
    """Return a state without versions and with the saved version's time, which the first version follows.

    The clock of an earlier driver may have been ahead. A first version that were decided before the saved one
    would show rows that had expired there.
    """
    uuid = new_uuid(new.clock)
    name, key_groups = new.endpoints.namespace, saved.identity.key_groups
    digest, at_us = digest_after("", uuid.encode()), saved.entry.decided_at_us
    return Folded(uuid, name, key_groups, digest, decided_at_us=at_us, once=(saved.mark_of(uuid),))


def _barrier(new: Coordinator, saved: Saved, keep: Callable[[], None]) -> StoredRowsBarrier:
    entry, store = saved.entry, saved.store
    schemas = schemas_by_table(store.where, entry.version, entry.tables, store.schemas())

    def rows() -> Iterator[Any]:
        key_groups = saved.identity.key_groups
        for group, index, batch in live_rows(store, entry, key_groups, entry.decided_at_us, keep):
            yield stored_changes(group, index, batch)

    return StoredRowsBarrier(
        new.log,
        saved.origin,
        copied(entry.tables, schemas),
        rows,
        new.clock,
        source_offsets=saved.batch.source_offsets if saved.batch else "",
    )


def _compared(
    new: Coordinator, saved: Saved, decided: DecidedVersion, keep: Callable[[], None]
) -> dict[str, int] | None:
    """Compare the copy with the saved version, row by row; return the number of rows by table.

    A row that has expired at the later of their times is in neither. None: the copy is retired by now, so
    nothing was compared. Raises: CorruptError: they differ.
    """
    if new.store.pointer().horizon > decided.version:
        return None
    entry = next(iter(new.store.catalog(decided.version, decided.version)), None)
    if entry is None:
        raise no_entry(new.store.where, decided.version)
    name, was = new.endpoints.namespace, saved.identity

    def makes_again() -> str:
        if new.folded.last_version > decided.version:  # a query has gone on there
            return (
                f"it has later versions; give another name, `tidegate relog --namespace {was.name}"
                f" --to {following_name(name)}`"
            )
        return f"`tidegate drop --namespace {name}`, then run this command again"

    source = VersionOf(was.name, saved.store, saved.entry, was.key_groups)
    copy = VersionOf(name, new.store, entry, was.key_groups)
    return compare(source, copy, keep, makes_again)
