"""A namespace with the folder of its backups, and the rows of both."""

from __future__ import annotations

from typing import Any

import tidegate
from support.places import new_place
from tidegate.base.clock import Clock
from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.transfer.backup.backup import backup
from tidegate.committers.transfer.backup.contents import contents_of, reached_at, version_in
from tidegate.committers.transfer.backup.restore_from import plan_restore, restore_from
from tidegate.options import Endpoints, Options
from tidegate.sinks.open_store import open_store
from tidegate.sinks.rules.layout import payloads
from tidegate.testing.example import Example
from tidegate.wal.open_log import open_log

GROUPS = 4


class Place:
    """A namespace and the folder of its backups."""

    def __init__(self, wal: Any, store: Any, folder: Any, **options: Any) -> None:
        self.wal, self.store, self.folder = wal, store, folder
        self.options = Options(key_groups=GROUPS, **{"keep_versions": 2, **options})
        self.again()

    @property
    def driver(self) -> Any:
        return self.example.driver

    def backup(self, **how: Any) -> Any:
        driver = self.driver
        return backup(driver.log, driver.store, driver.store.identity(), self.folder, **how)

    def again(self) -> Any:
        """Open the namespace as the query's next driver does."""
        self.example = Example(self.wal, self.store, options=self.options)
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
        for group, rows in store.scan_groups_stored(table, range(key_groups), visible, at.start)
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
            for group, rows in contents.rows.scan_groups_stored(table, range(state.key_groups), version)
            for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
        }
