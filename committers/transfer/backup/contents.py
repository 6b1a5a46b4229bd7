"""The contents of a backup at one version: the fold there, the catalog's entry, and every stored row."""

from __future__ import annotations

import contextlib
import datetime
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.exports.export_format import (
    Manifest,
    batches_of,
    check_files,
)
from tidegate.committers.exports.export_format import (
    read_manifest as read_export,
)
from tidegate.committers.repair.log_state import LogState
from tidegate.committers.transfer.backup.blobs import BackupBlobs
from tidegate.committers.transfer.backup.chain import (
    FULL,
    INDEX,
    MENDED_BY,
    PLACE,
    Chain,
    Index,
    Link,
    Place,
    check_digest,
    read_sealed,
    require_chain,
)
from tidegate.errors import ConfigError, CorruptError
from tidegate.wal.fold import Entry, View, fold_all, last_batch_within, last_followed
from tidegate.wal.record import BatchOrigin, DecidedVersion, Folded, RestoreOrigin, Summary, decode_record


class Reached(NamedTuple):
    """A version that a chain reaches. ``view`` is the fold up to the next version's decision."""

    view: View
    source_offsets: str
    """The source offsets of the last batch that the version contains; '': unknown, or there is none."""
    next_offsets: str
    """The same of the batch that the next one follows: of a restored version it is a later one."""

    @property
    def state(self) -> Folded:
        """The fold."""
        assert self.view.state is not None, "a chain begins with a state"
        return self.view.state

    @property
    def decided(self) -> DecidedVersion:
        """The version."""
        return self.state.recent[-1]


class Contents(NamedTuple):
    """A backup at one version. ``rows`` are its stored rows, in a temporary file of this machine."""

    reached: Reached
    rows: LogState


def version_in(folder: Path, to: int | datetime.datetime | None = None) -> int:
    """Return a version that the backup can give: the newest, this one, or the newest decided by a time.

    Raises: ConfigError: it has none such; the message names those that it has. CorruptError.
    """
    chain = require_chain(folder)
    if to is None:
        return chain.links[-1].version
    if isinstance(to, int):
        _links_to(folder, chain, to)
        return to
    limit_us = int(to.timestamp() * 1_000_000)
    versions = [version for version, decided_at_us in _times(folder, chain) if decided_at_us <= limit_us]
    if not versions:
        raise ConfigError(f"no version of the backup {folder} was decided by {to}; {_range(chain)}")
    return versions[-1]


def _times(folder: Path, chain: Chain) -> Iterator[tuple[int, int]]:
    for link in chain.links:
        if link.kind == FULL:
            yield link.version, link.decided_at_us
        else:
            check_digest(folder, link)
            versions = read_sealed(folder / link.name / INDEX, Index).versions
            yield from ((each.decided.version, each.decided.decided_at_us) for each in versions)


@contextlib.contextmanager
def contents_of(
    folder: Path, version: int, chain: Chain | None = None, *, sample: bool = False
) -> Iterator[Contents]:
    """Give the backup's contents at a version. Every file that is read is compared with its checksum first.

    ``chain`` is the folder's unless given. ``sample``: only some rows of the last link are read, and the
    caller has compared its files.
    Raises: ConfigError: the chain does not reach the version, or the temporary folder has no room.
    CorruptError: a file is missing or damaged.
    """
    chain = chain or require_chain(folder)
    full, *increments = _links_to(folder, chain, version)
    with contextlib.closing(LogState(str(folder))) as rows:
        place, export = _read_full(folder, full, whole=not sample)
        for name, table in export.tables.items():
            rows.schemas[table.table_schema.schema_id] = table.table_schema
            if not (sample and increments):
                batches = batches_of(folder / full.name, name, table, export.key_groups)
                rows.put(name, itertools.islice(batches, 1 if sample else None))
        reached = _reached_by_full(folder, full, place)
        rows.last, rows.entry = reached.decided, place.entry
        for link in increments:
            changes = not sample or link is increments[-1]
            blobs = _blobs_of(folder, link, whole=not sample)
            reached = _after(reached, blobs, min(link.version, version))
            rows.read(blobs, blobs.versions(reached.decided.version), changes=changes)
        yield Contents(_standing(folder, chain, reached), rows)


def reached_at(folder: Path, version: int) -> Reached:
    """Return a version of a backup, without its rows. Raises: as ``contents_of``."""
    chain = require_chain(folder)
    return _standing(folder, chain, reached_by(folder, _links_to(folder, chain, version), version))


def _standing(folder: Path, chain: Chain, reached: Reached) -> Reached:
    """Return a version with the facts that no version makes, as the end of the backup has them.

    These are the query that is followed, its generation and the list of stores: as after
    `tidegate restore --to`, they are not those of the older version.
    """
    end, state = reached_by(folder, chain.since_full, chain.links[-1].version).state, reached.state
    generation = max(end.generation, state.generation)  # two histories may be in one folder
    state = msgspec.structs.replace(state, lineage=end.lineage, generation=generation, stores=end.stores)
    return reached._replace(view=reached.view._replace(state=state))


def reached_by(folder: Path, links: Sequence[Link], version: int) -> Reached:
    """Return a version at which a full backup and its increments end, or which the last one contains."""
    reached = _reached_by_full(folder, links[0])
    for link in links[1:]:
        reached = _after(reached, _blobs_of(folder, link, whole=False), min(link.version, version))
    return reached


def _links_to(folder: Path, chain: Chain, version: int) -> list[Link]:
    """List the newest full backup at or before the version, and the increments up to it."""
    for number in reversed(range(len(chain.links))):
        full = chain.links[number]
        if full.kind == FULL and full.version <= version:
            links = [full]
            for link in chain.links[number + 1 :]:
                if link.kind == FULL or links[-1].version >= version:
                    break
                links.append(link)
            if links[-1].version >= version:
                return links
            break
    raise ConfigError(f"the backup {folder} does not have version {version}; {_range(chain)}")


def _range(chain: Chain) -> str:
    parts: list[list[int]] = []
    for link in chain.links:
        if link.kind == FULL:
            parts.append([link.version, link.version])
        else:
            parts[-1][1] = link.version
    shown = ", ".join(f"{first} to {last}" if first < last else str(first) for first, last in parts)
    return f"it has the versions {shown}"


def _read_full(folder: Path, link: Link, *, whole: bool) -> tuple[Place, Manifest]:
    check_digest(folder, link)
    path = folder / link.name
    export, _ = read_export(path)
    if whole:
        check_files(path, export)
    place = read_sealed(path / PLACE, Place)
    state, entry = state_in(path, place), place.entry
    of_export = (export.uuid, export.key_groups, export.version, export.digest, set(export.tables))
    of_state = (state.namespace, state.key_groups, state.last_version, state.recent[-1].digest)
    if of_export != (*of_state, set(entry.tables)) or entry.tables != state.tables:
        raise CorruptError(f"{path}: {PLACE} and the export are not of one version; {MENDED_BY}")
    return place, export


def _reached_by_full(folder: Path, link: Link, place: Place | None = None) -> Reached:
    if place is None:
        check_digest(folder, link)
        place = read_sealed(folder / link.name / PLACE, Place)
    state = state_in(folder / link.name, place)
    return Reached(View(state, place.position), place.source_offsets, place.next_offsets)


def state_in(path: Path, place: Place) -> Folded:
    """Return the fold of a full backup. Raises: CorruptError: it is none."""
    record = decode_record(place.state, str(path / PLACE))
    if not isinstance(record, Summary) or not record.state.recent:
        raise CorruptError(f"{path / PLACE} holds no state with a version; {MENDED_BY}")
    return record.state


def _blobs_of(folder: Path, link: Link, *, whole: bool) -> BackupBlobs:
    check_digest(folder, link)
    blobs = BackupBlobs(folder / link.name)
    if whole:
        blobs.check()
    return blobs


def _after(before: Reached, blobs: BackupBlobs, version: int) -> Reached:
    """Fold the records of an increment up to the decision of the version after ``version``."""
    reached, made = before, list[DecidedVersion]()
    entries = (Entry(blobs.index.position, blobs.index.position, each) for each in blobs.index.records)
    for _, view in fold_to(before.view, entries, version, blobs.where):
        older, reached = reached, reached._replace(view=view)
        if reached.state.last_version > older.state.last_version:
            made.append(reached.decided)
    listed, offsets, by_version = list[DecidedVersion](), before.source_offsets, dict[int, str]()
    for decided in blobs.versions(version):
        listed.append(decided)
        by_version[decided.version] = read_manifest(blobs, decided).source_offsets
        if isinstance(decided.origin, BatchOrigin | RestoreOrigin):
            offsets = by_version[decided.version]
    if listed != made or reached.state.last_version != version:
        raise CorruptError(
            f"{blobs.where}: its records end at version {reached.state.last_version}, not {version}, or its"
            f" blobs are of other versions; {MENDED_BY}"
        )
    followed = last_followed(reached.state)
    if followed is None or followed.origin == last_batch_within(reached.state, version):
        return reached._replace(source_offsets=offsets, next_offsets=offsets)
    next_offsets = by_version.get(followed.version, before.next_offsets)
    return reached._replace(source_offsets=offsets, next_offsets=next_offsets)


def fold_to(view: View, entries: Iterable[Entry], version: int, where: str) -> Iterator[tuple[Entry, View]]:
    """Yield the records up to the decision of a version after ``version``, each with the fold after it."""
    for entry in entries:
        view = fold_all(view, [entry], where)
        if view.state is not None and view.state.last_version > version:
            return
        yield entry, view
