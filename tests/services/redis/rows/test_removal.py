"""Drop and vacuum find the keys of a namespace by what it lists, and scan the server only if asked to."""

from __future__ import annotations

import contextlib

import pytest

from tidegate.errors import StoreUnavailableError, TidegateError
from tidegate.sinks.aliases import Target
from tidegate.sinks.records import Identity, Stamp
from tidegate.sinks.redis import namespace as space_of_redis
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.redis.store import RedisStore
from tidegate.testing.store.harness import (
    EPOCH,
    chunks_of,
    counts_of,
    entry,
    put,
    retire_version,
    scanned,
    stamp,
)

GROUPS = 8
KEYS = [b"k%d" % number for number in range(40)]
ROWS = {"t": dict.fromkeys(KEYS, b"1"), "u": {b"k": b"1"}}
UNSEEN = {"unseen": dict.fromkeys(KEYS, b"2")}
OPEN = Stamp(4, 1_004, "attempt-4")


@pytest.fixture
def opened(redis, namespace):
    with contextlib.ExitStack() as closing:

        def another(uuid="uuid-1", key_groups=GROUPS, made=True):
            store = RedisStore(redis.url, namespace)
            closing.callback(store.close)
            if made:
                store.create(Identity(uuid, namespace, key_groups))
                store.claim(EPOCH, "writer")
            return store

        yield another


@pytest.fixture
def keys(redis, namespace):
    return lambda: sorted(redis.ask("KEYS", f"tg:{{{namespace}[}}/]*"))


@pytest.fixture
def commands(redis):
    """The calls of each command since the last look."""

    def counts():
        stats = redis.info("commandstats")
        return {name.removeprefix("cmdstat_"): of["calls"] for name, of in stats.items()}

    before = {}

    def since():
        now = counts()
        told = {name: calls - before.get(name, 0) for name, calls in now.items()}
        before.clear()
        before.update(now)
        return {name: calls for name, calls in told.items() if calls}

    since()
    return since


def filled(store):
    """Three versions, two of them retired."""
    for version in (1, 2, 3):
        put(store, version, ROWS, GROUPS)
    store.announce(3)
    for version in (2, 3):
        retire_version(store, version, chunks_of(ROWS, GROUPS))


# -- nothing is left ---


def nothing(store, redis, namespace):
    """Only what was sealed."""


def undecided(store, redis, namespace):
    """An attempt's rows before their seal, in a table that no header and no catalog names."""
    store.begin(OPEN, [], EPOCH)
    store.apply(OPEN, *chunks_of(UNSEEN, GROUPS))


def half_sealed(store, redis, namespace):
    undecided(store, redis, namespace)
    sealed = {group: counts for group, counts in counts_of(UNSEEN, GROUPS).items() if group % 2}
    store.seal(OPEN, sealed)


def late(store, redis, namespace):
    """Rows of the visible version that arrive after its seal."""
    store.apply(Stamp(3, 1_003, "attempt-3"), *chunks_of(ROWS, GROUPS))


def header_lost(store, redis, namespace):
    undecided(store, redis, namespace)
    put(store, 4, ROWS, GROUPS)
    for group in range(3):
        assert redis.ask("DEL", f"tg:{{{namespace}/{group}}}:h")


def pointer_lost(store, redis, namespace):
    assert redis.ask("DEL", f"tg:{{{namespace}}}:meta")


def repair_died(store, redis, namespace):
    for group in range(3):
        redis.ask("DEL", f"tg:{{{namespace}/{group}}}:t:b")
    with contextlib.suppress(ZeroDivisionError), store.comparing(EPOCH):
        rebuild = store._rebuild
        rebuild.begin_bases([(group, table) for group in range(3) for table in ROWS])
        rebuild.drop_what_is_left = lambda: None
        raise ZeroDivisionError


LEFT = [nothing, undecided, half_sealed, late, header_lost, pointer_lost, repair_died]


@pytest.mark.parametrize("leave", LEFT)
def test_a_drop_leaves_nothing(leave, opened, redis, namespace, keys):
    store = opened()
    filled(store)
    leave(store, redis, namespace)
    dropper = opened(made=False)
    assert dropper.drop() is True
    assert keys() == []
    assert dropper.drop() is False


@pytest.mark.parametrize("finish", ["drop", "create"])
@pytest.mark.parametrize("number", range(2, 14))
def test_a_drop_that_was_cut_short_is_finished(number, finish, opened, redis, namespace, keys, monkeypatch):
    store = opened(key_groups=130)
    put(store, 1, ROWS, 130)
    undecided(store, redis, namespace)
    dying = opened(made=False)
    run, calls = dying._space.calls.run, iter(range(1, 1_000))

    def cut(*args, **options):
        if next(calls) == number:
            raise StoreUnavailableError("cut")
        return run(*args, **options)

    monkeypatch.setattr(dying._space.calls, "run", cut)
    with contextlib.suppress(StoreUnavailableError):
        dying.drop()
    if finish == "create" and opened(made=False).identity() is None:
        fresh = opened("uuid-2", 2)
        put(fresh, 1, {"t": {b"new": b"1"}}, 2)
        assert scanned(fresh, "t", 1, key_groups=2) == {b"new": b"1"}
        assert not [key for key in keys() if "uuid-1" in key]
    opened(made=False).drop()
    assert keys() == []


def test_a_namespace_whose_making_was_cut_short_is_dropped(opened, keys, monkeypatch):
    with monkeypatch.context() as cut:
        cut.setattr(RedisNamespace, "survey", lambda _: 1 / 0)
        with contextlib.suppress(ZeroDivisionError):
            opened()
    assert len(keys()) == GROUPS + 1
    assert opened(made=False).drop() is True
    assert keys() == []


def test_rows_that_come_after_the_drop_are_found_by_a_scan_alone(opened, keys):
    store = opened()
    filled(store)
    opened(made=False).drop()
    late(store, None, None)
    assert keys()
    assert "--thorough" in store.unsearched
    assert opened(made=False).drop() is False
    assert keys()
    assert opened(made=False).drop(thorough=True) is True
    assert keys() == []


def test_a_base_that_no_header_lists_is_never_read(opened, redis, namespace):
    store = opened(key_groups=1)
    put(store, 1, {"t": dict.fromkeys(KEYS[:2], b"1")}, 1)
    redis.ask("HSET", f"tg:{{{namespace}/0}}:t:b", "stale", "+stale")
    redis.ask("HDEL", f"tg:{{{namespace}/0}}:h", "k:t:1")
    put(store, 2, {"t": {KEYS[0]: b"2"}}, 1)
    store.announce(2)
    retire_version(store, 2, chunks_of({"t": {KEYS[0]: b"2"}}, 1))
    assert scanned(store, "t", 2, key_groups=1) == {KEYS[0]: b"2", KEYS[1]: b"1"}


# -- sweeps ---


def test_a_vacuum_finds_what_a_writer_left(opened, redis, namespace, keys):
    store = opened()
    filled(store)
    before = keys()
    late(store, redis, namespace)
    assert keys() != before
    assert store.vacuum(dry_run=True).rows == store.vacuum().rows > 0
    assert keys() == before


def test_a_discarded_attempt_leaves_nothing(opened, redis, namespace, keys):
    store = opened()
    filled(store)
    undecided(store, redis, namespace)
    store.discard([OPEN], EPOCH)
    assert not [key for key in keys() if OPEN.attempt in key or "unseen" in key]


def test_an_older_fill_leaves_nothing(opened, redis, namespace, keys):
    store = opened()
    first, then = entry(5, ROWS), entry(6, ROWS)
    store.begin_fill(first, EPOCH)
    store.apply(Stamp(5, 1_005, first.attempt), *chunks_of(UNSEEN, GROUPS))
    store.begin_fill(then, EPOCH)
    assert not [key for key in keys() if "unseen" in key]


# -- the cost ---

FOREIGN = 100_000


def test_no_removal_scans_the_keys_of_others(redis, opened, namespace, commands):
    with redis.client() as client:
        for start in range(0, FOREIGN, 10_000):
            client.mset({f"foreign-{number}": "" for number in range(start, start + 10_000)})
        try:
            store = opened()
            filled(store)
            undecided(store, redis, namespace)
            works = [
                lambda: store.vacuum(dry_run=True),
                store.vacuum,
                lambda: store.discard([OPEN], EPOCH),
                opened(made=False).drop,
            ]
            for work in works:
                commands()
                work()
                used = commands()
                assert "scan" not in used
                assert sum(used.values()) < 150 * GROUPS  # those inside functions among them
        finally:
            for start in range(0, FOREIGN, 10_000):
                client.unlink(*(f"foreign-{number}" for number in range(start, start + 10_000)))


def test_an_apply_notes_a_table_once(opened, commands):
    store = opened()
    store.begin(stamp(1), [], EPOCH)
    for _ in range(3):
        store.apply(stamp(1), *chunks_of(ROWS, GROUPS))
    assert [name for name in commands() if name in ("scan", "keys")] == []
    assert store._noted == {(b"uuid-1", "t"), (b"uuid-1", "u")}


def test_a_late_apply_to_a_dropped_namespace_notes_nothing(opened, keys):
    store = opened()
    opened(made=False).drop()
    with pytest.raises(TidegateError, match="dropped"):
        store.apply(stamp(1), *chunks_of(ROWS, GROUPS))
    assert keys() == []


# -- what others do meanwhile, and what others have ---


def test_an_attempt_that_begins_during_a_drop_leaves_nothing(opened, redis, namespace, keys, monkeypatch):
    """The places were read already; its rows are in a table that is new, too."""
    store = opened()
    filled(store)
    drop_call = space_of_redis.drop_call

    def late_writer(*args):
        call = drop_call(*args)
        undecided(store, redis, namespace)
        return call

    monkeypatch.setattr(space_of_redis, "drop_call", late_writer)
    assert opened(made=False).drop() is True
    assert keys() == []


@pytest.mark.parametrize("exists", [False, True])
def test_no_drop_removes_an_alias_of_that_name(exists, opened, redis, namespace, keys):
    store = opened(made=exists)
    store.aliases().set(namespace, Target("another", "uuid-9"))
    try:
        assert store.drop(thorough=True) is exists
        assert store.aliases().get(namespace) == Target("another", "uuid-9")
    finally:
        redis.ask("DEL", f"tg:{{{namespace}}}:alias")


def test_a_sweep_of_many_key_groups_holds_few_keys(opened, monkeypatch):
    """Each version of the catalog names keys in each key group."""
    store, most = opened(key_groups=2_000), 0
    for version in (1, 2, 3):
        put(store, version, ROWS, 2_000)
    run = store._space.calls.run

    def watched(calls, **options):
        nonlocal most
        most = max(most, sum(call.name == "" and b"EXISTS" in repr(call).encode() for call in calls))
        return run(calls, **options)

    monkeypatch.setattr(store._space.calls, "run", watched)
    store.vacuum(dry_run=True)
    assert 0 < most <= 200


def test_two_creators_finish_a_drop_that_was_cut_short(opened, namespace, keys, monkeypatch):
    """The other one makes the headers after this one has read that there are none."""
    store = opened()
    filled(store)
    calls = store._space.calls
    calls.run([space_of_redis.drop_call(calls, namespace, b"uuid-1")])
    slow, identity = opened(made=False), Identity("uuid-2", namespace, GROUPS)
    run = slow._space.calls.run

    def overtaken(sent, **options):
        replies = run(sent, **options)
        if b"HGETALL" in repr(sent[0]).encode() and sent[0].key.endswith(b"/0}:h"):
            monkeypatch.undo()
            opened("uuid-3")
        return replies

    monkeypatch.setattr(slow._space.calls, "run", overtaken)
    made = slow.create(identity)
    assert made == opened(made=False).identity()
    assert not [key for key in keys() if "uuid-1" in key]


def test_two_drops_at_once_both_end(opened, keys, monkeypatch):
    filled(opened())
    drop_call = space_of_redis.drop_call

    def overtaken(*args):
        call = drop_call(*args)
        monkeypatch.undo()
        assert opened(made=False).drop() is True
        return call

    monkeypatch.setattr(space_of_redis, "drop_call", overtaken)
    assert opened(made=False).drop() is True
    assert keys() == []
