"""The reader in Go, readers/go: the conformance program, and faults that need a server of a test's own."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Iterator

import pytest
from cassandra.concurrent import execute_concurrent_with_args

from services.support.go import BUILD_S, built, go_program
from services.support.redis.proxy import RedisProxy
from services.support.servers import ROOT
from services.support.workloads.random_versions import writer_on
from support.wait import wait_until
from tidegate.committers.operations.local_coordinator import followers_in
from tidegate.committers.steps.retire import retire_up_to
from tidegate.options import LEASES_MAX, Options
from tidegate.options.endpoints import parse_store
from tidegate.sinks.redis.client.functions import library_name
from tidegate.testing.conformance.program import Reader, ReaderRaisedError
from tidegate.testing.conformance.refusals import ON_SQLITE
from tidegate.testing.conformance.run import PASSED, conformance
from tidegate.testing.conformance.vectors.faults import FAULTS
from tidegate.testing.example import BATCHES, Example, write_flights

FOLDER = ROOT / "readers" / "go"
RUN_S = 60
FULL = "OOM command not allowed when used memory > 'maxmemory'."
LOOK, READ = (f"{library_name()}_{name}" for name in ("pointer", "read"))

pytestmark = [
    pytest.mark.xdist_group("go"),
    pytest.mark.timeout(BUILD_S + 100),
]  # built once, by the first test


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> str:
    return str(built(FOLDER, "./cmd/conformance", tmp_path_factory.mktemp("go")))


@pytest.fixture
def reader(program, tmp_path) -> Iterator[Reader]:
    with Reader(program, tmp_path / "errors") as started:
        yield started


@pytest.fixture
def writer(redis, tmp_path) -> Iterator[Example]:
    example = writer_on(redis.url, tmp_path)
    yield example
    example.driver.store.drop()
    example.close()


def flights(n: int) -> dict[str, object]:
    return {"carrier": "UA", "flights": n}


def connect(reader: Reader, writer: Example, url: str = "", **options: object) -> None:
    where = writer.driver.endpoints
    reader.ask("connect", url=url or where.store, namespace=where.namespace, options=options)


def error_of(reader: Reader, do: str, **arguments: object) -> str:
    with pytest.raises(ReaderRaisedError) as raised:
        reader.ask(do, **arguments)
    return raised.value.name


def url_of(proxy: RedisProxy) -> str:
    return "redis://{}:{}".format(*proxy.address)


def test_its_own_tests():
    command = [go_program(), "test", "./..."]  # with the part of vet that never errs
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_of_its_readme(private_redis, tmp_path):
    source = (FOLDER / "cmd" / "example" / "main.go").read_text()
    (block,) = (FOLDER / "README.md").read_text().split("```go\n")[1:]
    assert block.partition("```")[0] == source.replace("\t", "    ")
    server = private_redis()
    write_flights(f"file://{tmp_path}/wal", server.url)
    example = built(FOLDER, "./cmd/example", tmp_path)
    done = subprocess.run(
        [str(example), server.url], capture_output=True, text=True, timeout=RUN_S, check=False
    )
    lines = done.stdout.splitlines()
    assert (lines[:2], sorted(lines[2:])) == (["UA 2", "3 true IAH"], ["EWR 1.5", "JFK -1", "LGA 4"]), (
        done.stderr
    )


def test_it_passes_every_check(program, redis):
    results = conformance(program, redis.url)
    assert [result.name for result in results if result.outcome != PASSED] == [*ON_SQLITE]


@pytest.mark.slow
def test_on_a_cluster(program, redis_cluster):
    results = conformance(program, redis_cluster.url)
    assert [result.name for result in results if result.outcome != PASSED] == [*ON_SQLITE, *FAULTS]


@pytest.mark.slow
def test_on_cassandra(program, cassandra_tables):
    results = conformance(program, cassandra_tables)
    assert [result for result in results if result.outcome == "failed"] == []


@pytest.mark.slow
def test_on_cassandra_a_scan_has_pages_and_no_lease_is_taken_that_would_not_hold(
    reader, cassandra, cassandra_tables, tmp_path
):
    """Of more leases than ``LEASES_MAX`` the writer counts none. A lost version is no absent row."""
    options = Options(key_groups=8, allow_unsafe=True)
    example = Example(
        f"file://{tmp_path}/wal", cassandra_tables, f"n{uuid.uuid4().hex[:12]}", options=options
    )
    connect(reader, example)
    assert reader.ask("snapshot")["version"] == 0
    many = {f"N{n}": flights(n) for n in range(6_000)}  # more than a page of a key group
    example.write({"aircraft": many})
    rows = reader.ask("scan", table="aircraft")["rows"]
    assert {key: row["flights"] for (key,), row in rows} == {f"N{n}": str(n) for n in range(6_000)}
    assert len(rows) == 6_000
    held = reader.ask("snapshot")["snapshot"]
    keyspace, now_ms = cassandra_tables.rpartition("/")[2], int(time.time() * 1e3)
    with cassandra.session(keyspace) as session:
        statement = "SELECT space FROM tidegate_namespaces WHERE name = %s"
        space = session.execute(statement, [example.driver.endpoints.namespace]).one().space
        columns = "space, expires_at, lease_id, version, taken_at"
        insert = session.prepare(f"INSERT INTO tidegate_leases ({columns}) VALUES (?, ?, ?, ?, ?)")
        leases = [(space, now_ms + 60_000, f"l{at}", 1, now_ms) for at in range(LEASES_MAX)]
        execute_concurrent_with_args(session, insert, leases, concurrency=16)
        unleased = reader.ask("snapshot")["snapshot"]
        assert len(reader.ask("scan", table="aircraft", snapshot=unleased)["rows"]) == 6_000
        session.execute("UPDATE tidegate_pointers SET visible = 0 WHERE space = %s", [space])
    lost = {"table": "aircraft", "snapshot": held}
    assert error_of(reader, "get", key=["absent"], **lost) == "VersionRegressedError"
    assert error_of(reader, "scan", **lost) == "VersionRegressedError"
    example.driver.store.drop()
    example.close()


def test_a_warm_read_of_several_tables_takes_one_round_trip(reader, writer, redis):
    """Rows are asked for before the pointer answers. The entry of a new version comes with its pointer."""
    keys = {"aircraft": [["N1"], ["N2"]], "legs": [["EWR", "1"]]}
    with RedisProxy(("127.0.0.1", redis.port)) as proxy:
        for version in range(1, 4):
            writer.write({"aircraft": {"N1": flights(version)}, "legs": {("EWR", 1): {"dest": "IAH"}}})
            if version == 1:
                connect(reader, writer, url_of(proxy))
            catalog = proxy.seen("FCALL_RO", f"{library_name()}_catalog")
            rows = reader.ask("get_many", keys=keys)["rows"]
            assert rows == {
                "aircraft": [{"carrier": "UA", "flights": str(version)}, None],
                "legs": [{"dest": "IAH"}],
            }
            assert proxy.seen("FCALL_RO", f"{library_name()}_catalog") == catalog
        seen, held = proxy.seen("FCALL_RO", READ), proxy.hold_reply("FCALL_RO", LOOK)
        reader.send("get_many", keys=keys)
        held.arrived()
        proxy.wait_seen(seen + 2, "FCALL_RO", READ)
        held.release()
        assert reader.receive()["rows"] == rows


def test_a_version_that_is_retired_while_it_is_read_is_read_again_at_a_newer_one(reader, writer, redis):
    writer.write({"aircraft": {"N1": flights(0)}})
    with RedisProxy(("127.0.0.1", redis.port)) as proxy:
        connect(reader, writer, url_of(proxy))
        reader.ask("get", table="aircraft", key=["N1"])
        held = proxy.hold_request("FCALL_RO", READ)
        reader.send("get", table="aircraft", key=["N1"])
        held.arrived()
        for n in range(1, 12):  # more than are kept
            writer.write({"aircraft": {"N1": flights(n)}})
        driver = writer.driver
        retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False, 0)
        held.release()
        assert reader.receive()["value"] == {"carrier": "UA", "flights": "11"}


def test_a_scan_leaves_a_version_that_is_retired_before_its_first_row(reader, writer, redis):
    """The server takes no leases."""
    writer.write({"aircraft": {"N1": flights(0)}})
    with RedisProxy(("127.0.0.1", redis.port)) as proxy:
        connect(reader, writer, url_of(proxy))
        proxy.refuse_with(FULL, "FCALL", f"{library_name()}_lease", times=None)
        held = proxy.hold_request("FCALL_RO", f"{library_name()}_scan")
        reader.send("scan", table="aircraft")
        held.arrived()
        for n in range(1, 12):  # more than are kept
            writer.write({"aircraft": {"N1": flights(n)}})
        driver = writer.driver
        retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False, 0)
        held.release()
        assert reader.receive() == {"version": 12, "rows": [[["N1"], {"carrier": "UA", "flights": "11"}]]}


def test_a_server_that_gets_its_first_replica_is_the_same(reader, private_redis, tmp_path):
    """It takes another replication id, and is the process that the pointer lists."""
    server, replica = private_redis(), private_redis()
    example = Example(f"file://{tmp_path}/wal", server.url)
    example.write(BATCHES[0])
    connect(reader, example)
    before = server.info("replication")["master_replid"]
    replica.ask("REPLICAOF", "127.0.0.1", server.port)
    wait_until(lambda: server.info("replication")["master_replid"] != before, "it has another id")
    assert reader.ask("get", table="aircraft", key=["N14228"])["value"] == {"carrier": "UA", "flights": "1"}
    example.close()


def test_tls_and_a_login(reader, private_redis, tmp_path):
    server = private_redis(tls=True, users={"reader": "on >secret ~* &* +@all"})
    example = Example(f"file://{tmp_path}/wal", [parse_store(server.url, server.tls_settings)])
    example.write(BATCHES[0])
    given = server.tls_settings
    connect(reader, example, server.url_for("reader", "secret"), **given)
    assert reader.ask("get", table="aircraft", key=["N14228"])["value"]
    wrong = server.url_for("reader", "wrong")
    assert error_of(reader, "connect", url=wrong, namespace="flights", options=given) == "ConfigError"
    example.close()


def test_a_removed_store_is_left_only_on_request(reader, private_redis, tmp_path):
    removed, successor = private_redis(), private_redis()
    example = Example(f"file://{tmp_path}/wal", [f"old={removed.url}", f"new={successor.url}"])
    followers = followers_in(example.driver)
    example.write(BATCHES[0])
    assert all(follower.catch_up().error == "" for follower in followers)
    connect(reader, example, removed.url)
    note = {"removed_after": 1, "removed_at_us": 1, "successor": successor.url}
    removed.ask("HSET", "tg:{flights}:meta", "writer", json.dumps(note))
    assert error_of(reader, "get", table="aircraft", key=["N14228"]) == "StoreRemovedError"
    connect(reader, example, removed.url, follow_redirects=True)  # only where its own URL leads
    assert error_of(reader, "get", table="aircraft", key=["N14228"]) == "StoreRemovedError"
    connect(reader, example, removed.url, follow_redirects=[f"127.0.0.1:{successor.port}"])
    assert reader.ask("get", table="aircraft", key=["N14228"])["value"] == {"carrier": "UA", "flights": "1"}
    example.close()


@pytest.mark.slow
def test_a_failover_of_sentinels(reader, redis_sentinel, tmp_path):
    example = Example(f"file://{tmp_path}/wal", redis_sentinel.url)
    example.write(BATCHES[0])
    connect(reader, example)
    assert reader.ask("get", table="aircraft", key=["N14228"])["value"]
    redis_sentinel.failover()
    example.write(BATCHES[1])  # the writer compares the new primary
    assert reader.ask("get", table="aircraft", key=["N14228"])["value"] == {"carrier": "UA", "flights": "2"}
    assert len(reader.ask("scan", table="airports")["rows"]) == 2
    example.driver.store.drop()
    example.close()
    redis_sentinel.heal()
