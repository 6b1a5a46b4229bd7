"""Every function of the library refuses more arguments than any client sends, before its first access.

A call with many arguments keeps the server from every other client. So does a call that is asked for a page
of a million rows.
"""

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
    **dict.fromkeys(("seal", "seal_many", "seal_again"), 2_750),
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


@pytest.mark.parametrize("name", names())
def test_no_function_takes_names_and_keys_without_end(world, name):
    client, query, _ = world
    uuid = client.hget(query.meta, "uuid")
    with pytest.raises(redis.ResponseError, match=REFUSED):
        call(client, name, header_of(query), uuid, "s", "n" * 2_000, *["1"] * 5)
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

    def spent_ms():
        cpu = server.info("cpu")
        return 1e3 * (cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"])

    found = {}
    for name, key, args in at_their_limits(client, query):
        took = []
        for _ in range(1 if name == "merge" else 5):
            before = spent_ms()
            call(client, name, key, *args)
            took.append(spent_ms() - before)
        found[name] = min(took)
    print({name: f"{ms:.1f} ms" for name, ms in found.items()})
    assert {name: ms for name, ms in found.items() if ms > CPU_MS} == {}


@pytest.mark.parametrize("name", names())
def test_each_function_has_its_own_limit(world, name):
    client, query, _ = world
    most = MOST.get(name, 1_100)
    with pytest.raises(redis.ResponseError, match=f"TGLISTS {most}"):
        call(client, name, header_of(query), *["x"] * (most + 1))


def test_the_calls_of_a_namespace_with_the_most_tables_fit():
    most = tables_max(1)
    assert 4 + 3 * most <= SEALED_AT_ONCE + 4 < 2_750
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
