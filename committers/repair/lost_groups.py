"""The rebuild of key groups whose merged rows a store on Redis lost, as far back as the log reaches.

``repair.py`` compares every version from the horizon on anyway. Below it the log may have been trimmed: a key
group whose versions it no longer holds stays as it is, and is reported. docs/decisions/0029.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from tidegate.base import failpoints
from tidegate.committers.apply import apply
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.repair.log_reach import refused_rows
from tidegate.committers.steps.decided_versions import decided_versions
from tidegate.errors import ConfigError, WalGapError
from tidegate.sinks.capabilities import Lost, SupportsRebuild
from tidegate.sinks.records import CatalogEntry, Counts
from tidegate.sinks.store import Store
from tidegate.wal.frame import Run
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import DecidedVersion

TOLD_MAX = 5
"""The number of gaps that a message lists one by one."""


class Mended(NamedTuple):
    """A version that was put back, and in how many key groups.

    ``base``: with all versions up to it, merged. Zero key groups: only its entry in the catalog.
    """

    version: int
    key_groups: int
    base: bool = False


class Gap(NamedTuple):
    """Versions that a key group lost, and the log no longer holds. ``table``: '' for all tables."""

    group: int
    table: str
    first: int
    last: int

    def __str__(self) -> str:
        of_table = f"table {self.table}" if self.table else "all tables"
        last = "" if self.first == self.last else f" to {self.last}"
        return f"key group {self.group}, {of_table}, version{'s' if last else ''} {self.first}{last}"


class _Base(NamedTuple):
    """One table of one key group whose merged rows are lost: versions ``start`` to ``upto``."""

    group: int
    table: str
    start: int
    upto: int


class Source(abc.ABC):
    """The rows of one version, outside the log. ``where`` names the place in messages."""

    where: str

    @abc.abstractmethod
    def hold(self, coordinator: Coordinator) -> contextlib.AbstractContextManager[CatalogEntry]:
        """Pin a version that is visible in the driver's store, or decided and not visible there yet.

        It gives the version's entry in that store's catalog. Raises: ConfigError: the source is of another
        namespace or history, or has no such version.
        """

    @abc.abstractmethod
    def runs(self, entry: CatalogEntry, groups: Collection[int], key_groups: int) -> Iterator[Run]:
        """Yield the rows of these key groups as they are stored, in no order, of every table in the entry."""


class Copy(NamedTuple):
    """A source whose version is pinned, and that version's entry in the catalog."""

    source: Source
    entry: CatalogEntry


def not_for(store: Store) -> ConfigError:
    """Build the error for a store that takes no rows from a source."""
    return ConfigError(f"{store.where}: repair from a copy is for stores on Redis; nothing was written")


@contextlib.contextmanager
def copy_from(coordinator: Coordinator, source: Source) -> Iterator[Copy]:
    """Pin the source's version. Raises: ConfigError: it does not fit, or the store cannot take it."""
    if not isinstance(coordinator.store, SupportsRebuild):
        raise not_for(coordinator.store)
    with source.hold(coordinator) as entry:
        yield Copy(source, entry)


def rebuild(
    coordinator: Coordinator, oldest: int, copy: Copy | None = None
) -> tuple[list[Mended], list[Gap]]:
    """Put back lost versions below ``oldest``, while the store is compared; return those, and the gaps left.

    Key groups for which the log no longer holds every version are replaced from the ``copy``, if there is
    one. Repeatable: nothing is replaced before its replacement is complete. Raises: the errors of log and
    store, except WalGapError.
    """
    store = coordinator.store
    if not isinstance(store, SupportsRebuild) or not (lost := store.lost()):
        return [], []
    work = _Rebuild(coordinator, store, lost, oldest)
    mended, gaps = work.run()
    if copy is not None and gaps:
        replaced = _replace(coordinator, store, copy, {gap.group for gap in gaps})
        gaps = [gap for gap in gaps if gap.group not in replaced]
        mended += [Mended(copy.entry.version, len(replaced), base=True)] if replaced else []
    return mended, gaps


def _replace(coordinator: Coordinator, store: SupportsRebuild, copy: Copy, groups: set[int]) -> set[int]:
    """Replace key groups by the copy's rows, as the base at its version; return the replaced ones.

    Leases on older versions are revoked first: those versions cannot be read in these key groups any more.
    """
    entry = copy.entry
    store.announce(entry.version, max_lease_s=0, max_layers=0)
    store.begin_bases(itertools.product(sorted(groups), entry.tables))
    for run in copy.source.runs(entry, groups, coordinator.folded.key_groups):
        store.add_to_bases([run])
    tables = dict.fromkeys(entry.tables, entry.version)
    return {group for group in sorted(groups) if store.put_bases(group, tables, entry.version)}


def pass_replaced(store: Store, mended: Iterable[Mended]) -> None:
    """Retire the versions below a copy that replaced key groups, which lack them. The copy's is visible."""
    newest = max((one.version for one in mended if one.base), default=0)
    if newest and newest > store.pointer().horizon:
        store.announce(newest, max_lease_s=0, max_layers=0)


def unrepaired(coordinator: Coordinator, gaps: Sequence[Gap]) -> WalGapError:
    """Build the error for the gaps that could not be put back."""
    details = "; ".join(str(gap) for gap in gaps[:TOLD_MAX])
    more = f"; and {len(gaps) - TOLD_MAX} more" if len(gaps) > TOLD_MAX else ""
    groups = len({gap.group for gap in gaps})
    return WalGapError(
        f"{coordinator.store.where}: {coordinator.log.where} no longer holds what {groups} key groups lost:"
        f" {details}{more}."
        " Their rows stay as they are, and reads of them are refused; all other rows can be read."
        " `tidegate repair --from URL` puts them back from another store of this log, `tidegate repair --from"
        " FOLDER` from an export"
    )


class _Rebuild:
    def __init__(
        self, coordinator: Coordinator, store: SupportsRebuild, lost: list[Lost], oldest: int
    ) -> None:
        self._coordinator, self._store, self._lost, self._oldest = coordinator, store, lost, oldest
        self._gaps: list[Gap] = []
        self._mended: list[Mended] = []
        first = min([oldest, *(version for of in lost for version in _versions(of))])
        self._decided = {
            decided.version: decided
            for decided in decided_versions(coordinator.log, coordinator.folded, first)
        }

    def run(self) -> tuple[list[Mended], list[Gap]]:
        everything = {of.group: self._all_tables(of) for of in self._lost if of.since == 0 and of.horizon}
        bases = [base for of_group in everything.values() for base in of_group]
        bases += [base for of in self._lost if of.group not in everything for base in self._lost_bases(of)]
        built = self._build(bases)
        for of in self._lost:
            self._put(of, built, everything.get(of.group))
        for version, groups in sorted(self._layers().items()):
            self._put_back(version, groups)
        failed = {gap.group for gap in self._gaps}
        for of in self._lost:
            if of.group in failed:
                self._store.keep_lost(of.group, self._kept_since(of))
        return self._mended, self._gaps

    # -- the bases and versions that are needed --------------------------------------------------------

    def _all_tables(self, of: Lost) -> list[_Base]:
        """List the base of every table at the horizon, which the log always reaches."""
        manifest = self._manifest(of.horizon)
        if manifest is None:
            self._gaps.append(Gap(of.group, "", 1, of.horizon))
            return []
        return [
            _Base(of.group, table, max(table_at.start, 1), of.horizon)
            for table, table_at in manifest.table_schemas.items()
        ]

    def _lost_bases(self, of: Lost) -> Iterator[_Base]:
        for table, upto in of.bases.items():
            manifest = self._manifest(upto)
            if manifest is None:
                self._gaps.append(Gap(of.group, table, 1, upto))
            else:
                table_at = manifest.table_schemas.get(table)
                yield _Base(of.group, table, max(table_at.start, 1) if table_at else upto, upto)

    def _layers(self) -> dict[int, set[int]]:
        """Map each version that is not compared everywhere to the key groups that may lack it."""
        layers: dict[int, set[int]] = defaultdict(set)
        for of in self._lost:
            versions = set(itertools.chain.from_iterable(of.layers.values()))
            if of.since:
                versions.update(range(of.since, self._oldest))
            for version in versions:
                if version < self._oldest:
                    layers[version].add(of.group)
        return layers

    def _kept_since(self, of: Lost) -> int | None:
        """Return the version from which on the group may lack some that are not listed one by one."""
        return of.since

    def _manifest(self, version: int) -> Manifest | None:
        """Read the version's manifest; None: the log no longer has it."""
        decided = self._decided.get(version)
        if decided is None:
            return None
        try:
            return apply.read_manifest(self._coordinator.log, decided)
        except WalGapError:
            return None

    # -- bases -------------------------------------------------------------------------------------------

    def _build(self, bases: Iterable[_Base]) -> set[_Base]:
        """Write the merged rows, unseen by readers; return the bases for which the log has every version."""
        left = set(bases)
        left -= self._out_of_reach(left)
        if not left:
            return left
        self._store.begin_bases([(base.group, base.table) for base in sorted(left)])
        for version in range(min(base.start for base in left), max(base.upto for base in left) + 1):
            places = {(base.group, base.table) for base in left if base.start <= version <= base.upto}
            if places and not self._add(version, places):
                left = {base for base in left if (base.group, base.table) not in places}
                self._gaps += [_gap(base) for base in sorted(bases) if (base.group, base.table) in places]
        return left

    def _out_of_reach(self, bases: set[_Base]) -> set[_Base]:
        """Find the bases of which the log lacks a version. All manifests are read before any write."""
        versions = {version for base in bases for version in range(base.start, base.upto + 1)}
        missing = {version for version in versions if self._manifest(version) is None}
        lost = {base for base in bases if any(base.start <= version <= base.upto for version in missing)}
        self._gaps += [_gap(base) for base in sorted(lost)]
        return lost

    def _add(self, version: int, places: set[tuple[int, str]]) -> bool:
        """Add the version's rows to the bases; False: the log no longer has its frames."""
        manifest, decided = self._manifest(version), self._decided[version]
        if manifest is None:
            return False
        try:
            for work in _of_groups(manifest, decided, {group for group, _ in places}):
                for chunk in apply.chunks_of(work, self._coordinator.log):
                    runs = [run for run in chunk.runs if (run.group, run.table) in places]
                    self._store.add_to_bases(runs)
        except WalGapError:
            return False
        return True

    def _put(self, of: Lost, built: set[_Base], everything: list[_Base] | None) -> None:
        """Put the group's new bases in place; if its header was lost, all of them or none."""
        mine = [base for base in built if base.group == of.group]
        failed = any(gap.group == of.group for gap in self._gaps)
        if everything is not None and (failed or len(mine) < len(everything)):
            return
        floor = of.horizon if everything is not None else 0
        if mine or floor:
            self._store.put_bases(of.group, {base.table: base.upto for base in mine}, floor)
            self._count(max([floor, *(base.upto for base in mine)]), base=True)

    def _count(self, version: int, *, base: bool) -> None:
        for index, one in enumerate(self._mended):
            if (one.version, one.base) == (version, base):
                self._mended[index] = one._replace(key_groups=one.key_groups + 1)
                return
        self._mended.append(Mended(version, 1, base))

    # -- layers ------------------------------------------------------------------------------------------

    def _put_back(self, version: int, groups: set[int]) -> None:
        """Apply and seal the version again in the key groups that may lack it."""
        manifest = self._manifest(version)
        try:
            if manifest is None:
                raise WalGapError(version)
            counts = {group: of for group, of in manifest.counts().items() if group in groups}
            put_back = put_back_in(self._coordinator, self._decided[version], manifest, counts)
        except WalGapError:
            self._gaps += [self._gap_at(of, version) for of in self._lost if of.group in groups]
        else:
            if put_back:
                self._mended.append(Mended(version, put_back))

    @staticmethod
    def _gap_at(of: Lost, version: int) -> Gap:
        tables = [table for table, versions in of.layers.items() if version in versions]
        return Gap(of.group, tables[0] if len(tables) == 1 else "", version, version)


def put_back_in(coordinator: Coordinator, decided: DecidedVersion, manifest: Manifest, counts: Counts) -> int:
    """Apply the version again in those of the key groups where it is incomplete; return how many."""
    stamp = apply.stamp_of(decided)
    # The schemas may be on another server than the rows, and be lost without a row.
    coordinator.store.begin(stamp, manifest.schemas.values(), coordinator.epoch)
    missing = coordinator.store.missing(stamp, counts)
    if not missing:
        return 0
    for work in apply.plan(manifest, decided, 1):
        apply.do(msgspec.structs.replace(work, counts=dict(missing)), coordinator.log, coordinator.store)
    failpoints.hit("repair.after_version")
    if coordinator.store.missing(stamp, missing):
        where = coordinator.store.where
        raise refused_rows(
            coordinator, f"{where}: version {decided.version} was applied again, and still is not whole"
        )
    return len(missing)


def _of_groups(manifest: Manifest, decided: DecidedVersion, groups: set[int]) -> Iterator[apply.ApplyWork]:
    """Yield the version's work in these key groups, with only the frames that have rows of them."""
    for work in apply.plan(manifest, decided, 1):
        counts = {group: of for group, of in work.counts.items() if group in groups}
        frames = tuple((ordinal, ref) for ordinal, ref in work.frames if not groups.isdisjoint(ref.groups))
        if frames:
            yield msgspec.structs.replace(work, counts=counts, frames=frames)


def _versions(of: Lost) -> Iterator[int]:
    yield from itertools.chain.from_iterable(of.layers.values())
    if of.since is not None:
        yield max(of.since, 1)
    if of.bases:
        yield 1


def _gap(base: _Base) -> Gap:
    return Gap(base.group, base.table, base.start, base.upto)
