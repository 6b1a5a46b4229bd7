"""The Cassandra store passes the suite of every store: on one node, and on three."""

import datetime
import itertools
import uuid
from typing import ClassVar

import pytest
from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from services.support.cassandra.server import KEYSPACE
from tidegate.sinks.cassandra.client.statements import within
from tidegate.sinks.cassandra.namespace import milliseconds
from tidegate.sinks.cassandra.store import CassandraStore
from tidegate.testing.store.suite import Row, StorePlace, StoreSuite

LWT = " IF EXISTS"


class CassandraSuite(StoreSuite):
    page_rows = 500
    large_value_bytes = 15 * 1024 * 1024 - 64 * 1024
    size_follows_writes = False
    lost_rows_can_be_put_back = False  # a row can only be lost by a tombstone here
    options: ClassVar = {"create": True, "replication": 1}

    @pytest.fixture(autouse=True)
    def _places(self, url):
        self.url, self.prefix = url, uuid.uuid4().hex[:8]
        self.namespaces, self.opened = itertools.count(), []
        yield
        for store in self.opened:
            if not store.test_closed:
                store.close()

    def make_store(self):
        return self._instance(f"{self.prefix}-N{next(self.namespaces)}")

    def reopen(self, store):
        return self._instance(store.test_namespace)

    def place(self, store):
        return StorePlace(self.url, store.test_namespace, self.options)

    def allow_leases(self, store, most, monkeypatch):
        monkeypatch.setattr("tidegate.sinks.cassandra.leases.LEASES_MAX", most)

    def advance(self, store, seconds):
        """The coordinators' clocks cannot be moved, but everything that was stamped by them can."""
        ask, space, back = self.ask, store._space.made.space, int(seconds * 1e3)
        (beat,) = ask(store, "SELECT heartbeat_at FROM tidegate_pointers WHERE space = %s LIMIT 1", space)
        if beat[0] is not None:
            set_beat = "UPDATE tidegate_pointers SET heartbeat_at = %s WHERE space = %s" + LWT
            ask(store, set_beat, earlier(beat[0], back), space)
        for version, published in ask(
            store, "SELECT version, published_at FROM tidegate_pointers WHERE space = %s", space
        ):
            if version is not None:
                moved = "UPDATE tidegate_pointers SET published_at = %s WHERE space = %s AND version = %s"
                ask(store, moved + LWT, earlier(published, back), space, version)
        for expires, name, version, taken in ask(
            store,
            "SELECT expires_at, lease_id, version, taken_at FROM tidegate_leases WHERE space = %s",
            space,
        ):
            of = "WHERE space = %s AND expires_at = %s AND lease_id = %s"
            delete = f"DELETE FROM tidegate_leases USING TIMESTAMP %s {of}"
            ask(store, delete, milliseconds(expires) * 1_000, space, expires, name)
            ask(
                store,
                "INSERT INTO tidegate_leases (space, expires_at, lease_id, version, taken_at)"
                " VALUES (%s, %s, %s, %s, %s) USING TIMESTAMP %s",
                space, earlier(expires, back), name, version, earlier(taken, back),
                (milliseconds(expires) - back) * 1_000,
            )  # fmt: skip

    def stored_rows(self, store):
        made = store._space.made
        tables = [table for (table,) in self.ask(store, "SELECT tbl FROM tidegate_tables WHERE space = %s",
                                                 made.space)]  # fmt: skip
        return {
            Row(table, group, key, version)
            for table in tables
            for group in range(made.identity.key_groups)
            for key, version in self.ask(
                store,
                "SELECT key, version FROM tidegate_rows WHERE space = %s AND tbl = %s AND kg = %s",
                made.space, table, group,
            )
        }  # fmt: skip

    def lose_row(self, store, row):
        of = "space = %s AND tbl = %s AND kg = %s AND key = %s AND version = %s"
        self.ask(store, f"DELETE FROM tidegate_rows WHERE {of}", store._space.made.space, *row)

    def lose_rows(self, store, rows):
        """No tombstone may hide what is written again: the table is written anew, without these rows and
        without any tombstone. Other namespaces of the keyspace lose all of theirs.
        """
        space, lost = store._space.made.space, {*rows}
        kept = [
            (space, table, group, key, version, value, written_us)
            for table, group in {(row.table, row.group) for row in self.stored_rows(store)}
            for key, version, value, written_us in self.ask(
                store,
                "SELECT key, version, value, WRITETIME(value) FROM tidegate_rows"
                " WHERE space = %s AND tbl = %s AND kg = %s",
                space, table, group,
            )
            if Row(table, group, key, version) not in lost
        ]  # fmt: skip
        self.ask(store, "TRUNCATE tidegate_rows")
        put = (
            "INSERT INTO tidegate_rows (space, tbl, kg, key, version, value) VALUES (%s, %s, %s, %s, %s, %s)"
        )
        for row in kept:
            self.ask(store, f"{put} USING TIMESTAMP %s", *row)

    def ask(self, store, cql, *values):
        statement = SimpleStatement(within(cql, KEYSPACE), consistency_level=ConsistencyLevel.QUORUM)
        return list(store._space.session.driver.execute(statement, values))

    def _instance(self, namespace):
        store = CassandraStore(self.url, namespace, **self.options)
        store.test_namespace, store.test_closed = namespace, False
        self.opened.append(store)
        return store


def earlier(moment, by_ms):
    return moment - datetime.timedelta(milliseconds=by_ms)


class TestCassandraStore(CassandraSuite):
    @pytest.fixture
    def url(self, cassandra):
        return cassandra.url

    # Ten seconds to half a minute each; `make test` runs them with Redis.

    @pytest.mark.slow
    def test_whatever_is_lost_is_put_back(self, whole):
        super().test_whatever_is_lost_is_put_back(whole)

    @pytest.mark.slow
    def test_of_an_old_log_what_it_has_is_put_back(self, trimmed):
        super().test_of_an_old_log_what_it_has_is_put_back(trimmed)

    @pytest.mark.slow
    def test_what_an_old_log_does_not_have_is_never_passed_over_in_silence(self, trimmed):
        super().test_what_an_old_log_does_not_have_is_never_passed_over_in_silence(trimmed)

    @pytest.mark.slow
    def test_a_repair_before_the_horizon_was_dropped_may_be_repeated(self, whole):
        super().test_a_repair_before_the_horizon_was_dropped_may_be_repeated(whole)

    @pytest.mark.slow
    def test_schemas_that_no_version_names_are_forgotten(self, store):
        super().test_schemas_that_no_version_names_are_forgotten(store)


@pytest.mark.slow
class TestCassandraStoreOnThreeNodes(CassandraSuite):
    options: ClassVar = {"create": True, "replication": 3}

    @pytest.fixture
    def url(self, cassandra_cluster):
        return cassandra_cluster.url
