"""The simulation's wrappers pass the same suites as what they wrap, when no fault is let in."""

import itertools
import uuid

import pytest

from support.faulty import Direct, FaultyLog, FaultyStore
from tidegate.sinks.memory import store as memory_store
from tidegate.testing.log.suite import LogSuite
from tidegate.testing.store.suite import ManualClock, Row, StoreSuite
from tidegate.wal import memory_log


class TestFaultyLog(LogSuite):
    keeps_blobs_in_memory = True

    @pytest.fixture(autouse=True)
    def _name(self):
        self.name = uuid.uuid4().hex
        self.namespaces = itertools.count()
        yield
        memory_log.forget(self.name)

    def make_log(self):
        return self._instance(f"n{next(self.namespaces)}")

    def reopen(self, log):
        return self._instance(log.test_namespace)

    def lose_segment(self, log, segment):
        del self._content(log).segments[segment]

    def lose_last_decision(self, log):
        self._content(log).records.pop()

    def _instance(self, namespace):
        log = FaultyLog(memory_log.MemoryLog(self.name, namespace), Direct())
        log.test_namespace = namespace
        return log

    def _content(self, log):
        return memory_log._contents[self.name, log.test_namespace]


class TestFaultyStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _name(self):
        self.name = uuid.uuid4().hex
        self.namespaces = itertools.count()
        self.clock = ManualClock()
        yield
        memory_store.forget(self.name)

    def make_store(self):
        return self._instance(f"n{next(self.namespaces)}")

    def reopen(self, store):
        return self._instance(store.test_namespace)

    def advance(self, store, seconds):
        self.clock.advance(seconds)

    def stored_rows(self, store):
        rows = memory_store._spaces[self.name, store.test_namespace].rows
        return {
            Row(table, group, key, version)
            for (table, group), of_group in rows.items()
            for key, versions in of_group.items()
            for version in versions
        }

    def lose_row(self, store, row):
        rows = memory_store._spaces[self.name, store.test_namespace].rows
        del rows[row.table, row.group][row.key][row.version]

    def lose_rows(self, store, rows):
        for row in self.stored_rows(store) & {*rows}:
            self.lose_row(store, row)

    def _instance(self, namespace):
        store = FaultyStore(memory_store.MemoryStore(self.name, namespace, self.clock), Direct())
        store.test_namespace = namespace
        return store
