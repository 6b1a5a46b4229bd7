"""A read of the newest version takes one round trip: it looks while it reads (decision 0042)."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate
from services.support.in_loop import BOTH
from services.support.redis.group import RedisGroup
from services.support.redis.proxy import RedisProxy
from services.support.redis.server import RedisServer
from services.support.workloads.random_versions import writer_on
from tidegate.errors import CorruptError
from tidegate.sinks.redis.client.aio.channel import Channel
from tidegate.sinks.redis.client.functions import library_name
from tidegate.sinks.redis.client.servers import Opened

ROOT = Path(tidegate.__file__).resolve().parents[2]
FILES_MAX = 13
"""How many files of the package a warm read of one key on one Redis server may pass: each is one subject.

A ratchet. Forks, deadlines, steps and the forms of replies have files of their own.
"""
LOOK, READ = (f"{library_name()}_{name}" for name in ("pointer", "read"))


@pytest.fixture
def writer(redis: RedisServer, tmp_path):
    example = writer_on(redis.url, tmp_path)
    yield example
    example.driver.store.drop()
    example.close()


@pytest.fixture
def proxy(redis: RedisServer) -> Iterator[RedisProxy]:
    with RedisProxy(("127.0.0.1", redis.port)) as made:
        yield made


def flights(n):
    return {"carrier": "UA", "flights": n}


def url_of(proxy: RedisProxy) -> str:
    host, port = proxy.address
    return f"redis://{host}:{port}"


@BOTH
def test_rows_are_asked_for_before_the_pointer_has_answered(connect, writer, proxy):
    writer.write({"aircraft": {"N1": flights(1), "N2": flights(2)}})
    reader = connect(url_of(proxy), writer.driver.endpoints.namespace)
    wanted = {"N1": flights(1), "N2": flights(2)}
    assert [reader.table("aircraft").get_many(["N1", "N2"]) for _ in range(2)] == [
        wanted,
        wanted,
    ]  # the server is known
    for ask, answer, reads in (
        (lambda: reader.table("aircraft").get("N1"), flights(1), 1),
        (lambda: reader.table("aircraft").get_many(["N1", "N2"]), wanted, 2),
    ):
        answers: list[object] = []
        seen = proxy.plain.count(f"FCALL_RO {READ}")
        held = proxy.hold_reply("FCALL_RO", LOOK)
        thread = threading.Thread(target=lambda ask=ask, answers=answers: answers.append(ask()))
        thread.start()
        held.arrived()
        proxy.plain.wait_count(f"FCALL_RO {READ}", seen + reads)
        assert not answers
        held.release()
        thread.join(60)
        assert answers == [answer]
    reader.close()


@BOTH
def test_each_read_is_of_the_version_that_is_newest_then(connect, writer, redis):
    """Of a version that was published meanwhile, retired ones between them, and of tables that it brought."""
    writer.write({"aircraft": {"N1": flights(0)}})
    reader = connect(redis.url, writer.driver.endpoints.namespace)
    for n in range(1, 4):
        assert reader.table("aircraft").get("N1") == flights(n - 1)
        writer.write(
            {"aircraft": {"N1": flights(n), f"M{n}": flights(n)}, "legs": {("EWR", n): {"dest": "IAH"}}}
        )
        assert reader.table("legs").get(("EWR", n)) == {"dest": "IAH"}
        writer.write({"aircraft": {f"M{n}": None}})
        assert reader.table("aircraft").get_many(["N1", f"M{n}"]) == {"N1": flights(n)}
    for n in range(10):  # more than are kept
        writer.write({"aircraft": {"N1": flights(n)}})
    writer.driver.store.announce(writer.driver.folded.last_version)
    assert reader.table("aircraft").get("N1") == flights(9)
    reader.close()


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The requests of both clients: a pipeline is one of them."""
    sent: list[int] = []
    send, send_async = Opened.send_packed_command, Channel.send

    def counted(self, command, *args, **kwargs):
        sent.append(len(command))
        return send(self, command, *args, **kwargs)

    async def counted_async(self, contents, *limit):
        sent.append(len(contents))
        return await send_async(self, contents, *limit)

    monkeypatch.setattr(Opened, "send_packed_command", counted)
    monkeypatch.setattr(Channel, "send", counted_async)
    return sent


@BOTH
def test_a_warm_read_takes_one_round_trip_and_two_after_a_new_version(connect, writer, redis, trips):
    """Of keys of several tables, too. The entry of the new version comes with its pointer."""
    rows = {
        "aircraft": {f"N{n}": flights(n) for n in range(40)},
        "legs": {("EWR", n): {"dest": "IAH"} for n in range(40)},
        "notes": {b"%d" % n: b"note" for n in range(41)},
    }
    keys = {table: [*of_table, next(iter(of_table))] for table, of_table in rows.items()}
    writer.write(rows)
    reader = connect(redis.url, writer.driver.endpoints.namespace)
    ways = {
        "get": (lambda: reader.table("aircraft").get("N1"), lambda: rows["aircraft"]["N1"]),
        "get_many": (
            lambda: reader.table("legs").get_many(list(rows["legs"])),
            lambda: rows["legs"],
        ),
        "several tables": (lambda: reader.get_many(keys), lambda: rows),
    }
    for version in range(2, 5):
        for name, (ask, wanted) in ways.items():
            assert ask() == wanted(), name
            trips.clear()
            assert ask() == wanted(), name
            assert len(trips) == 1, name
            if connect is tidegate.connect:  # the writer's own requests are counted, too
                rows["aircraft"]["N1"] = flights(1000 * version + len(name))
                writer.write({"aircraft": {"N1": rows["aircraft"]["N1"]}})
                trips.clear()
                assert ask() == wanted(), name
                assert len(trips) == 2, name
    for n in range(10):  # more than are kept: the version that was read last is retired
        rows["aircraft"]["N1"] = flights(-n)
        writer.write({"aircraft": {"N1": flights(-n)}})
    writer.driver.store.announce(writer.driver.folded.last_version)
    for name, (ask, wanted) in ways.items():
        trips.clear()
        assert ask() == wanted(), name
        assert len(trips) <= 2, name
    reader.close()


@BOTH
def test_an_entry_of_another_version_does_not_count(connect, writer, redis):
    """As after a flip by a writer of an older release, which does not renew it: the catalog has the entry."""
    namespace = writer.driver.endpoints.namespace
    writer.write({"aircraft": {"N1": flights(1)}})
    older = redis.ask("HGET", f"tg:{{{namespace}}}:meta", "latest")
    reader = connect(redis.url, namespace)
    for n in range(2, 4):
        writer.write({"aircraft": {"N1": flights(n)}, "legs": {("EWR", n): {"dest": "IAH"}}})
        redis.ask("HSET", f"tg:{{{namespace}}}:meta", "latest", older)
        assert reader.table("legs").get(("EWR", n)) == {"dest": "IAH"}
        assert reader.table("aircraft").get("N1") == flights(n)
    redis.ask("HDEL", f"tg:{{{namespace}}}:meta", "latest")
    writer.write({"aircraft": {"N1": flights(9)}})
    redis.ask("HDEL", f"tg:{{{namespace}}}:meta", "latest")
    assert reader.table("aircraft").get("N1") == flights(9)
    redis.ask("HSET", f"tg:{{{namespace}}}:meta", "latest", "no entry")
    writer.write({"aircraft": {"N1": flights(10)}})
    redis.ask("HSET", f"tg:{{{namespace}}}:meta", "latest", "no entry")
    with pytest.raises(CorruptError):
        reader.table("aircraft").get("N1")
    reader.close()


@BOTH
def test_on_a_cluster_too(connect, redis_cluster: RedisGroup, tmp_path):
    """There pointer and rows are on several servers."""
    writer = writer_on(redis_cluster.url, tmp_path)
    rows = {f"N{n}": flights(n) for n in range(40)}
    reader = None
    try:
        for version in range(1, 4):
            rows[f"N{version}"] = flights(-version)
            writer.write({"aircraft": rows})
            reader = reader or connect(redis_cluster.url, writer.driver.endpoints.namespace)
            for _ in range(2):
                assert {key: reader.table("aircraft").get(key) for key in rows} == rows
                assert reader.table("aircraft").get_many(list(rows)) == rows
    finally:
        if reader is not None:
            reader.close()
        writer.driver.store.drop()
        writer.close()


def test_a_warm_read_passes_few_files(writer):
    """A read can be followed through the code in few files; docs/reading-the-code.md lists them."""
    writer.write({"aircraft": {"N1": flights(1)}})
    passed = set()

    def note(frame, event, _):
        if event == "call":
            passed.add(Path(frame.f_code.co_filename))

    with tidegate.connect(writer.driver.endpoints.store, writer.driver.endpoints.namespace) as gate:
        table = gate.table("aircraft")
        assert table.get("N1") == table.get("N1") == flights(1)  # its schema and its server are known now
        sys.setprofile(note)
        try:
            table.get("N1")
        finally:
            sys.setprofile(None)
    rooms = [ROOT / room for room in ("src", "sinks", "wal", "committers", "spark")]
    own = {path for path in passed if any(path.resolve().is_relative_to(room) for room in rooms)}
    assert {path.name for path in own} >= {"table.py", "flow.py", "calls.py"}
    assert len(own) <= FILES_MAX, " ".join(sorted(path.name for path in own))
