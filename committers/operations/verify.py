"""The verification of a store against its log, and of both against their own checksums. It writes nothing.

It has four layers:

1. The decision log, record by record, and the store's own files: bytes that do not fit.
2. Every manifest and frame that the log still holds: digests, checksums, indexes.
3. The store's contents. Pointer, catalog and schemas are compared with the fold. Above the horizon every row
   of every version is compared exactly, and there must be no others. At the horizon a reader's value is
   compared for every key that the log still knows; if the log reaches back to version 1, there must be no
   other keys. The counts of all rows: ``verify_counts.py``.
4. Tables that only make sense together, at the visible version: due times and their queue, local states and
   their lists (I13).

A writer may run meanwhile: a version that it retires during the check is not reported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec

from tidegate.committers.apply import apply
from tidegate.committers.barrier import catalog_entry
from tidegate.committers.opening.rekeyed import is_unfinished
from tidegate.committers.operations.verify_counts import Expected, strangers
from tidegate.committers.repair.companions import parted_rows
from tidegate.committers.repair.compare_rows import Horizon, compare_version
from tidegate.committers.repair.derive import differences
from tidegate.committers.steps.decided_versions import decided_versions
from tidegate.errors import (
    ConfigError,
    CorruptError,
    SnapshotExpiredError,
    StoreNotVerifiedError,
    WalGapError,
)
from tidegate.sinks.records import CatalogEntry, Counts, Finding, Pointer
from tidegate.sinks.store import Store
from tidegate.wal.fold import View, fold_all, recent_version
from tidegate.wal.frame import Chunk
from tidegate.wal.log import Log
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import DecidedVersion, Folded, TableSchema

FINDINGS_MAX = 1_000


class Progress(NamedTuple):
    """The progress of a check: its step, and the parts done of a total."""

    step: str
    done: int
    total: int


@dataclasses.dataclass
class Report:
    """The findings of a check, and its extent.

    ``findings`` are the faults, at most 1,000. ``notes`` describe what could not be checked and why that is
    no fault. ``oldest`` and ``visible`` are the oldest and the newest version that readers may read.
    """

    findings: list[Finding] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    oldest: int = 0
    visible: int = 0
    records: int = 0
    void: int = 0
    frames: int = 0
    rows: int = 0

    def add(self, finding: Finding) -> None:
        """Keep a finding once."""
        if len(self.findings) < FINDINGS_MAX and finding not in self.findings:
            self.findings.append(finding)

    def note(self, text: str) -> None:
        """Keep a note once."""
        if text not in self.notes:
            self.notes.append(text)


def verify(log: Log, store: Store, progress: Callable[[Progress], None] = lambda _: None) -> Report:
    """Check a namespace; return the report. It writes nothing, and takes no lease.

    Raises: WalUnavailableError, StoreUnavailableError: no answer, so nothing is proven either way.
    ConfigError: the namespace does not exist, or a newer release wrote it.
    """
    report = Report()
    progress(Progress("store files", 0, 1))
    identity = None
    try:
        identity = store.identity()
        if identity is not None:
            for finding in store.self_check():
                report.add(finding)
    except CorruptError as error:
        report.add(Finding(store.where, "a store that can be read", str(error)))
    # The pointer before the log: a visible version was decided before, so a log read later has it.
    pointer = _pointer(store, report) if identity is not None else None
    state = _decision_log(log, report, progress)
    if identity is None and not report.findings:
        if state is None or state.last_version == 0:
            report.note(f"{store.where}: nothing was made here")
        else:  # a store is created before the first version is decided: this one was lost
            actual = (
                "nothing: check --store; if it is one of this namespace's, `tidegate recover` writes it again"
            )
            report.add(Finding(store.where, f"namespace {state.namespace}, the log's", actual))
    if state is None:
        return report
    if identity is not None and identity.uuid != state.namespace:
        actual = f"namespace {identity.uuid}"
        report.add(Finding(store.where, f"namespace {state.namespace}, the log's", actual))
        pointer = None
    if pointer is not None:
        report.oldest, report.visible = max(pointer.horizon, 1), pointer.visible
        _check_pointer(store, state, pointer, report)
    try:
        _Check(log, store, state, pointer, report, progress).run()
    except (StoreNotVerifiedError, ConfigError) as error:
        # Readers are refused, too. Without a finding that is a server to be compared first, or a drop.
        if not report.findings or store.identity() != identity:
            raise
        report.add(Finding(store.where, "rows that readers may read", str(error)))
    return report


def _pointer(store: Store, report: Report) -> Pointer | None:
    try:
        return store.pointer()
    except CorruptError as error:
        report.add(Finding(store.where, "a pointer that can be read", str(error)))
        return None


def _decision_log(log: Log, report: Report, progress: Callable[[Progress], None]) -> Folded | None:
    """Fold every record that can be read, checking each."""
    view = View()
    try:
        for entry in log.decisions():
            view = fold_all(view, [entry], log.where)
            report.records += 1
            if report.records % 1_000 == 0:
                progress(Progress("decision log", report.records, report.records))
    except CorruptError as error:
        report.add(Finding(f"{log.where}, decision log", "records that fit their checksums", str(error)))
    report.void = view.void
    return view.state


def _check_pointer(store: Store, state: Folded, pointer: Pointer, report: Report) -> None:
    where = f"{store.where}, pointer"
    decided = recent_version(state, pointer.visible)
    if pointer.visible > state.last_version:
        actual = f"version {pointer.visible} is visible"
        report.add(
            Finding(where, f"at most version {state.last_version}, the log's last that can be read", actual)
        )
    elif decided is not None and decided.digest != pointer.digest:
        report.add(
            Finding(
                where, f"digest {decided.digest} of version {pointer.visible}", f"digest {pointer.digest}"
            )
        )
    if pointer.filling_at:
        report.note(f"{store.where} is being filled at version {pointer.filling_at}; it shows nothing yet")
    elif pointer.horizon > pointer.visible:
        report.add(Finding(where, f"a horizon up to {pointer.visible}", f"horizon {pointer.horizon}"))


class _Check:
    """The check of versions: log, catalog and rows."""

    def __init__(
        self,
        log: Log,
        store: Store,
        state: Folded,
        pointer: Pointer | None,
        report: Report,
        progress: Callable[[Progress], None],
    ) -> None:
        self.log, self.store, self.state = log, store, state
        self.has_store, self.pointer = pointer is not None, pointer or Pointer()
        self.report, self.progress = report, progress
        self.schemas: dict[str, TableSchema] = {}
        self.counts: dict[int, Counts] = {}
        self.unread = 0

    def run(self) -> None:
        if self.has_store:
            self.schemas = self._read({}, self.store.schemas)
        try:
            versions = list(decided_versions(self.log, self.state, 1))
        except CorruptError:
            versions = list(self.state.recent)  # the damage was found before
        changes = 0
        for done, decided in enumerate(versions):
            self.progress(Progress("versions", done, len(versions)))
            manifest = self._manifest(decided)
            if manifest is not None:
                self._version(decided, manifest)
                changes += sum(ref.changes for ref in manifest.frames())
        if self.has_store:
            self._other_rows()
            self._catalog_holes()
            self._at_horizon(
                [decided for decided in versions if decided.version <= self.pointer.horizon], changes
            )
            self._companions()

    # -- one version ---------------------------------------------------------------------------

    def _manifest(self, decided: DecidedVersion) -> Manifest | None:
        where = f"{self.log.where}, version {decided.version}, manifest at {decided.manifest_address}"
        try:
            return apply.read_manifest(self.log, decided)
        except WalGapError as error:
            self._gap(decided.version, where, error)
        except CorruptError as error:
            self.report.add(
                Finding(where, f"the manifest {decided.manifest_digest} that was decided", str(error))
            )
        return None

    def _version(self, decided: DecidedVersion, manifest: Manifest) -> None:
        """Check one version. Its frames are checked even if its rows cannot be compared."""
        version, readable = decided.version, self.pointer.horizon <= decided.version <= self.pointer.visible
        if self.has_store and version > self.pointer.horizon:
            self.counts[version] = manifest.counts()
        if readable:
            self._catalog(decided, manifest)
        compared = readable and version > self.pointer.horizon
        findings: list[Finding] = []
        key_types = self._key_types(catalog_entry(decided, manifest)) if compared else {}
        if compared:
            counts = self.counts[version]
            findings += self._read([], lambda: self.store.verify(apply.stamp_of(decided), counts))
        for chunk in self._chunks(decided, manifest):
            self.report.rows += sum(len(run.keys) for run in chunk.runs)
            if compared:
                for run in chunk.runs:
                    of = version, run, key_types, manifest.table_schemas[run.table].apart
                    findings += self._read([], partial(compare_version, self.store, *of))
        if findings and self.store.pointer().horizon >= version:
            self.report.note(f"version {version} was retired during the check; its rows were not compared")
            return
        for finding in findings:
            self.report.add(finding)

    def _key_types(self, entry: CatalogEntry) -> dict[str, list[str]]:
        """Map each table to its key's types, if the store has its schema."""
        schemas = {name: self.schemas.get(table_at.schema_id) for name, table_at in entry.tables.items()}
        return {name: [column.type for column in schema.key] for name, schema in schemas.items() if schema}

    def _chunks(
        self, decided: DecidedVersion, manifest: Manifest, groups: range | None = None
    ) -> Iterator[Chunk]:
        """Yield the version's frames one by one; one that cannot be read is a finding, and is left out.

        With ``groups``, frames without any of these key groups are not read, and no frame is counted.
        """
        for work in apply.plan(manifest, decided, 1):
            for ordinal, ref in work.frames:
                if groups is not None and not any(group in groups for group in ref.groups):
                    continue
                one = msgspec.structs.replace(work, frames=((ordinal, ref),))
                where = f"{self.log.where}, version {decided.version}, frame at {ref.address}"
                try:
                    yield from apply.chunks_of(one, self.log)
                except WalGapError as error:
                    self.unread += 1
                    self._gap(decided.version, where, error)
                except CorruptError as error:
                    self.unread += 1
                    self.report.add(Finding(where, "the frame that was acked", str(error)))
                else:
                    self.report.frames += groups is None

    def _gap(self, version: int, where: str, error: WalGapError) -> None:
        readable = self.has_store and version > self.pointer.horizon
        if readable and version > self.store.pointer().horizon:
            # Retirement and repair still read it, so it must not have been trimmed.
            self.report.add(Finding(where, "to be there: the version is not retired", str(error)))
        else:
            self.report.note("versions whose frames were trimmed from the log could not be compared")

    # -- rows that no version has ------------------------------------------------------------------

    def _other_rows(self) -> None:
        """Look for rows that no manifest has. A version that was decided meanwhile is read from the log."""
        tables = {name for entry in self._read([], self.store.catalog) for name in entry.starts}
        rows = self._read([], lambda: list(self.store.row_counts({*self.state.tables, *tables})))
        state = self.state
        newest = max((row.version for row in rows if type(row.version) is int), default=0)
        horizon = self.store.pointer().horizon
        if max(newest, horizon) > state.last_version:
            state = self._decided_since(state)
        expected = Expected(self.counts, state.last_version, state.key_groups, state.first_start)
        entries = self._read([], self.store.catalog)
        for finding in strangers(self.store, rows, expected, horizon, entries):
            self.report.add(finding)

    def _decided_since(self, before: Folded) -> Folded:
        """Note the counts of later versions: each is decided before its first row is written (I5)."""
        version = before.last_version
        try:
            state = fold_all(View(), self.log.decisions(), self.log.where).state or before
            later = [one for one in decided_versions(self.log, state, version + 1) if one.version > version]
        except CorruptError:
            return before  # the damage was found before
        for decided in later:
            manifest = self._manifest(decided)
            if manifest is not None:
                self.counts[decided.version] = manifest.counts()
        return state

    # -- the catalog -----------------------------------------------------------------------------

    def _catalog(self, decided: DecidedVersion, manifest: Manifest) -> None:
        where = f"{self.store.where}, catalog, version {decided.version}"
        entries = self._read(None, lambda: self.store.catalog(decided.version, decided.version))
        if entries is None:
            return
        if not entries:
            if self.store.pointer().horizon <= decided.version:
                self.report.add(Finding(where, "an entry", "none"))
            return
        expected = catalog_entry(decided, manifest)
        for name in CatalogEntry.__struct_fields__:
            value, actual = getattr(expected, name), getattr(entries[0], name)
            if name != "published_at_us" and value != actual:
                self.report.add(Finding(f"{where}, {name}", str(value), str(actual)))
        for schema_id in sorted({table_at.schema_id for table_at in expected.tables.values()}):
            schema = self.schemas.get(schema_id)
            if schema is None or schema.schema_id != schema_id:
                actual = "none" if schema is None else f"one whose id is {schema.schema_id}"
                self.report.add(Finding(f"{self.store.where}, schemas", f"schema {schema_id}", actual))

    def _catalog_holes(self) -> None:
        """Check that the catalog has an entry for every readable version, and the fold's digest in each.

        That includes versions whose manifest was trimmed. Versions above the log's last one are not
        expected: a pointer above it, which may be any number, is a finding of its own.
        """
        entries = self._read([], self.store.catalog)
        horizon = self.store.pointer().horizon
        by_version = {entry.version: entry for entry in entries}
        for version in range(max(horizon, 1), min(self.pointer.visible, self.state.last_version) + 1):
            decided = recent_version(self.state, version)
            where = f"{self.store.where}, catalog, version {version}"
            if version not in by_version:
                self.report.add(Finding(where, "an entry", "none"))
            elif decided is not None and by_version[version].digest != decided.digest:
                actual = f"digest {by_version[version].digest}"
                self.report.add(Finding(f"{where}, digest", decided.digest, actual.removeprefix("digest ")))

    # -- a reader's values at the horizon ------------------------------------------------------------

    def _at_horizon(self, versions: list[DecidedVersion], changes: int) -> None:
        """Compare a reader's values, newest version first: the first change of a key that is met counts."""
        version = self.pointer.horizon
        if version == 0 or not versions:
            return
        entries = self._read([], lambda: self.store.catalog(version, version))
        if not entries:
            return  # found missing above, or retired meanwhile
        complete = len(versions) == version and versions[0].version == 1
        key_types = self._key_types(entries[0])
        horizon = Horizon(self.store, entries[0], self.state.key_groups, changes, key_types)
        findings: list[Finding] = []
        try:
            for groups in horizon.passes():
                self.progress(Progress("rows at the horizon", groups.start, self.state.key_groups))
                for decided in reversed(versions):
                    manifest = self._manifest(decided)
                    unread = self.unread
                    if manifest is not None:
                        for chunk in self._chunks(decided, manifest, groups):
                            findings += horizon.compare(decided.version, chunk, groups)
                    if manifest is None or self.unread > unread:
                        # Its keys are unknown, so older changes of the same keys cannot be distinguished.
                        complete = False
                        break
                if complete and not self.report.findings:
                    findings += horizon.compare_counts(groups)
        except SnapshotExpiredError:
            self.report.note(f"version {version} was retired during the check; its rows were not compared")
            return
        except CorruptError as error:
            findings.append(Finding(self.store.where, "rows that can be read", str(error)))
        if not complete:
            self.report.note("the log does not reach back to version 1: older rows were not compared")
        for finding in findings:
            self.report.add(finding)

    # -- tables that only make sense together ----------------------------------------------------------

    def _companions(self) -> None:
        """Compare the companions at the visible version, if the store has what the log has."""
        version = self.pointer.visible
        entries = self._read([], lambda: self.store.catalog(version, version))
        if self.report.findings or not entries or is_unfinished(self.state):
            return
        try:
            for finding in parted_rows(self.store, entries[0], self.state.key_groups):
                self.report.add(finding)
            for finding in differences(self.store, entries[0], self.schemas, self.state.key_groups):
                self.report.add(finding)
        except SnapshotExpiredError:
            self.report.note(
                f"version {version} was retired during the check; its companions were not compared"
            )
        except CorruptError as error:
            self.report.add(Finding(self.store.where, "due times and lists that can be read", str(error)))

    def _read(self, otherwise: object, ask: Callable[[], object]) -> Any:
        """Return the store's answer; damage is a finding."""
        try:
            return ask()
        except SnapshotExpiredError:
            return otherwise
        except CorruptError as error:
            self.report.add(Finding(self.store.where, "a store that can be read", str(error)))
            return otherwise
