"""One run of ``tidegate backup``: an increment from the log, or a full backup from the store.

Each link is written under another name, synced, read back, renamed, and counts once the chain lists it. So a
killed run changes nothing for the next one but a leftover, which that one removes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidegate.base.clock import Clock
from tidegate.base.files import make_folder, remove_folder, sync_folder
from tidegate.base.names import saved_by_relog
from tidegate.committers.background.pin import EXPORT, VersionPin
from tidegate.committers.exports.export import export
from tidegate.committers.opening.begin_log import summary_of
from tidegate.committers.opening.open import not_shown
from tidegate.committers.transfer.backup.blobs import copy_blobs
from tidegate.committers.transfer.backup.chain import (
    FULL,
    INCREMENT,
    INDEX,
    PART,
    PLACE,
    Chain,
    Index,
    Link,
    Place,
    digest_of,
    locked,
    read_chain,
    remove_leftovers,
    write_chain,
    write_sealed,
)
from tidegate.committers.transfer.backup.check import check_link, rehearse
from tidegate.committers.transfer.backup.contents import Reached, fold_to, reached_by
from tidegate.errors import ConfigError, CorruptError, SnapshotExpiredError, WalGapError
from tidegate.sinks.records import CatalogEntry, Identity
from tidegate.sinks.rules.visible import no_entry, no_version_yet
from tidegate.sinks.store import Store
from tidegate.wal.catch_up import catch_up, decided_versions, source_offsets_of
from tidegate.wal.fold import View, decided_for, last_batch_within, last_followed
from tidegate.wal.log import Log
from tidegate.wal.record import DecidedVersion, Folded, Summary, decode_record, encode_record

logger = logging.getLogger("tidegate")

FULL_EVERY, KEEP = 24, 2
SMALL_BYTES = 1024 * 1024
"""Increments up to this size, all together, need no new full backup, however small the last one is."""


class BackedUp(NamedTuple):
    """The result of a run. ``link`` is None when the chain has the visible version already.

    ``cause`` is the reason for a full backup. ``removed`` are the names of the links that were removed.
    """

    version: int
    link: Link | None
    cause: str
    removed: list[str]
    chain: Chain


class _GoneError(Exception):
    """The log cannot give an increment, for this cause."""


def backup(
    log: Log, store: Store, identity: Identity, folder: Path, full_every: int = FULL_EVERY, keep: int = KEEP
) -> BackedUp:
    """Add the newest visible version to the chain in a folder, which is made if it does not exist.

    It takes no lock of the namespace's: a lease pins the version during a full backup. Durable: on return.
    Repeatable: also after an interruption at any point. Raises: ConfigError: another backup is being written,
    the folder is another namespace's, nothing is visible yet, or the folder cannot be written; the chain is
    as before. CorruptError: the chain, or what was written, is damaged. WalGapError: log and store do not
    fit. Otherwise the errors of log and store.
    """
    try:
        with locked(folder):
            chain = read_chain(folder) or Chain(identity.name, identity.uuid, identity.key_groups)
            if not chain.links:  # a killed first run's
                chain = Chain(identity.name, identity.uuid, identity.key_groups)
            if chain.uuid != identity.uuid:
                raise ConfigError(
                    f"{folder} holds backups of namespace {chain.namespace} ({chain.uuid}), this one is"
                    f" {identity.name} ({identity.uuid}): give another folder"
                )
            remove_leftovers(folder, chain)
            return _add(log, store, identity, folder, chain, full_every, keep)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written: {error.strerror or error}; the backups before are as they were:"
            " make room, or give another folder"
        ) from error


def _add(
    log: Log, store: Store, identity: Identity, folder: Path, chain: Chain, full_every: int, keep: int
) -> BackedUp:
    version = store.pointer().visible
    if not version:
        state = catch_up(View(), log).state
        raise no_version_yet(identity.name, not_shown(state))
    last = chain.links[-1].version if chain.links else 0
    if version < last:
        raise ConfigError(
            f"{store.where} shows version {version}, the newest backup in {folder} has version {last}: the"
            " store went back. Run `tidegate recover` first; if older copies of log and store were put back,"
            " give a new folder; nothing was written"
        )
    entry = _entry(store, version)
    cause, link = _cause_of_full(chain, full_every), None
    if chain.links and (version == last or not cause):
        before = reached_by(folder, chain.since_full, last)
        if version == last:
            _refuse_other_history(folder, before, entry, store)
        try:
            added = _read_to(log, before, entry)
            if added is None:
                return BackedUp(version, None, "", [], chain)
            link = None if cause else _increment(log, folder, before, added, entry)
        except _GoneError as gone:
            cause = str(gone)
            logger.warning("%s: a new full backup is written, since %s", folder, cause)
    if link is None:
        if chain.links and version > last:
            _refuse_log_of_other_history(log, folder, reached_by(folder, chain.since_full, last).decided)
        # The newest version again: the try of an increment may have read for longer than a version is kept.
        entry = _entry(store, store.pointer().visible)
        link = _full(log, store, identity, folder, entry, last)
    return _with(folder, chain, link, cause, keep)


def _refuse_other_history(folder: Path, before: Reached, entry: CatalogEntry, store: Store) -> None:
    if before.decided.digest != entry.digest:
        raise ConfigError(
            f"version {entry.version} has digest {before.decided.digest} in {folder}, {entry.digest} in"
            f" {store.where}: older copies of log and store were put back, so the history is another one;"
            " give a new folder; nothing was written"
        )


def _refuse_log_of_other_history(log: Log, folder: Path, last: DecidedVersion) -> None:
    """Refuse a log that has the chain's last version with another digest, where it still has it at all."""
    state = catch_up(View(), log).state
    known = None if state is None else next(decided_versions(log, state, last.version), None)
    if known is not None and known.version == last.version and known.digest != last.digest:
        raise ConfigError(
            f"version {last.version} has digest {last.digest} in {folder}, {known.digest} in {log.where}:"
            " older copies of log and store were put back, so the history is another one; give a new folder;"
            " nothing was written"
        )


def _entry(store: Store, version: int) -> CatalogEntry:
    entry = next(iter(store.catalog(version, version)), None)
    if entry is not None:
        return entry
    if store.pointer().horizon > version:
        raise SnapshotExpiredError(
            f"version {version} was retired in {store.where} meanwhile; nothing was written; run it again"
        )
    raise no_entry(store.where, version)


def _cause_of_full(chain: Chain, full_every: int) -> str:
    """Name the reason why the next link is a full backup; '': it may be an increment."""
    if not chain.links:
        return "it is the first one"
    full, *increments = chain.since_full
    if len(increments) >= full_every:
        return f"{len(increments)} increments follow the last full one (--full-every)"
    if sum(link.bytes for link in increments) > max(full.bytes, SMALL_BYTES):
        return "the increments are larger than the last full one"
    return ""


def _with(folder: Path, chain: Chain, link: Link, cause: str, keep: int) -> BackedUp:
    """Check the written link, give it its name, restore it in memory, and list it; then remove older ones."""
    part = folder / PART
    check_link(folder, link, part)
    if not chain.links:  # from now on a folder of links without a chain is one that lost it
        write_chain(folder, chain)
    sync_folder(part)
    part.rename(folder / link.name)
    sync_folder(folder)
    links = (*chain.links, link)
    fulls = [number for number, each in enumerate(links) if each.kind == FULL]
    retained = Chain(chain.namespace, chain.uuid, chain.key_groups, links[fulls[-keep:][0] :])
    rehearse(folder, retained, link.version, sample=True)
    write_chain(folder, retained)
    removed = [each.name for each in links if each not in retained.links]
    remove_leftovers(folder, retained)
    return BackedUp(link.version, link, cause, removed, retained)


# -- an increment --------------------------------------------------------------------------------------


class _Added(NamedTuple):
    """The part of the log after a backup: the fold at its end, records and versions."""

    view: View
    records: list[bytes]
    versions: list[DecidedVersion]


def _read_to(log: Log, before: Reached, entry: CatalogEntry) -> _Added | None:
    """Read the records after a backup, up to the decision of the version after the entry's.

    None: nothing changed but drivers. Summaries are left out: they repeat. Raises: _GoneError: the log does
    not have them.
    """
    version, added = entry.version, _Added(before.view, [], [])
    try:
        for record, view in fold_to(before.view, log.decisions(before.view.position), version, log.where):
            older, added = added.view.state, added._replace(view=view)
            if not isinstance(decode_record(record.content, log.where), Summary):
                added.records.append(record.content)
            if view.state is not None and older is not None and view.state.last_version > older.last_version:
                added.versions.append(view.state.recent[-1])
    except (CorruptError, WalGapError) as error:
        raise _unreadable(error, before) from error
    state = added.view.state
    if state is None or state.last_version != version:
        raise _GoneError(f"the log has no decision of version {version} after the last backup's place")
    if state.recent[-1].digest != entry.digest:
        raise _GoneError("the log has another history than the last backup")
    return None if _without_drivers(state) == _without_drivers(before.state) else added


def _without_drivers(state: Folded) -> Folded:
    """Return the fold without the facts that each Open changes: a restored namespace needs none of them."""
    return msgspec.structs.replace(state, digest="", epoch=0, writer="")


def _unreadable(error: CorruptError | WalGapError, before: Reached) -> _GoneError:
    after = before.state.last_version
    if isinstance(
        error, CorruptError
    ):  # damage, or another log's bytes at this place: the full one reads all
        return _GoneError(f"the log cannot be read after version {after}: {error}")
    return _GoneError(f"the log no longer has all versions after {after}: {error}")


def _increment(log: Log, folder: Path, before: Reached, added: _Added, entry: CatalogEntry) -> Link:
    """Write what the log has after the chain. Raises: _GoneError: it no longer has the rows."""
    part = folder / PART
    remove_folder(part)
    make_folder(part)
    try:
        copied = copy_blobs(log, added.versions, part)
    except (CorruptError, WalGapError) as error:
        remove_folder(part)
        raise _unreadable(error, before) from error
    index = Index(tuple(added.records), added.view.position, copied.versions, copied.bytes, copied.checksum)
    write_sealed(part / INDEX, index)
    size = copied.bytes + (part / INDEX).stat().st_size
    after = before.state.last_version
    return Link(
        INCREMENT, after, entry.version, entry.decided_at_us, size, copied.rows, digest_of(part, INCREMENT)
    )


# -- a full backup -------------------------------------------------------------------------------------


def _full(log: Log, store: Store, identity: Identity, folder: Path, entry: CatalogEntry, last: int) -> Link:
    """Write all rows of the entry's version. ``last`` is the version at which the chain ends."""
    part = folder / PART
    remove_folder(part)
    pin = VersionPin(store, entry.version, Clock(), EXPORT)  # first: a long log is folded for a while
    try:
        view = _fold_to(log, identity.name, entry, pin)
        written = export(store, identity, entry.version, part)
    finally:
        pin.give_back()
    state = view.state
    assert state is not None, "the fold has the entry's version"
    place = Place(encode_record(summary_of(state)), view.position, entry, *_source_offsets(log, state, entry))
    write_sealed(part / PLACE, place)
    size = sum(path.stat().st_size for path in part.rglob("*") if path.is_file())
    rows = sum(table.rows for table in written.tables.values())
    after = entry.version if entry.version == last else 0
    return Link(FULL, after, entry.version, entry.decided_at_us, size, rows, digest_of(part, FULL))


def _fold_to(log: Log, name: str, entry: CatalogEntry, pin: VersionPin) -> View:
    """Fold the log up to the decision of the version after the entry's.

    Raises: WalGapError: log and store do not fit.
    """
    view = View()
    for _, following in fold_to(view, log.decisions(), entry.version, log.where):
        pin.keep()
        view = following
    decided = view.state.recent[-1] if view.state and view.state.recent else None
    if decided is None or (decided.version, decided.digest) != (entry.version, entry.digest):
        ends = f"its version {decided.version}" if decided else "no version"
        raise WalGapError(
            f"{log.where} does not have the decision of version {entry.version} with the store's digest, it"
            f" has {ends} there: check --wal and --store, and see `tidegate verify`; nothing was written. If"
            f" both are right, the log lost records: {saved_by_relog(name, entry.version)}"
        )
    return view


def _source_offsets(log: Log, state: Folded, entry: CatalogEntry) -> tuple[str, str]:
    """Return the source offsets of the last batch that a version contains, and of the one that is followed.

    '': the log lost them.
    """
    batch, followed = last_batch_within(state, entry.version), last_followed(state)
    decided = decided_for(state, batch) if batch else None
    offsets = (source_offsets_of(log, decided) if decided else "") or entry.source_offsets
    if followed is None or followed == decided:
        return offsets, offsets
    return offsets, source_offsets_of(log, followed)
