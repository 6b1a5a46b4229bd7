"""A namespace with the folder of its backups, and the rows of both."""

from __future__ import annotations

from typing import Any

import tidegate
from support.places import new_place
from tidegate.base.clock import Clock
from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.exports.export import export
from tidegate.committers.exports.import_rows import import_rows, read_whole
from tidegate.committers.operations import restore as restoring
from tidegate.committers.operations.adopt import adopt
from tidegate.committers.operations.restore_plan import plan_restore as plan_older
from tidegate.committers.rename_column import rename_column
from tidegate.committers.transfer.backup.backup import backup
from tidegate.committers.transfer.backup.chain import FULL, Index, read_sealed, require_chain
from tidegate.committers.transfer.backup.contents import contents_of, reached_at, version_in
from tidegate.committers.transfer.backup.restore_from import plan_restore, restore_from
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.layout import payloads
from tidegate.testing.example import LINEAGE, SCHEMAS, Example, TypedBarrier
from tidegate.wal.open_log import open_log
from tidegate.wal.record import LoadOrigin, Summary

GROUPS = 4


class Place:
    """A namespace and the folder of its backups."""

    def __init__(self, wal: Any, store: Any, folder: Any, **options: Any) -> None:
        self.wal, self.store, self.folder = wal, store, folder
        self.options = Options(key_groups=GROUPS, **{"keep_versions": 2, **options})
        self.lineage, self.schemas = LINEAGE, dict(SCHEMAS)
        self.again()

    @property
    def driver(self) -> Any:
        return self.example.driver

    def backup(self, **how: Any) -> Any:
        return self.backup_with(self.driver, **how)

    def backup_with(self, driver: Any, **how: Any) -> Any:
        """Back up as ``backup``, in the place of a coordinator that was opened besides the query's driver."""
        return backup(driver.log, driver.store, driver.store.identity(), self.folder, **how)

    def versions_in_backup(self) -> Any:
        """Every version at which it can be restored."""
        chain = require_chain(self.folder)
        full = [link.version for link in chain.links if link.kind == FULL]
        increments = [
            number
            for link in chain.links
            if link.kind != FULL
            for number in range(link.after + 1, link.version + 1)
        ]
        return sorted({*full, *increments})

    def index(self, path: Any) -> Any:
        """Read the description of an increment."""
        return read_sealed(path, Index)

    def summarise(self) -> None:
        """Append a Summary, as a driver does before the log is cut."""
        decisions = self.driver.decisions
        decisions.append(Summary(**decisions.header(), state=decisions.folded))

    def again(self) -> Any:
        """Open the namespace as the next driver of the query that it follows does."""
        self.example = Example(self.wal, self.store, lineage=self.lineage, options=self.options)
        self.example.schemas = self.schemas
        return self.example

    def lose_store(self) -> Any:
        """Remove every row, as FLUSHALL or rm -r do."""
        self.driver.store.drop()
        self.example.close()

    def lose_log(self) -> Any:
        """Remove every record and blob."""
        self.driver.log.drop()

    def trim(self, up_to: Any) -> Any:
        """Drop the blobs of versions up to this one from the log, and keep those of later ones."""
        driver = self.driver
        needed = set()
        for decided in driver.folded.recent:
            if decided.version > up_to:
                frames = read_manifest(driver.log, decided).frames()
                needed |= {decided.manifest_address, *(frame.address for frame in frames)}
        driver.log.trim_blobs(needed, Clock().now_us() + 10**9)

    def unopened(self) -> Any:
        """Make a coordinator as a command does."""
        where = Endpoints("flights", self.wal, self.store)
        options = Options(keep_versions=self.options.keep_versions)
        return Coordinator(where, open_log(self.wal, "flights"), open_store(self.store, "flights"), options)

    def restore(self, to: Any = None) -> Any:
        """Restore as the command does; return the plan."""
        driver = self.unopened()
        version = version_in(self.folder, to)
        plan = plan_restore(driver, reached_at(self.folder, version), self.folder, is_newest=to is None)
        with contents_of(self.folder, version) as contents:
            restore_from(driver, contents, plan)
        return plan

    def write(self, number: Any) -> Any:
        """Write a batch with upserts, deletes, and now and then a replaced or dropped table."""
        rows: dict[str, Any] = {
            f"N{key}": {"carrier": "UA", "flights": number} for key in range(number % 7 + 1)
        }
        rows |= {f"M{number}": {"carrier": "M", "flights": number}, f"M{number - 1}": None}
        if number % 5 == 4:
            return self.example.write({"aircraft": rows}, drops=frozenset({"airports"}))
        airport = {f"A{number}": {"departures": number, "delay": 1.0}}
        starts = frozenset({"airports"}) if number % 5 == 2 else frozenset[str]()
        ends = f'[{{"orders":{{"0":{number}}}}}]'
        return self.example.write({"aircraft": rows, "airports": airport}, starts, ends)

    def load(self, token: Any, rows: Any, **how: Any) -> Any:
        """Write a load, once per token; ``starts`` are tables that it empties first, ``drops`` it drops."""
        example = self.example
        encoded = {
            name: {example._key(name, key): example._value(name, value) for key, value in of.items()}
            for name, of in rows.items()
        }
        barrier = TypedBarrier(
            self.driver.log, encoded, LoadOrigin(token), GROUPS, typed=example.schemas, **how
        )
        return commit(self.driver, barrier).version

    def export(self, folder: Any) -> Any:
        """Export the visible version."""
        store = self.driver.store
        return export(store, store.identity(), store.pointer().visible, folder)

    def imported(self, folder: Any, token: Any) -> Any:
        """Import an export, as the command does."""
        driver = self.unopened()
        done = import_rows(driver, folder, read_whole(folder)[0], token)
        self.again()
        return done.version

    def restore_older(self, version: Any, *, reprocess: bool = False) -> Any:
        """Restore an older version, as `tidegate restore` does."""
        driver = self.unopened()
        done = restoring.restore(driver, plan_older(driver, version, reprocess=reprocess))
        self.again()
        return done.visible

    def rename(self, table: Any, old: Any, new: Any) -> Any:
        """Rename a column, as the command does."""
        done = rename_column(self.unopened(), table, old, new)
        self.again()
        return done.version

    def adopt(self, lineage: Any) -> Any:
        """Let another checkpoint take over, as the command does."""
        adopt(self.unopened(), lineage)
        self.lineage = lineage
        return self.again()

    def rows(self, version: Any = None) -> Any:
        with tidegate.connect(self.store, namespace="flights") as gate, gate.snapshot(version) as snapshot:
            return {table: dict(snapshot.table(table).scan()) for table in snapshot.tables()}


def place_in(tmp_path: Any, kind: Any, **options: Any) -> Any:
    name = new_place()
    if kind == "memory":
        return Place(f"memory://{name}", f"memory://{name}", tmp_path / "backup", **options)
    return Place(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", tmp_path / "backup", **options)


def stored(store: Any, key_groups: Any = GROUPS) -> Any:
    """The live rows of the visible version as a store has them."""
    visible = store.pointer().visible
    (entry,) = store.catalog(visible, visible)
    return {
        (table, group, key): value
        for table, at in entry.tables.items()
        for group, rows in store.scan_groups_stored(ReadAt(table, visible, at.start), range(key_groups))
        for key, value, live in zip(
            rows["key"].to_pylist(),
            rows["value"].to_pylist(),
            payloads(rows["value"], entry.decided_at_us).to_pylist(),
            strict=True,
        )
        if live is not None
    }


def backed_up(folder: Any, version: Any) -> Any:
    """The rows of the backup at a version, row by row as ``stored``."""
    with contents_of(folder, version) as contents:
        state = contents.reached.state
        return {
            (table, group, key): value
            for table in state.tables
            for group, rows in contents.rows.scan_groups_stored(
                ReadAt(table, version), range(state.key_groups)
            )
            for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
        }
