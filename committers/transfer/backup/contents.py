"""The contents of a backup at one version: the fold there, the catalog's entry, and every stored row."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tidegate.committers.apply.apply import read_manifest
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
from tidegate.committers.transfer.export_format import (
    Manifest,
    batches_of,
    check_files,
    place_of,
)
from tidegate.committers.transfer.export_format import (
    read_manifest as read_export,
)
from tidegate.errors import ConfigError, CorruptError
from tidegate.wal.fold import Entry, View, fold_all
from tidegate.wal.record import BatchOrigin, DecidedVersion, Folded, RestoreOrigin, Summary, decode_record


class Reached(NamedTuple):
    """A version that a chain reaches. ``view`` is the fold right after its decision."""

    view: View
    source_offsets: str
    """The source offsets of the last batch that the version contains; '': unknown, or there is none."""

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
def contents_of(folder: Path, version: int) -> Iterator[Contents]:
    """Give the backup's contents at a version. Every file that is read is compared with its checksum first.

    Raises: ConfigError: the chain does not reach the version, or the temporary folder has no room.
    CorruptError: a file is missing or damaged.
    """
    full, *increments = _links_to(folder, require_chain(folder), version)
    with contextlib.closing(LogState(str(folder))) as rows:
        place, export = _read_full(folder, full)
        for name, table in export.tables.items():
            rows.put(name, batches_of(folder / full.name, name, table, export.key_groups))
            rows.schemas[table.table_schema.schema_id] = table.table_schema
        reached = _reached_by_full(folder, full, place)
        rows.last, rows.entry = reached.decided, place.entry
        for link in increments:
            reached = _read_increment(folder, link, min(link.version, version), reached, rows)
        yield Contents(reached, rows)


def reached_at(folder: Path, version: int) -> Reached:
    """Return a version of a backup, without its rows. Raises: as ``contents_of``."""
    return reached_by(folder, _links_to(folder, require_chain(folder), version), version)


def reached_by(folder: Path, links: Sequence[Link], version: int) -> Reached:
    """Return a version at which a full backup and its increments end, or which the last one contains."""
    reached = _reached_by_full(folder, links[0])
    for link in links[1:]:
        check_digest(folder, link)
        reached = _after(reached, BackupBlobs(folder / link.name), min(link.version, version))
    return reached


def check(folder: Path) -> Chain:
    """Read every byte of a backup; return its chain.

    Raises: ConfigError: there is no backup. CorruptError: a file is missing or damaged, or has other rows.
    """
    chain = require_chain(folder)
    for link in chain.links:
        check_link(folder, link)
    return chain


def check_link(folder: Path, link: Link, path: Path | None = None) -> None:
    """Read every byte of a link, which may still have another path.

    Raises: CorruptError: a file is missing or damaged, or has other rows.
    """
    from pyarrow import parquet

    path = path or folder / link.name
    if path == folder / link.name:
        check_digest(folder, link)
    if link.kind == FULL:
        export, _ = read_export(path)
        check_files(path, export)
        rows = 0
        for name, table in export.tables.items():
            for number, file in enumerate(table.files):
                part = place_of(path, name, number)
                count = parquet.read_metadata(part).num_rows
                if count != file.rows:
                    raise CorruptError(
                        f"{part} has {count} rows, the manifest lists {file.rows}; {MENDED_BY}"
                    )
                rows += count
        state = _state_in(path, read_sealed(path / PLACE, Place))
        if state.last_version != link.version:
            raise CorruptError(f"{path / PLACE} is of version {state.last_version}; {MENDED_BY}")
    else:
        blobs = BackupBlobs(path)
        blobs.check()
        rows = _changes(blobs, link.version)
    if rows != link.rows:
        raise CorruptError(f"{path} has {rows} rows, the chain lists {link.rows}; {MENDED_BY}")


def _changes(blobs: BackupBlobs, last: int) -> int:
    return sum(
        frame.changes for decided in blobs.versions(last) for frame in read_manifest(blobs, decided).frames()
    )


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


def _read_full(folder: Path, link: Link) -> tuple[Place, Manifest]:
    check_digest(folder, link)
    path = folder / link.name
    export, _ = read_export(path)
    check_files(path, export)
    return read_sealed(path / PLACE, Place), export


def _reached_by_full(folder: Path, link: Link, place: Place | None = None) -> Reached:
    if place is None:
        check_digest(folder, link)
        place = read_sealed(folder / link.name / PLACE, Place)
    state = _state_in(folder / link.name, place)
    return Reached(View(state, place.position), place.source_offsets)


def _state_in(path: Path, place: Place) -> Folded:
    record = decode_record(place.state, str(path / PLACE))
    if not isinstance(record, Summary) or not record.state.recent:
        raise CorruptError(f"{path / PLACE} holds no state with a version; {MENDED_BY}")
    return record.state


def _read_increment(folder: Path, link: Link, version: int, before: Reached, rows: LogState) -> Reached:
    """Add the changes of an increment up to a version to the rows; return the version."""
    check_digest(folder, link)
    blobs = BackupBlobs(folder / link.name)
    blobs.check()
    reached = _after(before, blobs, version)
    rows.read(blobs, blobs.versions(version))
    return reached


def _after(before: Reached, blobs: BackupBlobs, version: int) -> Reached:
    """Fold the records of an increment up to the decision of a version."""
    view, offsets = before.view, before.source_offsets
    for content in blobs.index.records:
        if view.state is not None and view.state.last_version >= version:
            break
        view = fold_all(view, [Entry(view.position, view.position, content)], blobs.where)
    reached = Reached(view, offsets)
    decided = None
    for decided in blobs.versions(version):
        offsets = offsets_after(offsets, decided, read_manifest(blobs, decided).source_offsets)
    if decided is None or decided != reached.decided or decided.version != version:
        raise CorruptError(
            f"{blobs.where}: its records end at version {reached.state.last_version}, not {version};"
            f" {MENDED_BY}"
        )
    return reached._replace(source_offsets=offsets)


def offsets_after(before: str, decided: DecidedVersion, own: str) -> str:
    """Return the source offsets of the last batch that a version contains, given those of the one before."""
    return own if isinstance(decided.origin, BatchOrigin | RestoreOrigin) else before
