"""Every store passes the shipped suite."""

import contextlib
import itertools
import sqlite3
import uuid

import pytest

from tidegate.base.names import escape
from tidegate.sinks.memory.store import MemoryStore, _spaces, forget
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.store.suite import ManualClock, Row, StorePlace, StoreSuite


class TestMemoryStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _name(self):
        self.name = uuid.uuid4().hex
        self.namespaces = itertools.count()
        self.clock = ManualClock()
        yield
        forget(self.name)

    def make_store(self):
        return self._instance(f"n{next(self.namespaces)}")

    def reopen(self, store):
        return self._instance(store.test_namespace)

    def advance(self, store, seconds):
        self.clock.advance(seconds)

    def stored_rows(self, store):
        rows = _spaces[self.name, store.test_namespace].rows
        return {
            Row(table, group, key, version)
            for (table, group), of_group in rows.items()
            for key, versions in of_group.items()
            for version in versions
        }

    def lose_row(self, store, row):
        del _spaces[self.name, store.test_namespace].rows[row.table, row.group][row.key][row.version]

    def lose_rows(self, store, rows):
        for row in self.stored_rows(store) & {*rows}:
            self.lose_row(store, row)

    def _instance(self, namespace):
        store = MemoryStore(self.name, namespace, self.clock)
        store.test_namespace = namespace
        return store


class TestSqliteStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path):
        self.root = tmp_path / "store"
        self.namespaces = itertools.count()
        self.clock = ManualClock()
        self.opened = []
        yield
        for store in self.opened:
            store.close()

    def make_store(self):
        return self._instance(f"N{next(self.namespaces)}")

    def reopen(self, store):
        return self._instance(store.test_namespace)

    def place(self, store):
        return StorePlace(
            self.root.as_uri().replace("file:", "sqlite:"), store.test_namespace, {"timeout_s": 20}
        )

    def advance(self, store, seconds):
        self.clock.advance(seconds)

    def allow_leases(self, store, most, monkeypatch):
        monkeypatch.setattr("tidegate.sinks.sqlite.leases.LEASES_MAX", most)

    def stored_rows(self, store):
        found = set()
        for path in (self.root / escape(store.test_namespace)).glob("shard-*.sqlite"):
            connection = sqlite3.connect(path)
            for table in ("t", "u"):
                if connection.execute(
                    "SELECT 1 FROM sqlite_master WHERE name = ?", (f"t_{table}",)
                ).fetchone():
                    rows = connection.execute(f"SELECT kg, key, version FROM t_{table}")
                    found |= {Row(table, *row) for row in rows}
            connection.close()
        return found

    def lose_row(self, store, row):
        lost = 0
        for path in (self.root / escape(store.test_namespace)).glob("shard-*.sqlite"):
            connection = sqlite3.connect(path)
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 't_t'").fetchone():
                gone = connection.execute(
                    "DELETE FROM t_t WHERE kg = ? AND key = ? AND version = ?",
                    (row.group, row.key, row.version),
                )
                lost += gone.rowcount
                connection.commit()
            connection.close()
        assert lost == 1

    def lose_rows(self, store, rows):
        for path in (self.root / escape(store.test_namespace)).glob("shard-*.sqlite"):
            with contextlib.closing(sqlite3.connect(path)) as connection, connection:
                found = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 't!_%' ESCAPE '!'")
                tables = {name for (name,) in found}
                for table in tables:
                    some = [row[1:] for row in rows if f"t_{row.table}" == table]
                    delete = f"DELETE FROM {table} WHERE kg = ? AND key = ? AND version = ?"
                    connection.executemany(delete, some)

    def _instance(self, namespace):
        store = SqliteStore(str(self.root), namespace, self.clock, timeout_s=20)
        store.test_namespace = namespace
        self.opened.append(store)
        return store
