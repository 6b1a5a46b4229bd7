"""A Redis that takes no writes serves its readers: its memory or disk is full, or replicas are missing.

With a full memory leases are still taken, for they are small and few. Otherwise reads go on without one: a
version that is retired meanwhile is refused, and never read wrongly (I8).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import time

import pytest

import tidegate
from services.support.in_loop import InLoop
from services.support.redis.query import Query, query_on
from services.support.redis.server import RedisServer
from services.support.workloads.query import MARKERS, expected
from support.cli import run
from support.driver_process import MARKER
from support.wait import wait_until
from tidegate.errors import ConfigError, SnapshotExpiredError, StoreUnavailableError
from tidegate.sinks.aliases import Target
from tidegate.sinks.rules.leases import Lease
from tidegate.sinks.store import Store

LEASE_S = 0.9


def memory_full(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "maxmemory", int(0.9 * server.info("memory")["used_memory"]))


def memory_full_and_functions_unknown(server: RedisServer) -> None:
    """As after an upgrade of the readers: the library of their release is not there, and does not fit."""
    server.ask("FUNCTION", "FLUSH")
    server.fill_memory()


def disk_full(server: RedisServer) -> None:
    (server.data_folder / "dump.rdb").mkdir()  # no snapshot can take this name
    server.ask("BGSAVE")
    wait_until(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err", "the snapshot fails")


def replicas_missing(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "min-replicas-to-write", 1)


def room(server: RedisServer) -> None:
    server.ask("CONFIG", "SET", "maxmemory", 0)
    server.ask("CONFIG", "SET", "min-replicas-to-write", 0)
    server.ask("CONFIG", "SET", "save", "")


STATES = (memory_full, memory_full_and_functions_unknown, disk_full, replicas_missing)


@pytest.fixture
def server(private_redis):
    return private_redis(settings={"maxmemory-policy": "noeviction", "save": "3600 100000"})


def name_alias(store: Store, alias: str) -> None:
    identity = store.identity()
    assert identity is not None
    store.aliases().set(alias, Target(identity.name, identity.uuid))


def read_all(url: str, query: Query, alias: str, visible: int) -> None:
    """Do every call of a reader, in a thread and in a loop, by the namespace and by the alias."""
    for connect, name in itertools.product((tidegate.connect, InLoop), (query.namespace, alias)):
        with connect(url, name, {"timeout_s": 5.0}) as gate:
            rows = expected(visible)[MARKER]
            assert gate.version() == visible
            assert gate.table(MARKER).get(MARKERS[0]) == rows[MARKERS[0]]
            assert gate.table(MARKER).get_many(MARKERS) == rows
            assert dict(gate.table(MARKER).scan()) == rows
            with gate.snapshot() as newest, gate.snapshot(version=visible - 1) as older:
                assert dict(newest.table(MARKER).scan()) == rows
                assert older.table(MARKER).get_many(MARKERS) == expected(visible - 1)[MARKER]
            assert sum(1 for _ in gate.diff(visible - 1, visible)) > 0
            assert gate.wait_for(version=visible, timeout=5.0) == visible
            assert gate.history()


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_every_call_of_a_reader_goes_on(state, server, tmp_path):
    with query_on(server.url, tmp_path) as query:
        driver = query.run(4)
        name_alias(driver.store, "shown")
        query.retire(driver)
        state(server)
        if state is not replicas_missing:  # a writer tries for longer: one may come back
            with pytest.raises((StoreUnavailableError, ConfigError), match=r"maxmemory|disk"):
                query.commit(query.open(apply_deadline_s=0.2), 4)
        read_all(server.url, query, "shown", 4)
        room(server)
        query.run(6)
        query.check(6)
        read_all(server.url, query, "shown", 6)


def test_no_second_without_an_answer(server, tmp_path, capsys):
    """A reader that scans all along has no pause while the memory becomes full and while room is made."""
    longest = {}
    with query_on(server.url, tmp_path) as query:
        query.run(3)
        with tidegate.connect(server.url, query.namespace, {"timeout_s": 5.0}) as gate:
            for name, change in (("before", room), ("full", memory_full), ("after", room)):
                change(server)
                longest[name] = 0.0
                for _ in range(50):
                    began = time.monotonic()
                    with gate.snapshot() as snapshot:
                        assert dict(snapshot.table(MARKER).scan()) == expected(3)[MARKER]
                    longest[name] = max(longest[name], time.monotonic() - began)
    with capsys.disabled():
        print(f"\nscans in a snapshot on a full Redis: 0 of 50 refused; the longest, in s: {longest}")
    assert longest["full"] < 2.0


def test_leases_are_taken_and_renewed_while_the_memory_is_full(server, tmp_path):
    with query_on(server.url, tmp_path) as query:
        driver = query.run(4)
        memory_full(server)
        with (
            tidegate.connect(server.url, query.namespace, query.options) as gate,
            gate.snapshot(version=2, lease_s=LEASE_S) as snapshot,
        ):
            (held,) = driver.store.leases()
            wait_until(lambda: driver.store.leases()[0].age_s > LEASE_S, "the lease is renewed")
            assert driver.store.leases()[0].lease_id == held.lease_id
            assert driver.store.announce(4) == 2
            assert snapshot.table(MARKER).get_many(MARKERS) == expected(2)[MARKER]
        assert driver.store.leases() == []


def test_a_read_without_a_lease_ends_when_its_version_is_retired(server, tmp_path, caplog):
    with query_on(server.url, tmp_path) as query:
        driver = query.run(6)
        replicas_missing(server)
        with (
            caplog.at_level(logging.WARNING, "tidegate"),
            tidegate.connect(server.url, query.namespace, query.options) as gate,
            contextlib.closing(gate.snapshot(version=2)) as snapshot,
        ):
            assert snapshot.table(MARKER).get_many(MARKERS) == expected(2)[MARKER]
            assert caplog.text.count("is read without leases") == 1
            room(server)
            assert driver.store.leases() == []
            query.retire(driver)
            with pytest.raises(SnapshotExpiredError):
                dict(snapshot.table(MARKER).scan())


def test_a_read_without_a_lease_takes_one_when_it_may(server, tmp_path):
    with query_on(server.url, tmp_path) as query:
        driver = query.run(4)
        replicas_missing(server)
        with (
            tidegate.connect(server.url, query.namespace, query.options) as gate,
            gate.snapshot(version=4, lease_s=LEASE_S) as snapshot,
        ):
            assert driver.store.leases() == []
            room(server)
            wait_until(driver.store.leases, "the renewal takes the lease")
            assert snapshot.table(MARKER).get_many(MARKERS) == expected(4)[MARKER]


def options_of(query: Query) -> list[str]:
    return [f"--store={query.url}", f"--namespace={query.namespace}"]


def test_vacuum_status_and_doctor_name_what_takes_the_memory(server, tmp_path):
    """A vacuum that frees nothing in a full store does not end as if all were well."""
    with query_on(server.url, tmp_path) as query:
        driver = query.run(6)
        driver.store.lease(Lease("slow-reader", 2), 600.0)
        query.retire(driver)
        driver.store.vacuum()
        server.ask("SET", "foreign", "x" * 100_000)
        assert run("vacuum", *options_of(query)).exit_code == 0
        server.ask("CONFIG", "SET", "maxmemory", 1)
        vacuumed = run("vacuum", *options_of(query))
        assert vacuumed.exit_code == StoreUnavailableError.exit_code
        assert "there is nothing to drop" in vacuumed.stderr
        would = json.loads(run("vacuum", "--dry-run", "--json", *options_of(query)).stdout)
        parts = {part["contents"]: part for part in would["usage"]}
        (held,) = (part for contents, part in parts.items() if "slow-reader" in contents)
        assert held["rows"] > 0
        assert "close these snapshots" in held["way"]
        assert parts["changes of newer versions"]["rows"] > 0
        assert parts["rows of the oldest readable version"]["bytes"] > 0
        (rest,) = (part for contents, part in parts.items() if "other keys" in contents)
        assert "1 other keys" in rest["contents"]
        assert rest["bytes"] >= 100_000
        for command in ("status", "doctor"):
            output = run(command, *options_of(query)).output
            assert "takes no writes now, and readers continue" in output
            assert "its memory is full" in output
        driver.store.release("slow-reader")
        query.retire(driver)
        assert driver.store.pointer().horizon == 4
        assert run("drop", "--yes", "--force", *options_of(query), f"--wal={query.wal}").exit_code == 0
        assert not [key for key in server.ask("KEYS", "*") if query.namespace in key]


@pytest.mark.parametrize("state", [disk_full, replicas_missing], ids=lambda state: state.__name__)
def test_doctor_names_why_no_write_is_taken(state, server, tmp_path):
    with query_on(server.url, tmp_path) as query:
        query.run(2)
        assert "store: writes\tpass" in run("doctor", *options_of(query)).output
        state(server)
        words = {disk_full: "check its disk", replicas_missing: "min-replicas-to-write"}[state]
        assert words in run("doctor", *options_of(query)).output
        room(server)


def test_a_full_cluster_and_a_full_primary_of_sentinels(redis_cluster, redis_sentinel, tmp_path):
    for number, servers in enumerate((redis_cluster, redis_sentinel)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with query_on(servers.url, folder) as query:
            name_alias(query.run(3).store, f"shown{number}")
            primaries = servers.primaries() if number == 0 else [servers.primary]
            for primary in primaries:
                memory_full(primary)
            try:
                read_all(servers.url, query, f"shown{number}", 3)
            finally:
                for primary in primaries:
                    primary.ask("CONFIG", "SET", "maxmemory", 0)
