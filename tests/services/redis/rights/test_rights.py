"""Rights in Redis: the lists of docs/redis.md are enough, hold nothing else, and keep out the rest.

The users are made from the page itself, so that what it says is what is tried.
"""

import concurrent.futures
import contextlib
import re
import threading

import pytest
from redis.exceptions import NoPermissionError

import tidegate
from services.support.redis.query import Query, query_on
from services.support.redis.rights import PAGE, PASSWORD, Users, guarded, login_of, rules_of
from services.support.servers import ROOT
from services.support.workloads.query import LINEAGE, expected
from support.driver_process import MARKER, MARKER_KEYS
from tidegate.committers.commit import commit
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.verify import verify
from tidegate.committers.repair.repair import repair
from tidegate.errors import ConfigError, SnapshotExpiredError, StoreNotVerifiedError, TidegateError
from tidegate.sinks.aliases import Target
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import CatalogEntry, Identity, ReadAt, Stamp
from tidegate.sinks.redis.aliases import RedisAliases
from tidegate.sinks.redis.client import calls
from tidegate.sinks.redis.client.functions import LIBRARY, library, library_name, names, source
from tidegate.sinks.redis.client.replies import encoded
from tidegate.sinks.redis.keys import header_key
from tidegate.sinks.redis.upkeep.install import install
from tidegate.sinks.rules.leases import Lease
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.record import BatchOrigin

__all__ = ["guarded"]
pytestmark = pytest.mark.xdist_group("redis-rights")


LUA = ROOT / "sinks" / "redis" / "lua"
EVAL = ("+evalsha", "+evalsha_ro", "+script|load")
"""What the page lists instead of functions, for servers whose users trust each other."""
GRANTED = re.findall(r"`drop` also need `([^`]*)`, with `--thorough` also `([^`]*)`", PAGE.read_text())[0]
UPKEEP = " ".join(GRANTED).split()


@pytest.fixture
def users(guarded, tmp_path):
    with query_on(guarded.url, tmp_path, timeout_s=5.0) as query:
        yield Users(guarded, query)


def a_life(query: Query, url: str, functions: bool) -> None:
    """All that a writer does: make, open, commit, empty a table, retire, open again."""
    driver = query.run(5, url, functions=functions)
    query.retire(driver)
    rows = {MARKER: {b"m%d" % at: b"5" for at in range(MARKER_KEYS)}}
    barrier = ArrowBarrier(driver.log, rows, batch(LINEAGE, 5), driver.folded.key_groups)
    barrier.starts = frozenset({MARKER})
    commit(driver, barrier)
    query.run(9, url, functions=functions)
    query.retire(query.open(url, functions=functions))


def reads(query: Query, url: str, functions: bool) -> None:
    with tidegate.connect(url, query.namespace, query.options | {"functions": functions}) as gate:
        version = gate.version()
        with gate.snapshot() as snapshot:
            assert snapshot.table(MARKER).get_many([b"m1"])
            assert dict(snapshot.table(MARKER).scan())
        assert [info.version for info in gate.history()][-1] == version
        with pytest.raises(tidegate.WaitTimeoutError):
            gate.wait_for(version=version + 1, timeout=0.2)


def granted(user: str) -> set[str]:
    return {rule[1:] for rule in re.findall(r"\+[\w|]+", rules_of(user, "flights"))}


def test_the_rights_of_the_page_are_enough(users):
    a_life(users.query, users.url("tidegate-writer"), functions=True)
    reads(users.query, users.url("tidegate-reader"), functions=True)


def test_where_users_trust_each_other_scripts_do_as_well(users):
    users.server.ask("SCRIPT", "FLUSH")
    a_life(users.query, users.url("tidegate-writer", None, "-fcall", "-fcall_ro", *EVAL), functions=True)
    reader = users.url("tidegate-reader", None, *EVAL, f"(-@all ~{users.query.meta} +evalsha)")
    reads(users.query, reader, functions=False)
    assert all(f"`{' '.join(EVAL)}`" in PAGE.read_text() for _ in EVAL)


def test_the_page_lists_no_right_that_nothing_needs(users):
    query, server = users.query, users.server
    with users.counted() as used:
        a_life(query, server.url, functions=True)
        query.store().lease(Lease("held", 9), 60.0)
        query.store().announce(9)
    assert granted("tidegate-writer") - {"info", "time"} <= used
    server.ask("HSET", query.meta, "max_leases", 2)
    server.ask("HSET", query.meta.replace("meta", "leases"), "ran-out", "8 1 2")
    header = header_key(query.namespace, 0).decode()
    with users.counted() as used:
        reads(users.query, users.server.url, functions=True)
        server.ask("HSET", header, "u", server.ask("HGET", header, "u") + "!token")  # it is being put back
        with tidegate.connect(server.url, query.namespace) as gate, pytest.raises(StoreNotVerifiedError):
            dict(gate.table(MARKER).scan())
    assert granted("tidegate-reader") - {"info", "time"} <= used


def test_every_command_of_every_function_is_granted_to_the_writer():
    """Also those of branches that only a failover leads to."""
    sent = r"(?:redis\.p?call|read_whole|call_in_parts)\(\s*'(\w+)'(?:, '([A-Z]+)')?"
    upkeep = {right.removeprefix("+") for right in UPKEEP}
    for file in sorted(LUA.glob("*.lua")):
        found = re.findall(sent, file.read_text())
        called = {f"{name}|{more}".strip("|").lower() for name, more in found}
        more = upkeep if file.name == "merge.lua" else {"memory|usage", "config|get"}  # a dry run, for vacuum
        assert called - granted("tidegate-writer") <= more, file
    assert re.findall(sent, source())


@pytest.fixture
def called(monkeypatch):
    """The functions that were called."""
    names: set[str] = set()

    def noted(call, *args, **more):
        names.add(call.name)
        return encoded(call, *args, **more)

    monkeypatch.setattr(calls, "encoded", noted)
    return names


def fill(url: str, query: Query) -> None:
    """A store that is filled at version 6."""
    with contextlib.closing(open_store(url, query.namespace, query.options)) as store:
        store.create(Identity("filled", query.namespace, 1))
        store.claim(9, "filler")
        assert store.begin_fill(entry(6), 9) == 6
        store.seal(Stamp(6, 1), {0: {}})
        assert store.publish_filled(entry(6), 9)


def test_every_function_runs_with_the_rights_of_who_calls_it(users, called):
    """Enumerated from the library: a new function without a caller here is a failure."""
    query = users.query
    url = users.url("tidegate-writer", None, *UPKEEP)
    a_life(query, url, functions=True)
    driver = query.open(url)
    store = driver.store
    with store.comparing(driver.epoch):
        store.missing(Stamp(9, 1), {0: {MARKER: 0}})
        store.seal(Stamp(9, 1), {0: {}})
    store._seals._together = False  # as on a Cluster
    store.seal(Stamp(9, 1), {0: {}})
    store.heartbeat(driver.epoch)
    assert store.leases() == []
    store.stamp(9)
    store.discard([Stamp(99, 1, "lost")], driver.epoch)
    store._space.asked([store._space.of_group(0, "note_moved")])  # as on a Cluster
    left = f"tg:{{{query.namespace}/0}}:{MARKER}:r:token"
    users.server.ask("HSET", left, "token", "")  # of a repair that died
    store.vacuum(dry_run=True, thorough=True)
    store.vacuum(thorough=True)
    store.rows_of(ReadAt(MARKER, 9), [b"m1"])
    assert verify(driver.log, store).findings == []
    with store.comparing(driver.epoch):
        store.keep_lost(0, 9)
    users.server.ask("HDEL", f"tg:{{{query.namespace}/0}}:h", "u")  # begin_rebuild finds nothing whole
    with contextlib.suppress(TidegateError):
        repair(driver)
    assert store.put_entries([entry(9)]) == 0  # it is there
    assert not store.resume(entry(9), 9, driver.epoch, 9)  # the pointer is there
    alias = RedisAliases(store._space.calls, "")
    alias.set(query.namespace, Target(query.namespace, "uuid"))
    assert alias.drop(query.namespace)
    reads(query, users.url("tidegate-reader"), functions=True)
    store.drop()
    fill(url, query)
    assert set(names()) - {"present"} <= called  # which every connect calls, by its own words


@pytest.mark.parametrize("less", ["-fcall -evalsha", "-hscan", "-xadd"])
def test_with_one_right_less_a_writer_is_refused_and_told(users, less):
    url = users.url("tidegate-writer", None, *less.split())
    with pytest.raises(ConfigError) as told:
        a_life(users.query, url, functions=True)
    assert PASSWORD not in str(told.value)


@pytest.mark.parametrize(
    "less", ["unlink", "rename", "hdel", "hset", "hsetnx", "hscan", "exists", "hlen", "xadd"]
)
def test_a_right_that_is_missing_for_a_while_leaves_no_half_of_a_call(users, less):
    """Red before: a merge without UNLINK listed a base that it had not made, and no start got past it."""
    query = users.query
    url = users.url("tidegate-writer")
    for kept in (8, 3):  # the second retires behind a horizon that is above whole layers
        query.retire(query.run(6, url, keep_versions=kept, apply_deadline_s=2.0))
    url = users.url("tidegate-writer", None, f"-{less}")
    for batches in (7, 8):
        with contextlib.suppress(TidegateError):
            query.retire(query.run(batches, url, keep_versions=2, apply_deadline_s=2.0))
    url = users.url("tidegate-writer")
    for batches in (9, 10):
        query.retire(query.run(batches, url, keep_versions=2, apply_deadline_s=30.0))
    with tidegate.connect(users.url("tidegate-reader"), query.namespace, query.options) as gate:
        assert dict(gate.table(MARKER).scan()) == expected(10)[MARKER]
        with gate.snapshot() as snapshot:
            assert {name: dict(snapshot.table(name).scan()) for name in expected(10)} == expected(10)


@pytest.mark.parametrize("less", ["unlink", "rename", "hdel", "hset"])
@pytest.mark.parametrize("lost", [":h", ":b", ""])
def test_a_repair_has_the_rights_of_a_writer_and_lacks_one_for_a_while(users, lost, less):
    """Red before: no writer could put a base back, for HEXISTS; and one without RENAME lost rows."""
    query = users.query
    query.retire(query.run(6, users.url("tidegate-writer"), apply_deadline_s=2.0))
    keys = users.server.ask("KEYS", f"tg:{{{query.namespace}*")
    users.server.ask("UNLINK", *[key for key in keys if key.endswith(lost)][: None if not lost else 3])
    for rights, batches, seconds in (([f"-{less}"], 6, 2.0), ([f"-{less}"], 6, 2.0), ([], 7, 30.0)):
        with contextlib.nullcontext() if not rights else contextlib.suppress(TidegateError):
            url = users.url("tidegate-writer", None, *rights)
            repair(query.run(batches, url, apply_deadline_s=seconds))
    query.retire(query.run(8, url))
    url = users.url("tidegate-reader")
    with tidegate.connect(url, query.namespace, query.options) as gate, gate.snapshot() as snapshot:
        assert {name: dict(snapshot.table(name).scan()) for name in expected(8)} == expected(8)


def test_who_sets_an_alias_needs_no_more_than_the_page_says(users):
    """Red before: functions that write asked for all rights of a writer."""
    (listed,) = re.findall(
        r"A user that sets an alias needs `~tg:\{<alias>\}:\*` with `([^`]*)`", PAGE.read_text()
    )
    rules = [
        "reset",
        "on",
        f">{PASSWORD}",
        "~tg:{live}:*",
        *listed.split(),
        "+info",
        "+time",
        "+fcall",
        "+fcall_ro",
    ]
    users.server.ask("ACL", "SETUSER", "aliases", *rules)
    with contextlib.closing(users.query.store(users.server.url_for("aliases", PASSWORD))) as store:
        alias = RedisAliases(store._space.calls, "")
        alias.set("live", Target(users.query.namespace, "uuid"))
        assert alias.drop("live")


def entry(version: int) -> CatalogEntry:
    return CatalogEntry(version, "d", "a", BatchOrigin(LINEAGE, 0, 99, "f"), 1, {}, {})


WRITES = {
    "publish": lambda store: store.publish(entry(3), 9),
    "claim": lambda store: store.claim(9, "reader"),
    "heartbeat": lambda store: store.heartbeat(1),
    "end_heartbeat": lambda store: store.end_heartbeat(1),
    "announce": lambda store: store.announce(2),
    "seal": lambda store: store.seal(Stamp(3, 1), {0: {MARKER: 1}}),
    "drop": lambda store: store.drop(),
}


def test_a_reader_cannot_move_the_pointer_nor_write_anything_but_its_lease(users):
    query = users.query
    query.run(2)
    before = query.store().pointer()
    url = users.url("tidegate-reader")
    for name, write in WRITES.items():
        with contextlib.closing(open_store(url, query.namespace, query.options)) as store:
            with pytest.raises(TidegateError) as told:
                write(store)
            assert isinstance(told.value, ConfigError), name
            assert PASSWORD not in str(told.value)
    with contextlib.closing(open_store(url, query.namespace, query.options)) as store:
        store.lease(Lease("mine", 2), 60.0)
        store.release("mine")
    after = query.store().pointer()
    assert (after.visible, after.epoch, after.horizon) == (before.visible, before.epoch, before.horizon)
    reads(query, url, functions=True)


@pytest.mark.parametrize("user", ["tidegate-writer", "tidegate-reader"])
def test_a_user_of_one_namespace_gets_nothing_of_another(users, user):
    query = users.query
    query.run(2)
    for other in (query.namespace[:-1], f"{query.namespace}x"):
        url = users.url(user, other)
        store = query.store(url)
        with pytest.raises(ConfigError):
            store.pointer()
        with pytest.raises(ConfigError):
            open_namespace(query.driver(url), LINEAGE)
    query.check(2)


# -- functions belong to the whole server ---------------------------------------------------------------


@pytest.mark.parametrize("user", ["tidegate-writer", "tidegate-reader"])
def test_no_tenant_decides_what_another_one_runs(users, user):
    """A library that a tenant replaces would run with the rights of whoever calls it."""
    query, stolen = users.query, f"-- stolen\n{source()}"
    query.run(2)
    attacker = users.url(user, "tenant-a")
    with users.server.client(**login_of(attacker)) as client:
        for text in (library(), library().replace(source().encode(), stolen.encode())):
            for replace in ((), ("REPLACE",)):
                with pytest.raises(NoPermissionError):
                    client.execute_command("FUNCTION", "LOAD", *replace, text)
        for words in (("DELETE", library_name()), ("FLUSH",), ("RESTORE", b"x"), ("DUMP",), ("KILL",)):
            with pytest.raises(NoPermissionError):
                client.execute_command("FUNCTION", *words)
    query.check(2)


def test_the_administrator_sees_who_put_another_text_there(users):
    admin = users.server.url_for("tidegate-admin", PASSWORD)
    users.server.ask("FUNCTION", "LOAD", "REPLACE", library() + b"-- stolen\n")
    try:
        with pytest.raises(ConfigError, match="another text"):
            install(admin, {}, remove_others=True, dry_run=False)
    finally:
        users.server.ask("FUNCTION", "DELETE", library_name())
        install(admin, {}, remove_others=False, dry_run=False)


def test_the_libraries_of_other_releases_stay_until_the_administrator_removes_them(users):
    admin, other = users.server.url_for("tidegate-admin", PASSWORD), f"{LIBRARY}_0123456789abcdef"
    users.server.ask("FUNCTION", "LOAD", library().replace(library_name().encode(), other.encode()))
    for remove_others, dry_run in ((False, False), (True, True), (True, False)):
        (found,) = install(admin, {}, remove_others=remove_others, dry_run=dry_run)
        assert found[1:] == (True, (other,))
    (found,) = install(admin, {}, remove_others=False, dry_run=False)
    assert found[1:] == (True, ())


def test_a_user_who_may_not_load_is_sent_to_the_administrator(users):
    users.server.ask("FUNCTION", "DELETE", library_name())
    try:
        with pytest.raises(ConfigError, match="tidegate redis-functions") as told:
            users.query.run(1, users.url("tidegate-writer"))
        assert PASSWORD not in str(told.value)
        assert not users.server.ask("EXISTS", users.query.meta)
    finally:
        install(users.server.url_for("tidegate-admin", PASSWORD), {}, remove_others=False, dry_run=False)
    users.query.run(1, users.url("tidegate-writer"))


def test_a_stream_that_is_ahead_is_written_anew_with_the_writers_rights(users):
    """A failover may bring back a pointer that the stream of versions had passed."""
    query, url = users.query, users.url("tidegate-writer")
    driver = query.run(2, url)
    users.server.ask("XADD", f"tg:{{{query.namespace}}}:versions", "5000-0", "visible", "5000")
    query.commit(driver, 2, 3)
    query.check(4)


def test_a_reader_that_may_take_no_lease_reads_without_one(users):
    """A version that is retired meanwhile is refused (I8)."""
    query = users.query
    driver = query.run(5)
    url = users.url("tidegate-reader")
    users.server.ask("ACL", "SETUSER", "tidegate-reader", "clearselectors")
    with tidegate.connect(url, query.namespace, query.options) as gate:
        assert gate.version() == 5
        assert gate.table(MARKER).get_many([b"m1"])
        assert dict(gate.table(MARKER).scan())
        with gate.snapshot(version=2) as snapshot:
            assert dict(snapshot.table(MARKER).scan())
            assert driver.store.leases() == []
            query.retire(driver)
            with pytest.raises(SnapshotExpiredError):
                dict(snapshot.table(MARKER).scan())


def test_a_reader_without_leases_beside_a_retiring_writer_gets_whole_versions_or_an_error_i8(users):
    query, ended = users.query, threading.Event()
    read = {"whole": 0, "refused": 0}
    users.server.ask("ACL", "SETUSER", "tidegate-reader", "clearselectors")

    def read_until_refused(gate):
        with gate.snapshot(version=max(gate.version() - 1, 1)) as snapshot:
            rows = expected(snapshot.version)[MARKER]
            while not ended.is_set():
                assert dict(snapshot.table(MARKER).scan()) == rows
                assert snapshot.table(MARKER).get_many(list(rows)) == rows
                read["whole"] += 1

    def read_all_along(gate):
        while not ended.is_set():
            try:
                read_until_refused(gate)
            except SnapshotExpiredError:
                read["refused"] += 1

    driver = query.run(3)
    url = users.url("tidegate-reader")
    with (
        tidegate.connect(url, query.namespace, query.options) as gate,
        concurrent.futures.ThreadPoolExecutor(2) as readers,
    ):
        both = [readers.submit(read_all_along, gate) for _ in range(2)]
        try:
            for number in range(4, 100):
                if number > 13 and read["whole"] and read["refused"]:
                    break
                query.commit(driver, number - 1)
                query.retire(driver)
                if number % 5 == 0:
                    driver.store.vacuum()
        finally:
            ended.set()
        for reader in both:
            reader.result()
    assert driver.store.leases() == []
    assert read["whole"]
    assert read["refused"]
