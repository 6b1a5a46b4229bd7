"""What a reader or a writer of a namespace on Redis tries against another one, retirement and the server."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
import redis
from redis import exceptions

from services.support.hostile import REFUSED, Attack
from tidegate.errors import SnapshotExpiredError
from tidegate.sinks.records import ReadAt
from tidegate.sinks.redis.client.functions import library, library_name
from tidegate.sinks.rules.leases import Lease

ANOTHER, RETIREMENT, SERVER, OWN = "another namespace", "its retirement", "the server", "its own namespace"
READER, WRITER, NOBODY = "a reader", "a writer", "nobody"
FOREVER = "while true do end"
NOT_ALLOWED = "NOPERM|permission|can't run|can't access"
FAST_S = 2.0
"""A call of this length kept the server from others for far less; without a bound it would not end."""


class World:
    """``client`` has the attacker's login, for its ``own`` namespace; ``admin`` may do all."""

    def __init__(self, client: Any, admin: Any, own: Any, victim: Any) -> None:
        self.client, self.admin, self.own, self.victim = client, admin, own, victim
        self.uuid, self.victims_uuid = (admin("HGET", one.meta, "uuid") for one in (own, victim))

    def key(self, name: str) -> str:
        return self.own.meta.replace("meta", name)

    def of_victim(self, name: str) -> str:
        return self.victim.meta.replace("meta", name)

    @property
    def header(self) -> str:
        return f"tg:{{{self.own.namespace}/0}}:h"

    @property
    def victims_header(self) -> str:
        return f"tg:{{{self.victim.namespace}/0}}:h"

    def ask(self, *words: object) -> Any:
        return self.client.execute_command(*words)

    def call(self, name: str, key: str, *args: object, read_only: bool = False) -> Any:
        return self.ask("FCALL_RO" if read_only else "FCALL", f"{library_name()}_{name}", 1, key, *args)


def commands(*lines: str) -> Any:
    """Every one of these is refused; the names in braces are the World's."""

    def run(world: World) -> None:
        names = {
            "own": world.own.meta,
            "header": world.header,
            "victim": world.victim.meta,
            "victims_header": world.victims_header,
            "victims_versions": world.of_victim("versions"),
            "victims_leases": world.of_victim("leases"),
            "victims_alias": world.of_victim("alias"),
        }
        for line in lines:
            words = [word.format(**names) for word in line.split()]
            with pytest.raises(exceptions.NoPermissionError):
                world.ask(*words)
        raise exceptions.NoPermissionError

    return run


def calls_on_victim(*names: str, read_only: bool = False) -> Any:
    def run(world: World) -> None:
        for name in names:
            for key in (world.victim.meta, world.victims_header):
                with pytest.raises(exceptions.NoPermissionError):
                    world.call(name, key, world.victims_uuid, "0", "1", "2", "3", read_only=read_only)
        raise exceptions.NoPermissionError

    return run


def smuggle_keys(world: World) -> None:
    """A function that is given its keys as arguments; Redis checks them inside, too."""
    with pytest.raises(exceptions.ResponseError, match=NOT_ALLOWED):
        world.call("remove", world.own.meta, "uuid", world.uuid, world.victim.meta, world.victims_header)
    raise exceptions.NoPermissionError


def several_keys(world: World) -> None:
    world.ask(
        "FCALL", f"{library_name()}_seal_many", 2, world.own.meta, world.victims_header, world.uuid, "x", 1
    )


def names_with_braces(world: World) -> None:
    """A table whose name would lead out of the key group's hash tag."""
    table = f"x}}:h{{{world.victim.namespace}"
    with contextlib.suppress(exceptions.ResponseError):
        world.call("sweep", world.header, world.uuid, "server", table, "1", world.uuid, "1")


def writes_as_reader(world: World) -> None:
    calls = {
        "claim": ("9", "me", "lib"),
        "publish": ("9", "4", "d", "{}"),
        "announce": ("2", "-1", "-1", "0", "", "0"),
        "drop": (),
        "forget": ("9",),
        "forget_schemas": ("3", "id"),
        "list_servers": ("9", "x"),
        "put_schemas": ("id", "{}"),
        "put_entries": ("3", "1", "{}"),
    }
    for name, args in calls.items():
        with pytest.raises(exceptions.ResponseError, match=NOT_ALLOWED):
            world.call(name, world.own.meta, world.uuid, *args)
    raise exceptions.NoPermissionError


def lease_of_writer(world: World) -> None:
    with pytest.raises(exceptions.ResponseError, match=NOT_ALLOWED):
        world.call("lease", world.own.meta, world.uuid, "writer-fill", "1", "60000000")
    raise exceptions.NoPermissionError


def retires(world: World, upto: int = 3, **limits: Any) -> None:
    assert world.own.store().announce(upto, **limits) == upto


def junk_lease(world: World) -> None:
    for field, content in (("evil", "x"), ("a b", "1 2 3"), ("empty", ""), ("z" * 100, "1 1 1")):
        world.ask("HSET", world.key("leases"), field, content)
    retires(world)
    assert world.own.store().leases() == []


def lease_above(world: World) -> None:
    now = int(time.time() * 1e6)
    world.ask("HSET", world.key("leases"), "above", f"99999999999 {now} {now + 10**15}")
    world.ask("HSET", world.key("leases"), "endless", f"1 {now} {now + 10**15}")
    retires(world)


def large_lease(world: World) -> None:
    world.ask("HSET", world.key("leases"), "big", "x" * 4_000_000)
    retires(world)
    assert not world.admin("EXISTS", world.key("leases"))


def many_leases(world: World) -> None:
    now = int(time.time() * 1e6)
    for name in range(11):
        world.ask("HSET", world.key("leases"), f"l{name}", f"1 {now} {now + 60_000_000}")
    retires(world, max_leases=10)


def leases_again_and_again(world: World) -> None:
    store, deadline = world.own.store(), time.monotonic() + 20
    count = 0
    while store.announce(2, max_lease_s=0.5, keep_versions=1) < 2:
        assert time.monotonic() < deadline, "held for ever"
        with contextlib.suppress(exceptions.ResponseError):
            world.call("lease", world.own.meta, world.uuid, f"again-{count}", "1", "60000000")
        count += 1


def revokes_another(world: World) -> None:
    store = world.own.store()
    store.lease(Lease("victim", 1), 60)
    world.ask("HDEL", world.key("leases"), "victim")
    assert store.announce(2) == 2
    with pytest.raises(SnapshotExpiredError):
        store.lease(Lease("victim", 1), 60)
    with pytest.raises(SnapshotExpiredError):
        store.get_many(ReadAt("t", 1), [b"k"])


def endless_catalog(world: World) -> None:
    begun = time.monotonic()
    world.call("catalog", world.own.meta, world.uuid, "0", str(2**52), read_only=True)
    assert time.monotonic() - begun < FAST_S


def endless_own_pointer(world: World) -> None:
    world.ask("HSET", world.own.meta, "visible", str(9 * 10**15), "horizon", "0")
    endless_catalog(world)


def numbers_without_a_next_one(world: World) -> None:
    """From 2^53 on a number and the next one are the same, so a loop over versions would never end."""
    for number in ("inf", "1e300", str(2**60), "99999999999999999999"):
        world.ask("HSET", world.own.meta, "visible", number, "horizon", "0")
        begun = time.monotonic()
        for oldest, newest in ((number, number), (number, "inf"), ("0", str(2**52))):
            with contextlib.suppress(exceptions.ResponseError):
                world.call("catalog", world.own.meta, world.uuid, oldest, newest, read_only=True)
        assert time.monotonic() - begun < FAST_S


def lists_without_end(world: World) -> None:
    """A list of its own, which a function would go through once for each row or for each argument."""
    layers = f"{world.header[:-1]}t:d:1:{world.uuid}"
    for at in range(0, 20_000, 1_000):
        world.ask("HSET", layers, *(part for n in range(at, at + 1_000) for part in (f"k{n}", "-")))
    header = {"l:t": ",".join(["1"] * 100_000), "discarded": " " * 1_000_000}
    world.ask("HSET", world.header, *(part for pair in header.items() for part in pair))
    world.ask("HSET", world.own.meta, "discarded", " " * 1_000_000)
    server = world.ask("HGET", world.header, "s")
    of_group = (world.header, world.uuid, server)
    calls = (
        ("mergeable", *of_group, "t", "9", "0", "\x7f" * 8, "0", "0", "128"),
        ("read", *of_group, "t", "9", "0", *(f"absent{n}" for n in range(1_000))),
        ("look", *of_group, "9", *["t"] * 100_000),
        ("seal", *of_group, f"9:1:{' ' * 400_000}b", "t", "0", ""),
        ("begin", world.own.meta, world.uuid, "9", "9", "1", " " * 400_000 + "b"),
        ("refuse_attempts", world.own.meta, world.uuid, "9", "100", *["9", "1", "b"] * 30_000),
    )
    for name, key, *args in calls:
        begun = time.monotonic()
        with contextlib.suppress(exceptions.ResponseError):
            world.call(name, key, *args, read_only=name in ("mergeable", "read", "look"))
        assert time.monotonic() - begun < 5 * FAST_S, name


def endless_arguments(world: World) -> None:
    """tests/services/redis/rights/test_arguments.py has every function, and what another client waits."""
    for name, key in (("schemas", world.own.meta), ("look", world.header), ("read", world.header)):
        begun = time.monotonic()
        with pytest.raises(exceptions.ResponseError, match="TGLISTS"):
            world.call(name, key, world.uuid, *["x"] * 100_000, read_only=True)
        assert time.monotonic() - begun < FAST_S


def without_login(world: World) -> None:
    """The default user, and a user of the file before it has a password."""
    place = {name: world.client.connection_pool.connection_kwargs[name] for name in ("host", "port")}
    for login in (
        {},
        {"username": "default", "password": "x"},
        {"username": "tidegate-admin", "password": "x"},
    ):
        with redis.Redis(**place, **login) as nobody:
            for words in (
                ("PING",),
                ("ACL", "LIST"),
                ("HSET", world.own.meta, "visible", "1"),
                ("FLUSHALL",),
            ):
                with pytest.raises(exceptions.AuthenticationError):
                    nobody.execute_command(*words)
    raise exceptions.NoPermissionError


def nonsense(world: World) -> None:
    """Arguments that no client sends end in an error of their own, at once."""
    for name in ("lease", "announce", "publish", "catalog", "merge", "expire", "seal", "read", "scan"):
        for args in ((), ("",), ("x",) * 8, (world.uuid, "-1", "1e308", "nan", "inf", "x", "y", "z")):
            with contextlib.suppress(exceptions.ResponseError):
                world.call(name, world.own.meta if name in ("lease", "announce") else world.header, *args)
    assert world.ask("FCALL_RO", f"{library_name()}_present", 0) == 1


def loads_a_library(world: World) -> None:
    for words in (
        ("LOAD", "REPLACE", library()),
        ("LOAD", library()),
        ("DELETE", library_name()),
        ("FLUSH",),
    ):
        with pytest.raises(exceptions.NoPermissionError):
            world.ask("FUNCTION", *words)
    raise exceptions.NoPermissionError


def runs_a_loop(world: World) -> None:
    for words in (
        ("EVAL", FOREVER, 0),
        ("EVAL_RO", FOREVER, 0),
        ("SCRIPT", "LOAD", FOREVER),
        ("EVALSHA", "0" * 40, 0),
    ):
        with pytest.raises(exceptions.NoPermissionError):
            world.ask(*words)
    raise exceptions.NoPermissionError


def of_both(name: str, on: str, ends: str, run: Any) -> list[Attack]:
    return [Attack(name, role, on, ends, run) for role in (READER, WRITER)]


ATTACKS = [
    Attack("connect without any login", NOBODY, SERVER, REFUSED, without_login),
    *of_both(
        "read the pointer, rows and leases",
        ANOTHER,
        REFUSED,
        commands(
            "HGETALL {victim}",
            "HGET {victim} uuid",
            "HSCAN {victims_header} 0",
            "HGETALL {victims_leases}",
            "EXISTS {victim}",
            "MEMORY USAGE {victim}",
        ),
    ),
    *of_both(
        "call reading functions",
        ANOTHER,
        REFUSED,
        calls_on_victim("pointer", "catalog", "schemas", "leases", "read", "scan", "header", read_only=True),
    ),
    *of_both(
        "call writing functions",
        ANOTHER,
        REFUSED,
        calls_on_victim(
            "lease",
            "release",
            "publish",
            "claim",
            "announce",
            "drop",
            "merge",
            "seal",
            "begin_rebuild",
            "set_alias",
        ),
    ),
    *of_both(
        "write fields, remove keys, rename onto them",
        ANOTHER,
        REFUSED,
        commands(
            "HSET {victim} visible 1",
            "HDEL {victim} uuid",
            "UNLINK {victim}",
            "DEL {victim}",
            "RENAME {own} {victim}",
            "RENAME {victim} {own}",
            "HSET {victims_leases} a b",
            "XADD {victims_versions} * a b",
            "SET {victim} x",
            "EXPIRE {victim} 1",
            "COPY {victim} {own}",
        ),
    ),
    *of_both("hand a function the other's keys as arguments", ANOTHER, REFUSED, smuggle_keys),
    *of_both("hand a function keys of both", ANOTHER, REFUSED, several_keys),
    Attack(
        "a table's name that leads out of the key group",
        WRITER,
        ANOTHER,
        "bounded: the key is still one of the writer's own",
        names_with_braces,
    ),
    *of_both(
        "set an alias of the other's name",
        ANOTHER,
        REFUSED,
        commands("HSET {victims_alias} namespace x", "HGET {victims_alias} namespace"),
    ),
    *of_both(
        "wait for its versions",
        ANOTHER,
        REFUSED,
        commands(
            "XREAD STREAMS {victims_versions} 0",
            "XREAD BLOCK 1 STREAMS {victims_versions} $",
            "XRANGE {victims_versions} - +",
        ),
    ),
    *of_both(
        "list the names of all keys",
        ANOTHER,
        REFUSED,
        commands("SCAN 0", "KEYS *", "RANDOMKEY", "DBSIZE", "CLUSTER GETKEYSINSLOT 0 10"),
    ),
    *of_both(
        "watch what others send",
        ANOTHER,
        REFUSED,
        commands(
            "MONITOR",
            "CLIENT LIST",
            "SLOWLOG GET",
            "PSUBSCRIBE *",
            "ACL LOG",
            "CLIENT TRACKING ON BCAST",
            "LATENCY LATEST",
        ),
    ),
    Attack("claim, flip, announce, forget, drop", READER, OWN, REFUSED, writes_as_reader),
    Attack(
        "write the pointer or a key group past the functions",
        READER,
        OWN,
        REFUSED,
        commands(
            "HSET {own} visible 9",
            "HDEL {own} uuid",
            "HSET {header} floor 9",
            "UNLINK {own}",
            "RENAME {header} {own}",
        ),
    ),
    Attack("take a lease of the writer, which no time limits", READER, RETIREMENT, REFUSED, lease_of_writer),
    Attack(
        "write what is no lease among the leases",
        READER,
        RETIREMENT,
        "bounded: it holds nothing and is removed",
        junk_lease,
    ),
    Attack(
        "a lease above the visible version, or without end",
        READER,
        RETIREMENT,
        "bounded: it is no lease",
        lease_above,
    ),
    Attack(
        "a lease of megabytes",
        READER,
        RETIREMENT,
        "bounded: removed unread; the server's memory is not bounded",
        large_lease,
    ),
    Attack(
        "more leases than `max_leases`",
        READER,
        RETIREMENT,
        "bounded: removed unread, none holds",
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
    *of_both("load, replace or delete functions", SERVER, REFUSED, loads_a_library),
    *of_both("run a script without end", SERVER, REFUSED, runs_a_loop),
    *of_both(
        "end or pause others, stop or slow the server",
        SERVER,
        REFUSED,
        commands(
            "CLIENT KILL TYPE normal",
            "CLIENT PAUSE 10000",
            "SHUTDOWN NOSAVE",
            "FUNCTION KILL",
            "SCRIPT KILL",
            "BGREWRITEAOF",
            "SAVE",
            "FAILOVER",
            "CLUSTER RESET",
        ),
    ),
    *of_both(
        "empty it, copy it away, make it a replica",
        SERVER,
        REFUSED,
        commands(
            "FLUSHALL",
            "FLUSHDB",
            "REPLICAOF localhost 1",
            "SYNC",
            "PSYNC ? -1",
            "MIGRATE localhost 1 {own} 0 10",
            "DUMP {victim}",
            "RESTORE {own} 0 x",
            "SWAPDB 0 1",
        ),
    ),
    *of_both(
        "change its settings or its users",
        SERVER,
        REFUSED,
        commands(
            "CONFIG SET maxmemory 1",
            "CONFIG GET *",
            "CONFIG REWRITE",
            "ACL SETUSER default on",
            "ACL LIST",
            "ACL GETUSER default",
            "SLOWLOG RESET",
        ),
    ),
    *of_both("ask for a catalog without end", SERVER, "bounded: 2,500 versions a call", endless_catalog),
    Attack(
        "a pointer that names versions without end",
        WRITER,
        SERVER,
        "bounded: 2,500 versions a call",
        endless_own_pointer,
    ),
    Attack(
        "a pointer whose versions have no next one, as `inf`",
        WRITER,
        SERVER,
        "bounded: an error, at once",
        numbers_without_a_next_one,
    ),
    Attack(
        "lists of its own that a function goes through again and again",
        WRITER,
        SERVER,
        "bounded: an error within seconds",
        lists_without_end,
    ),
    *of_both("arguments without end", SERVER, "bounded: an error, at once", endless_arguments),
    *of_both("arguments that no client sends", SERVER, "bounded: an error, at once", nonsense),
]
