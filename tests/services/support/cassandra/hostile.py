"""What roles of one keyspace on Cassandra try against another keyspace, retirement and the cluster."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from cassandra import InvalidRequest, Unauthorized
from cassandra.concurrent import execute_concurrent_with_args

from services.support.hostile import REFUSED, Attack
from tidegate.errors import SnapshotExpiredError, StoreUnavailableError
from tidegate.options import LEASES_MAX
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.leases import Lease

ANOTHER, OWN, RETIREMENT, SERVER = "another keyspace", "its own keyspace", "its retirement", "the cluster"
VIEWER, READER, WRITER = "a reader without leases", "a reader with leases", "a writer"
TABLES = ("namespaces", "pointers", "schemas", "leases", "rows")


class World:
    """``session`` has the attacker's login, for the keyspace ``own``; ``store`` is the writer's there."""

    def __init__(self, session: Any, own: str, victim: str, role: str, store: Any, space: Any) -> None:
        self.session, self.own, self.victim, self.role = session, own, victim, role
        self.store, self.space = store, space

    def ask(self, cql: str, *values: object) -> Any:
        names = {"own": self.own, "victim": self.victim, "role": self.role, "any": uuid.uuid4()}
        return self.session.execute(cql.format(**names), values or None)


def statements(*lines: str) -> Callable[[World], None]:
    """Every one of these is refused."""

    def run(world: World) -> None:
        for line in lines:
            with pytest.raises(
                (Unauthorized, InvalidRequest),
                match=r"(?i)permission|not authorized|superuser|privileges|not allowed|disabled|not granted",
            ):
                world.ask(line)
        raise Unauthorized

    return run


def on_each_table(
    *lines: str, keyspace: str = "{victim}", tables: tuple[str, ...] = TABLES
) -> Callable[[World], None]:
    return statements(
        *(line.replace("ITS", f"{keyspace}.tidegate_{name}") for line in lines for name in tables)
    )


INSERTS = (
    "INSERT INTO {victim}.tidegate_leases (space, expires_at, lease_id) VALUES ({any}, 1, 'x')",
    "UPDATE {victim}.tidegate_pointers SET visible = 9 WHERE space = {any}",
    "DELETE FROM {victim}.tidegate_pointers WHERE space = {any}",
)


def lease_row(
    world: World, lease_id: str, version: int | None, *, until_s: float = 60.0, taken_ms: int | None = None
) -> None:
    """A lease, past tidegate."""
    now_ms = int(time.time() * 1e3)
    world.ask(
        "INSERT INTO {own}.tidegate_leases (space, expires_at, lease_id, version, taken_at)"
        " VALUES (%s, %s, %s, %s, %s)",
        world.space, now_ms + int(until_s * 1e3), lease_id, version, now_ms if taken_ms is None else taken_ms,
    )  # fmt: skip


def retires(world: World, upto: int = 3, **limits: Any) -> None:
    assert world.store.announce(upto, **limits) == upto


def junk_leases(world: World) -> None:
    lease_row(world, "no-version", None)
    lease_row(world, "x" * 100, 1)
    lease_row(world, "a b", 1)
    lease_row(world, "endless", 1, until_s=10**9)
    retires(world)
    assert world.store.leases() == []
    left = world.ask("SELECT lease_id FROM {own}.tidegate_leases WHERE space = %s", world.space)
    assert [row.lease_id for row in left] == ["endless"]  # beyond any lease's end: it is not even read


def times_beyond_any_calendar(world: World) -> None:
    lease_row(world, "far", 1, taken_ms=2**62)
    retires(world, max_lease_s=600)


def many_leases(world: World) -> None:
    now_ms = int(time.time() * 1e3)
    insert = world.session.prepare(
        f"INSERT INTO {world.own}.tidegate_leases (space, expires_at, lease_id, version, taken_at)"
        " VALUES (?, ?, ?, ?, ?)"
    )
    rows = [(world.space, now_ms + 60_000, f"l{at}", 1, now_ms) for at in range(LEASES_MAX + 1)]
    execute_concurrent_with_args(world.session, insert, rows, concurrency=16)
    with pytest.raises(StoreUnavailableError):
        world.store.lease(Lease("refused", 3), 60)
    retires(world)
    world.store.lease(Lease("taken", 3), 60)  # retirement has made room


def leases_again_and_again(world: World) -> None:
    count, deadline = 0, time.monotonic() + 60
    while world.store.announce(2, max_lease_s=0.5, keep_versions=1) < 2:
        assert time.monotonic() < deadline, "held for ever"
        lease_row(world, f"again-{count}", 1)
        count += 1


def revokes_another(world: World) -> None:
    world.store.lease(Lease("victim", 1), 60)
    world.ask("DELETE FROM {own}.tidegate_leases WHERE space = %s", world.space)
    (left,) = [[one.lease_id for one in world.store.leases()]]
    assert left in ([], ["victim"])  # the row's timestamp is its end: a plain delete comes before it
    if not left:
        assert world.store.announce(2) == 2
        with pytest.raises(SnapshotExpiredError):
            world.store.get_many(ReadAt("t", 1), [b"k"])


def of(roles: tuple[str, ...], name: str, where: str, ends: str, run: Any) -> list[Attack]:
    return [Attack(name, role, where, ends, run) for role in roles]


ALL = (VIEWER, READER, WRITER)
ATTACKS = [
    *of(
        ALL,
        "read any of its tables",
        ANOTHER,
        REFUSED,
        on_each_table("SELECT * FROM ITS LIMIT 1", "SELECT count(*) FROM ITS"),
    ),
    *of(ALL, "write its leases, pointers and rows", ANOTHER, REFUSED, statements(*INSERTS)),
    *of(
        ALL,
        "write them in one batch with its own",
        ANOTHER,
        REFUSED,
        statements(
            "BEGIN BATCH DELETE FROM {own}.tidegate_leases WHERE space = {any};"
            " DELETE FROM {victim}.tidegate_leases WHERE space = {any};"
            " APPLY BATCH"
        ),
    ),
    *of(
        ALL,
        "empty, change or drop its tables",
        ANOTHER,
        REFUSED,
        on_each_table("TRUNCATE ITS", "DROP TABLE ITS", "ALTER TABLE ITS WITH gc_grace_seconds = 0"),
    ),
    *of(
        ALL,
        "drop or change the keyspace",
        ANOTHER,
        REFUSED,
        statements("DROP KEYSPACE {victim}", "ALTER KEYSPACE {victim} WITH durable_writes = false"),
    ),
    *of(
        ALL,
        "grant itself rights on it",
        ANOTHER,
        REFUSED,
        statements(
            "GRANT ALL ON KEYSPACE {victim} TO {role}",
            "GRANT SELECT ON ALL KEYSPACES TO {role}",
            "LIST ALL PERMISSIONS OF cassandra",
        ),
    ),
    Attack(
        "write anything",
        VIEWER,
        OWN,
        REFUSED,
        statements(*(line.replace("victim", "own") for line in INSERTS)),
    ),
    Attack("empty tables", VIEWER, OWN, REFUSED, on_each_table("TRUNCATE ITS", keyspace="{own}")),
    Attack(
        "write rows, schemas and namespaces",
        READER,
        OWN,
        REFUSED,
        on_each_table("TRUNCATE ITS", keyspace="{own}", tables=("namespaces", "schemas", "rows")),
    ),
    *of(
        ALL,
        "change or drop tables, add indexes, views, triggers",
        OWN,
        REFUSED,
        statements(
            "DROP TABLE {own}.tidegate_rows",
            "ALTER TABLE {own}.tidegate_rows WITH default_time_to_live = 1",
            "CREATE INDEX ON {own}.tidegate_leases (version)",
            "DROP KEYSPACE {own}",
        ),
    ),
    *of(
        ALL,
        "run code in the nodes",
        SERVER,
        REFUSED,
        statements(
            "CREATE FUNCTION {own}.f (x int) CALLED ON NULL INPUT RETURNS int LANGUAGE java AS 'for (;;);'",
            "CREATE TRIGGER t ON {own}.tidegate_rows USING 'x'",
        ),
    ),
    *of(
        ALL,
        "make keyspaces, roles and users, or itself a superuser",
        SERVER,
        REFUSED,
        statements(
            "CREATE KEYSPACE x WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}",
            "CREATE ROLE x",
            "ALTER ROLE {role} WITH SUPERUSER = true",
            "DROP ROLE cassandra",
            "GRANT cassandra TO {role}",
        ),
    ),
    *of(
        ALL,
        "read or change what logins rest on",
        SERVER,
        REFUSED,
        statements(
            "SELECT * FROM system_auth.roles",
            "DELETE FROM system_auth.roles WHERE role = 'cassandra'",
            "TRUNCATE system_auth.roles",
        ),
    ),
    Attack(
        "rows that are no leases among the leases",
        READER,
        RETIREMENT,
        "bounded: they hold nothing, and the next retirement removes them",
        junk_leases,
    ),
    Attack(
        "times that no calendar has",
        READER,
        RETIREMENT,
        "bounded: they hold nothing",
        times_beyond_any_calendar,
    ),
    Attack(
        "more leases than 4,000",
        READER,
        RETIREMENT,
        "bounded: none holds, and retirement removes them",
        many_leases,
    ),
    Attack(
        "new leases on one version, again and again",
        READER,
        RETIREMENT,
        "bounded: `max_lease_s` for all of them together",
        leases_again_and_again,
    ),
    Attack(
        "end another reader's lease",
        READER,
        OWN,
        "bounded: that reader is refused, never answered wrongly",
        revokes_another,
    ),
]
