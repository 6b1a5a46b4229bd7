"""Every function of the library refuses more arguments than any client sends, before its first access.

A call with many arguments keeps the server from every other client. So does a call that is asked for a page
of a million rows.
"""

import contextlib
import threading
import time

import pytest
import redis

from services.support.redis.query import query_on
from services.support.redis.rights import Users, guarded, login_of
from tidegate.sinks.redis.client.functions import library_name, names, readers, script_of
from tidegate.sinks.redis.seals import SEALED_AT_ONCE
from tidegate.wal.table_room import tables_max

__all__ = ["guarded"]
pytestmark = pytest.mark.xdist_group("redis-hostile")
MANY, WAIT_S = 100_000, 2.0
"""Arguments of a call, and the longest wait of another client: without a bound it is many times this long."""
REFUSED = r"TGLISTS \d+"
MOST = {
    "drop": 20_000,
    "look": 300,
    "read": 600,
    "rows": 600,
    **dict.fromkeys(("seal", "seal_many", "seal_again", "begin_rebuild", "put_bases"), 2_750),
}
"""The limits that are not 1,100 arguments."""


@pytest.fixture(scope="module")
def world(guarded, tmp_path_factory):
    """A namespace with rows, and the connections of its writer."""
    with query_on(guarded.url, tmp_path_factory.mktemp("query"), timeout_s=5.0) as query:
        query.run(2)
        url = Users(guarded, query).url("tidegate-writer")
        with guarded.client(**login_of(url), socket_timeout=60) as client:
            yield client, query, guarded


class Waiting:
    """Another client, and the longest time that it waited for an answer."""

    def __init__(self, server):
        self._server, self._end, self.longest_s = server, threading.Event(), 0.0
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self):
        with self._server.client(socket_timeout=60) as client:
            while not self._end.is_set():
                began = time.monotonic()
                client.ping()
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self._end.wait(0.001)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join(60)


def call(client, name, key, *args):
    verb = "FCALL_RO" if name in readers() else "FCALL"
    keys = (0,) if key is None else (1, key)
    return client.execute_command(verb, f"{library_name()}_{name}", *keys, *args)


def spent_ms(server):
    """The time of the server's processor so far, which no other program adds to."""
    cpu = server.info("cpu")
    return 1e3 * (cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"])


def header_of(query):
    return f"tg:{{{query.namespace}/0}}:h"


@pytest.mark.parametrize("name", names())
def test_no_function_takes_as_many_arguments_as_its_caller_likes(world, name):
    client, query, server = world
    uuid = client.hget(query.meta, "uuid")
    own = client.hget(header_of(query), "s")
    with Waiting(server) as other:
        for key in (query.meta, header_of(query)):
            for args in ((uuid, own, *["1"] * MANY), (uuid, *["aircraft"] * MANY), ["x"] * MANY):
                with pytest.raises(redis.ResponseError, match=REFUSED):
                    call(client, name, key, *args)
    print(f"{name}: another client waited {1e3 * other.longest_s:.0f} ms at most")
    assert other.longest_s < WAIT_S


CONTENT = {
    "create": 2,
    "ready": 2,
    "list_servers": 3,
    "publish": 5,
    "publish_filled": 5,
    "resume": 8,
    "put_schemas": 2,
    "put_entries": 2,
    "drop": 2,
    "read": 6,
    "rows": 5,
}
"""The functions with content or row keys among their arguments, and the first of these."""


@pytest.mark.parametrize("name", names())
def test_no_function_takes_names_and_keys_without_end(world, name):
    client, query, _ = world
    uuid = client.hget(query.meta, "uuid")
    for at in range(1, CONTENT.get(name, 9)):
        args = ["1"] * (at - 1) + ["n" * 2_000] + ["1"] * 5
        for key in (header_of(query), query.meta):
            with pytest.raises(redis.ResponseError, match=REFUSED):
                call(client, name, key, *args)
    with pytest.raises(redis.ResponseError, match=REFUSED):
        call(client, name, f"tg:{{{query.namespace}/0}}:{'x' * 2_000}:h", uuid)
    if name in CONTENT:
        longest = 68_000_000 if name in ("read", "rows") else 9_000_000
        with pytest.raises(redis.ResponseError, match=REFUSED):
            call(client, name, header_of(query), *["1"] * (CONTENT[name] - 1), "k" * longest)
    with pytest.raises(redis.ResponseError, match=REFUSED):
        call(client, name, query.meta, *["x" * 2_000_000] * 40)
    many = [query.meta, *(f"{query.meta}:{n}" for n in range(33))]
    with pytest.raises(redis.ResponseError, match=REFUSED):
        client.execute_command("FCALL", f"{library_name()}_{name}", len(many), *many, uuid)


@pytest.mark.parametrize("name", names())
def test_a_script_has_the_same_guard(world, name):
    """Where Functions are barred, a writer runs the same text by EVALSHA."""
    _, query, server = world
    with server.client(socket_timeout=60) as client:
        with pytest.raises(redis.ResponseError, match=REFUSED):
            client.eval(script_of(name).text, 1, query.meta, name, *["x"] * MANY)
        if name != "drop":
            with pytest.raises(redis.ResponseError, match=REFUSED):
                client.eval(script_of(name).text, 1, query.meta, name, *["x"] * 2_751)


def test_a_page_is_bounded_whatever_is_asked_for(world):
    """A layer of 20,000 rows: a reader, a merge and an expiry get a part of it."""
    client, query, _ = world
    header = header_of(query)
    uuid, own = client.hget(query.meta, "uuid"), client.hget(header, "s")
    layer = f"{header[:-1]}large:d:1:{uuid}"
    rows = {f"k{n}": f"+{n}" for n in range(20_000)}
    client.hset(layer, mapping=rows)
    client.hset(f"{header[:-1]}old:b", mapping=rows)
    client.hset(header, mapping={"l:large": "1", "b:old": "1"})
    endless = "999999999999"
    _, cursor, _, page = call(client, "scan", header, uuid, own, "large", "2", "0", "0", endless, endless)
    assert cursor != "0"
    assert len(page) / 2 < 2_000
    _, cursor, _ = call(
        client, "mergeable", header, uuid, own, "large", "2", "0", "\x7f" * 8, "0", "0", endless
    )
    assert cursor != "0"
    _, looked, _ = call(client, "expire", header, uuid, own, "old", "2", "\x7f" * 8, "0", endless, "0")
    assert looked < 2_000
    _, _, _, moved = call(client, "merge", header, uuid, own, "large", "2", "0", endless, "0")
    assert 0 < moved < 2_000


def test_a_page_of_rows_of_many_sizes_is_bounded(world):
    """Small rows come first, or large ones: what was read so far decides how many more are read."""
    client, query, _ = world
    header = header_of(query)
    uuid, own = client.hget(query.meta, "uuid"), client.hget(header, "s")
    layer = f"{header[:-1]}mixed:d:1:{uuid}"
    for n in range(1_000):
        client.hset(layer, f"k{n}", "+" * (1_000_000 if n % 30 == 0 else 10))
    client.hset(header, "l:mixed", "1")
    cursor, largest, rows = "1:0", 0, set()
    while cursor != "0":
        _, cursor, _, page = call(
            client, "scan", header, uuid, own, "mixed", "2", "0", cursor, "1000", "1048576"
        )
        largest, rows = max(largest, sum(map(len, page))), rows | set(page[::2])
    client.unlink(layer)
    assert len(rows) == 1_000
    assert largest < 15_000_000  # of 34 MB


LAYERS, CPU_MS = 14, 25


def at_their_limits(client, query):
    """Calls with as many arguments as their functions take, of much: name, key, arguments."""
    header, meta = header_of(query), query.meta
    uuid, own = client.hget(meta, "uuid"), client.hget(header, "s")
    for layer in range(1, LAYERS + 1):
        rows = {f"{layer}k{n}": "+" * 50 for n in range(2_000)}
        client.hset(f"{header[:-1]}deep:d:{layer}:{uuid}", mapping=rows)
    newest_first = ",".join(map(str, range(LAYERS, 0, -1)))
    client.hset(f"{header[:-1]}wide:d:1:{uuid}", mapping={f"k{n}": "+" * 900 for n in range(5_000)})
    client.hset(header, mapping={"l:deep": newest_first, "l:wide": "1"})
    names_of = [f"t{n}" for n in range(2_700)]
    some = [part for name in names_of[:900] for part in (name, "1", "d" * 32)]
    many = str(2**40)
    yield "read", header, (uuid, own, "deep", str(LAYERS), "0", *names_of[:595])
    yield "rows", header, (uuid, own, "wide", "1", *names_of[:595])
    yield "scan", header, (uuid, own, "wide", "1", "0", "1:0", many, many)
    yield "mergeable", header, (uuid, own, "wide", "2", "0", "\x7f" * 8, "0", "0", many)
    yield "look", header, (uuid, own, "1", *names_of[:297])
    yield "seal", header, (uuid, own, "9", *some)
    yield "seal_again", header, (uuid, own, "9", *some)
    yield "merge", header, (uuid, own, "wide", "2", "0", many, "0")
    yield "catalog", meta, (uuid, "0", str(2**52))
    schemas = [part for name in names_of[:545] for part in (name, "s" * 1_000)]
    yield "put_schemas", meta, (uuid, *schemas)
    yield "schemas", meta, (uuid, *names_of[:1_099])
    yield "note_tables", meta, (uuid, *names_of[:1_099])
    yield "forget_schemas", meta, (uuid, client.hget(meta, "visible"), *names_of[:1_090])
    yield "put_entries", meta, (uuid, *[part for n in range(360) for part in (str(n), "1", "e" * 500)])
    yield "remove", meta, ("uuid", uuid, *[f"{header}:gone:{n}" for n in range(1_090)])


def test_a_call_at_its_limits_takes_a_few_milliseconds_of_the_server(world):
    """By the server's own count of its processor's time, which no other program adds to."""
    client, query, server = world
    found = {}
    for name, key, args in at_their_limits(client, query):
        took = []
        for _ in range(1 if name == "merge" else 5):
            before = spent_ms(server)
            call(client, name, key, *args)
            took.append(spent_ms(server) - before)
        found[name] = min(took)
    print({name: f"{ms:.1f} ms" for name, ms in found.items()})
    assert {name: ms for name, ms in found.items() if ms > CPU_MS} == {}


NUMBERS = ",".join(map(str, range(9_999_999, 9_999_999 - 900_000, -1)))
SHORT = ",".join(map(str, range(39, 9, -1)))
ENDLESS = {
    "a list of layers": lambda name: {f"{kind}:{name}": NUMBERS for kind in ("l", "lost")},
    "many lists": lambda _: {f"{kind}:{n}": SHORT for n in range(25_000) for kind in ("l", "lost")},
    "many bases": lambda _: {f"{kind}:{n}": "5" for n in range(25_000) for kind in ("b", "lost_base", "k")},
    "attempts": lambda _: (
        {"discarded": "a" * 30 + ",", "sealed": "5 5 " + "a" * 8_000_000}
        | {"discarded": ("a" * 30 + ",") * 250_000}
    ),
    "marks": lambda _: {"lost": "5"},
    "notes": lambda _: {f"{kind}:{n}": "5 a" for n in range(30_000) for kind in ("begun", "lease:writer-")},
}
"""Content of an own header and pointer that would keep the server for seconds."""
BOUND_MS, REPAIR_MS = 300, 900
"""Without a bound it is 1,500 to 15,000. Most functions end after some 50 ms on a slow machine."""
OF_REPAIR = ("begin_fill", "discard", "begin_rebuild", "put_bases", "end_rebuild")


def args_of(name, uuid, own, table):
    """Arguments with which a function goes through what it finds."""
    most = "9" * 8
    given = {
        "begin_fill": (most,),
        "discard": ("1", "10", "a"),
        "begin_rebuild": ("token",),
        "end_rebuild": ("token", "1"),
        "put_bases": ("token", most),
        "begin_base": ("token", table),
        "keep_lost": ("token", "1"),
        "end_fill": (most,),
        "merge": (table, most, "0", "128", "0"),
        "mergeable": (table, most, "0", "\x7f" * 8, "1", "0", "128"),
        "expire": (table, most, "\x7f" * 8, "0", "128", "0"),
        "scan": (table, most, "0", "0", "1000", "65536"),
        "read": (table, most, "0", *(f"k{n}" for n in range(500))),
        "rows": (table, "1", "k"),
        "look": ("5", *[table] * 250),
        "seal": (f"5:5:{'b' * 30}", table, "0", ""),
        "seal_many": (f"5:5:{'b' * 30}", "1", table, "0", ""),
        "seal_again": (f"5:5:{'b' * 30}", table, "0", ""),
        "sweep": (table, "5", uuid, "0"),
        "sweep_rebuild": (table, "token", "0"),
        "stamp": ("1",),
        "header": (),
        "note_moved": (),
    }
    return None if name not in given else (uuid, own, *given[name])


POINTER = {
    "begun": (),
    "announce": ("0", "-1", "-1", "0", "", "0"),
    "leases": ("0",),
    "forget_begun": ("1",),
    "forget_schemas": ("2", "id"),
    "refuse_attempts": ("9", "10", "1", "1", "a"),
    "begin": ("9", "9", "1", "a"),
    "leftovers": (),
    "forget": ("9",),
}


OTHERS = ":leases", ":q", ":meta"
"""The ends of keys of other hashes of a namespace: a reader or a writer may write fields of some of them."""


@pytest.mark.parametrize("name", names())
def test_no_other_hash_serves_as_a_header(world, name):
    client, query, server = world
    uuid, own = client.hget(query.meta, "uuid"), client.hget(header_of(query), "s")
    args = args_of(name, uuid, own, "evil")
    if args is None:
        return
    with server.client() as admin:
        for end in OTHERS:
            key = f"tg:{{{query.namespace}/0}}{end}"
            admin.hset(key, mapping={"u": uuid, "s": own, "l:evil": SHORT, "b:evil": "1"})
            before = admin.hgetall(key)
            with pytest.raises(redis.ResponseError, match=r"TGLOST"):
                call(client, name, key, *args)
            assert admin.hgetall(key) == before
            admin.unlink(key)


@pytest.mark.parametrize("name", ["read", "rows"])
@pytest.mark.parametrize("keys", ["long", "one long beside short ones", "many long"])
def test_row_keys_are_counted_for_each_layer(world, name, keys):
    """Keys of 32 KiB, in as many layers as a header may list."""
    client, query, server = world
    uuid, own = client.hget(query.meta, "uuid"), client.hget(header_of(query), "s")
    given = {
        "long": ["k" * 60_000_000],
        "one long beside short ones": [*(f"s{n}" for n in range(500)), "k" * 65_000],
        "many long": [f"{n}" + "k" * 65_000 for n in range(500)],
    }[keys]
    header, kept = header_of(query), client.hgetall(header_of(query))
    with server.client() as admin:
        admin.hset(header, "l:evil", NUMBERS)
        admin.hset(f"{header[:-1]}evil:d:9999999:{uuid}", mapping={f"s{n}": "+1" for n in range(500)})
        before = spent_ms(server)
        with contextlib.suppress(redis.ResponseError):
            version = ("99999999", "0") if name == "read" else ("9999999",)
            call(client, name, header, uuid, own, "evil", *version, *given)
        spent = spent_ms(server) - before
        admin.unlink(header, f"{header[:-1]}evil:d:9999999:{uuid}")
        admin.hset(header, mapping=kept)
    print(f"{name}, {keys}: {spent:.0f} ms")
    assert spent < BOUND_MS


@pytest.mark.parametrize("content", ENDLESS)
def test_a_call_on_an_own_endless_list_is_bounded(world, content):
    """By the server's own count of its processor's time. A refusal is an answer, too."""
    client, query, server = world
    uuid, header, admin = client.hget(query.meta, "uuid"), header_of(query), server.client()
    own, places = client.hget(header, "s"), (header, query.meta)
    for key in places:
        admin.copy(key, f"kept:{key}", replace=True)
        admin.copy(key, f"endless:{key}", replace=True)
        fields = list(ENDLESS[content]("evil").items())
        for at in range(0, len(fields), 5_000):
            admin.hset(f"endless:{key}", mapping=dict(fields[at : at + 5_000]))
    tokens = ",".join(f"t{n}" for n in range(1_000_000))
    found = {}
    for name in names():
        args = args_of(name, uuid, own, "evil")
        key = header if args else query.meta
        if not args and name not in POINTER:
            continue
        admin.copy(f"endless:{key}", key, replace=True)
        if content == "marks" and args:
            admin.hset(key, "u", f"{uuid}!{tokens}")
        elif name in ("put_bases", "end_rebuild"):
            admin.hset(key, "u", f"{uuid}!token")
        before = spent_ms(server)
        with contextlib.suppress(redis.ResponseError):
            call(client, name, key, *(args or (uuid, *POINTER[name])))
        found[name] = spent_ms(server) - before
    for key in places:
        admin.copy(f"kept:{key}", key, replace=True)
        admin.unlink(f"kept:{key}", f"endless:{key}")
    admin.close()
    print({name: f"{ms:.0f} ms" for name, ms in found.items()})
    late = {name: ms for name, ms in found.items() if ms > (REPAIR_MS if name in OF_REPAIR else BOUND_MS)}
    assert late == {}


def test_a_namespace_of_many_versions_and_tables_is_within_the_bounds(world):
    """Each of 60 tables has 1,000 layers, the most that a query keeps; or 870 tables have 16."""
    client, query, _ = world
    header = header_of(query)
    uuid, own, kept = client.hget(query.meta, "uuid"), client.hget(header, "s"), client.hgetall(header)
    for tables, layers in ((60, 1_000), (870, 16)):
        listed = ",".join(map(str, range(100_000 + layers, 100_000, -1)))
        client.hset(header, mapping={f"l:t{n}": listed for n in range(tables)})
        counted = [part for n in range(tables) for part in (f"t{n}", "0", "")]
        keys = [f"k{n}" for n in range(500)]
        assert call(client, "seal", header, uuid, own, f"200000:5:{'b' * 30}", *counted) == []
        assert len(call(client, "look", header, uuid, own, "200000", *[f"t{n}" for n in range(60)])) == 121
        for name, args in (
            ("read", ("t0", "99999999", "0", *keys)),
            ("scan", ("t0", "99999999", "0", "0", "1000", "65536")),
            ("merge", ("t0", "99999999", "0", "128", "0")),
        ):
            with pytest.raises(redis.ResponseError, match="TGLOST"):  # and not TGLISTS
                call(client, name, header, uuid, own, *args)
        call(client, "mergeable", header, uuid, own, "t0", "99999999", "0", "\x7f" * 8, "1", "0", "128")
        call(client, "begin_rebuild", header, uuid, own, "token")
        client.unlink(header)
        client.hset(header, mapping=kept)


@pytest.mark.parametrize("name", names())
def test_each_function_has_its_own_limit(world, name):
    client, query, _ = world
    most = MOST.get(name, 1_100)
    with pytest.raises(redis.ResponseError, match=f"TGLISTS {most}"):
        call(client, name, header_of(query), *["x"] * (most + 1))


def test_the_calls_of_a_namespace_with_the_most_tables_fit():
    most = tables_max(1)
    assert 4 + 3 * most <= SEALED_AT_ONCE + 4 < 2_750
    assert 4 + 2 * most < MOST["begin_rebuild"] == MOST["put_bases"]
    assert most == pytest.approx(870, abs=20)


def test_a_catalog_comes_in_pages(world):
    """A client that gets many entries asks for those above the last one."""
    client, query, _ = world
    uuid, catalog = client.hget(query.meta, "uuid"), query.meta.replace("meta", "catalog")
    entry = client.hget(catalog, "2")
    client.hset(
        catalog, mapping={str(n): entry.replace('"version":2', f'"version":{n}') for n in range(3, 4_000)}
    )
    client.hset(query.meta, "visible", "3999")
    assert len(call(client, "catalog", query.meta, uuid, "0", str(2**52))) == 1_250
    store = query.store()
    assert [each.version for each in store.catalog()] == [*range(1, 4_000)]
    assert [each.version for each in store.catalog(100, 2_700)] == [*range(100, 2_701)]
