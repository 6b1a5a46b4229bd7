"""The reader in Java, readers/java, beside the one in Python on the same data."""

import contextlib
import datetime
import json
import queue
import re
import shlex
import socket
import ssl
import struct
import subprocess
import threading

import msgspec
import pytest

import tidegate
from services.support.certificates import make_certificates, make_of_another
from services.support.jars import java
from services.support.java_reader import (
    FLAGS,
    FOLDER,
    PROGRAM,
    canonical,
    check_all,
    class_path,
    command_of,
    java_reader,
    refused,
    same,
)
from services.support.redis.proxy import RedisProxy
from services.support.servers import ROOT
from tidegate.committers.operations.alias import checked_target, set_alias
from tidegate.committers.steps.retire import retire_up_to
from tidegate.keys.groups import key_group
from tidegate.options import Options, parse_store
from tidegate.sinks.redis.client.functions import library_name
from tidegate.sinks.rules.removal import Removal
from tidegate.testing.conformance.program import ReaderRaisedError
from tidegate.testing.example import BATCHES, Example
from tidegate.testing.store.harness import ManualClock
from tidegate.wal.record import JSON_RENAMED, JSON_STATES, Column, StateColumns, TableSchema

BUILD_S = 460
pytestmark = [
    pytest.mark.xdist_group("java"),
    pytest.mark.timeout(BUILD_S),
]  # built once, the first time fetched


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    with java_reader(tmp_path_factory.mktemp("java")) as reader:
        yield reader


@pytest.fixture
def flights(redis, namespace, tmp_path):
    example = Example(f"file://{tmp_path}/wal", redis.url, namespace)
    yield example
    example.close()


# -- the vectors -------------------------------------------------------------------------------------


def vectors(name):
    return json.loads((ROOT / "conformance" / "vectors" / f"{name}.json").read_text())


def test_the_vectors_of_keys(program):
    for vector in vectors("keys"):
        key = {"types": vector["types"], "values": vector["values"]}
        for group in vector.get("groups", ()):
            wanted = {"bytes": vector["bytes"], "key_group": group.pop("key_group")}
            assert program.ask("encode_key", **key, **group) == wanted, vector
        if "error" in vector:
            refused(program, vector["error"], "encode_key", **key, key_groups=1, stride=1)


@pytest.mark.parametrize("of", ["values", "schemas"])
def test_the_vectors_of_values(program, of):
    wrong = []
    for vector in vectors(of) if of == "values" else vectors(of)["schemas"]:
        stored = {name: vector[name] for name in ("schema", "stored", "decided_at_us")}
        try:
            answer = program.ask("decode_value", **stored)
        except ReaderRaisedError as error:
            answer = error.name
        types = json.dumps(vector["schema"])
        floats = "float" in types or "double" in types
        if not equal(answer, vector.get("error", vector.get("value")), floats=floats):
            wrong.append((vector, answer))
    assert not wrong, "\n".join(map(str, wrong))


LONG = "k" * 60_000
DEEP = 100


def nested(inner, wrap):
    for _ in range(DEEP):
        inner = wrap(inner)
    return inner


@pytest.mark.parametrize(
    "kind, value",
    [
        ("map<string,bigint>", {LONG: 7}),
        (
            nested("bigint", lambda inner: f"struct<f:{inner}>"),
            nested(7, lambda inner: {"f": inner}),
        ),
    ],
    ids=["a long key of a map", "a type of 100 levels"],
)
def test_values_that_are_long_or_deep(program, kind, value):
    schema = {
        "key": [{"name": "k", "type": "int"}],
        "value": [{"name": "v", "type": kind}],
        "value_format": "json",
    }
    stored = b"+" + json.dumps({"v": value}).encode()
    answer = program.ask("decode_value", schema=schema, stored=stored.hex(), decided_at_us=0)
    assert same(answer, {"v": value})


def test_the_vectors_of_types(program):
    for vector in vectors("schemas")["types"]:
        schema = {
            "key": [{"name": "k", "type": "int"}],
            "value": [{"name": "v", "type": vector["type"]}],
            "value_format": "json",
        }
        assert program.ask("decode_value", schema=schema, stored=b"+{}".hex(), decided_at_us=0) == {
            "v": None
        }, vector


@pytest.fixture
def proxy(redis):
    with RedisProxy(("127.0.0.1", redis.port)) as made:
        yield made


def url_of(proxy):
    host, port = proxy.address
    return f"redis://{host}:{port}"


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    "vector", [pytest.param(each, id=f"{each['call']}-{each['reply']}") for each in vectors("refusals")]
)
def test_the_vectors_of_refusals(program, proxy, namespace, flights, vector):
    """Redis answers one call, or all of them, with an error."""
    flights.write(BATCHES[0])
    program.ask("connect", url=url_of(proxy), namespace=namespace, options={"timeout_s": 2})
    asked = {"lease": {"do": "snapshot"}}.get(
        vector["call"], {"do": "get", "table": "aircraft", "key": ["N14228"]}
    )

    def ask():
        answer = program.ask(**asked)
        if "snapshot" in answer:
            program.ask("release", snapshot=answer["snapshot"])
        return answer["version"]

    assert ask() == 1
    refusal = (
        vector["reply"],
        "FCALL" if vector["call"] == "lease" else "FCALL_RO",
        f"{library_name()}_{vector['call']}",
    )
    if vector["does"] != "refuse":
        proxy.refuse_with(*refusal)
        if vector["does"] != "send it again with the server's id":  # no server that is listed has that id
            assert ask() == 1
    proxy.clear()
    rule = proxy.refuse_with(*refusal, times=None)
    if vector["does"] == "go on without a lease":
        assert ask() == 1
    else:
        if vector["error"] == "StoreUnavailableError":
            program.ask("connect", url=url_of(proxy), namespace=namespace, options={"timeout_s": 0.1})
        refused(program, vector["error"], **asked)
    assert rule.hits >= 1


def equal(answer, wanted, *, floats):
    """Whether two canonical values are equal: maps in any order, and, with ``floats``, texts as numbers."""
    if isinstance(answer, dict) and isinstance(wanted, dict):
        return answer.keys() == wanted.keys() and all(
            equal(answer[name], wanted[name], floats=floats) for name in wanted
        )
    if isinstance(answer, list) and isinstance(wanted, list):
        left = list(answer)
        for each in wanted:
            left = (
                left[
                    : (
                        at := next(
                            (i for i, one in enumerate(left) if equal(one, each, floats=floats)), len(left)
                        )
                    )
                ]
                + left[at + 1 :]
            )
        return not left and len(answer) == len(wanted)
    if floats and isinstance(answer, str) and isinstance(wanted, str) and answer != wanted:
        with contextlib.suppress(ValueError):
            return struct.pack("f", float(answer)) == struct.pack("f", float(wanted))
    return answer == wanted


# -- the same rows -----------------------------------------------------------------------------------


def test_both_read_the_same(program, redis, namespace, flights):
    """Versions, deletes, several tables; a snapshot keeps its version while newer ones are written."""
    flights.write(BATCHES[0])
    assert program.ask("connect", url=redis.url, namespace=namespace)["namespace"] == namespace
    held = program.ask("snapshot")
    with tidegate.connect(redis.url, namespace) as gate, gate.snapshot() as first:
        for rows in BATCHES[1:]:
            flights.write(rows)
            assert program.ask("version") == gate.version()
            with gate.snapshot() as now:
                check_all(program, now, now.tables())
        check_all(program, first, first.tables(), snapshot=held["snapshot"])
        assert program.ask("get", table="aircraft", key=["N24211"])["value"] is None  # deleted
        assert program.ask("release", snapshot=held["snapshot"])
        older = program.ask("snapshot", version=2)
        with gate.snapshot(version=2) as second:
            check_all(program, second, second.tables(), snapshot=older["snapshot"])


TYPED = TableSchema(
    (Column("id", "bigint"), Column("at", "timestamp")),
    (
        *(
            Column(name, name)
            for name in ("string", "binary", "boolean", "tinyint", "bigint", "float", "double")
        ),
        Column("dec", "decimal(38,10)"),
        *(Column(name, name) for name in ("date", "timestamp", "timestamp_ntz", "interval day", "void")),
        Column("list", "array<struct<x y:int,ké:decimal(4,2)>>"),
        Column("days", "map<date,timestamp>"),
        Column("numbers", "map<bigint,array<double>>"),
    ),
)
AT = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.timezone.utc)
TYPED_ROWS = {
    (2**63 - 1, AT): {
        "string": "käse ✓ \u0000",
        "binary": "AAH/",
        "boolean": True,
        "tinyint": -128,
        "bigint": -(2**63),
        "float": msgspec.Raw(b"0.1"),
        "double": "NaN",
        "dec": msgspec.Raw(b"-99999999999999999999999999.9999999999"),
        "date": "0001-01-01",
        "timestamp": "9999-12-31T23:59:59.999999Z",
        "timestamp_ntz": "1969-12-31T23:59:59.000001",
        "interval day": "INTERVAL '3' DAY",
        "void": None,
        "list": [{"x y": 1, "ké": msgspec.Raw(b"1.5")}, None, {"x y": None}],
        "days": {"10957": "2000-01-01T00:00:00.000000Z"},
        "numbers": {"9007199254740993": [1.5, "Infinity", None, msgspec.Raw(b"1e+20"), 3]},
    },
    (-1, AT): {"dec": msgspec.Raw(b"1.000E-7"), "double": msgspec.Raw(b"1.7976931348623157E308"), "more": 1},
}


def test_every_type(program, redis, namespace, flights):
    flights.schemas["typed"] = TYPED
    flights.write({"typed": TYPED_ROWS})
    program.ask("connect", url=redis.url, namespace=namespace)
    with tidegate.connect(redis.url, namespace) as gate, gate.snapshot() as now:
        assert check_all(program, now, ["typed"]) == 2
        found = program.ask("get", table="typed", key=[str(2**63 - 1), canonical(AT)])["value"]
    assert found["dec"] == "-99999999999999999999999999.9999999999"
    assert found["bigint"] == str(-(2**63))
    assert found["list"] == [{"x y": "1", "ké": "1.50"}, None, {"x y": None, "ké": None}]


def test_renamed_columns_and_older_states(program, redis, namespace, flights):
    renamed = TableSchema(
        (Column("id", "string"),), (Column("new", "int", "old"), Column("old", "int", "f2")), JSON_RENAMED
    )
    states = TableSchema(
        (Column("id", "string"),),
        (Column("n", "string", "n@2"),),
        JSON_STATES,
        2,
        (StateColumns(1, (Column("n", "int"),)),),
    )
    flights.schemas |= {"renamed": renamed}
    flights.write({"renamed": {"a": {"new": 1, "old": 2}}})
    flights.schemas |= {"states": TableSchema((Column("id", "string"),), (Column("n", "int"),))}
    flights.write({"states": {"one": {"n": 7}}})
    flights.schemas |= {"states": states}
    flights.write({"states": {"two": {"n": "7"}}})
    program.ask("connect", url=redis.url, namespace=namespace)
    with tidegate.connect(redis.url, namespace) as gate, gate.snapshot() as now:
        check_all(program, now, ["renamed", "states"])
    assert program.ask("get", table="states", key=["one"])["value"] == {"n": "7"}


@pytest.mark.slow
def test_merged_layers_and_emptied_tables(program, redis, namespace, tmp_path):
    """A scan reads base and layers, of more rows than one page; a table starts where it was emptied."""
    options = Options(key_groups=2, keep_versions=2, table_key_groups={"legs": 1})
    flights = Example(f"file://{tmp_path}/wal", redis.url, namespace, options=options)
    many = {f"N{number}": {"carrier": "UA", "flights": number} for number in range(2_500)}
    flights.write({"aircraft": many, "legs": {("EWR", number): {"dest": "IAH"} for number in range(50)}})
    program.ask("connect", url=redis.url, namespace=namespace)
    for number in range(2, 8):
        some = {
            f"N{each}": None if each % 7 == 0 else {"carrier": "B6", "flights": number}
            for each in range(number, 1_000, number)
        }
        flights.write({"aircraft": some, "legs": {}}, frozenset({"legs"}) if number == 4 else frozenset())
        retire(flights)
        with tidegate.connect(redis.url, namespace) as gate, gate.snapshot() as now:
            assert program.ask("wait_for", version=number, timeout_s=5) == number
            check_all(program, now, ["aircraft", "legs"])
    for number in range(2):  # the second time with rows in layers
        flights.write({"legs": {("JFK", number): {"dest": "MIA"}}}, frozenset({"legs"}))
        with tidegate.connect(redis.url, namespace) as gate, gate.snapshot() as now:
            check_all(program, now, ["legs"], absent=[("JFK", 1 - number), ("EWR", 1)])
    flights.close()


def test_what_has_expired_is_absent(program, redis, namespace, tmp_path):
    """By the version's time, as for the one in Python."""
    clock, keys = ManualClock(), ["N1", "N2"]
    options = Options(key_groups=8, ttl={"aircraft": "1 h"})
    flights = Example(f"file://{tmp_path}/wal", redis.url, namespace, options=options, clock=clock)
    rows = {key: {"carrier": "UA", "flights": 1} for key in keys}
    for some in (rows, {"N2": rows["N2"]}, {}):
        flights.write({"aircraft": some})
        program.ask("connect", url=redis.url, namespace=namespace)
        with tidegate.connect(redis.url, namespace) as gate, gate.snapshot() as now:
            there = dict(now.table("aircraft").scan()).keys()
            check_all(program, now, ["aircraft"], absent={*keys} - there)
        clock.advance(2_400)
    assert there == {"N2"}
    flights.close()


def test_tables_with_fewer_key_groups(program, redis, namespace, tmp_path):
    options = Options(key_groups=8, table_key_groups={"aircraft": 2})
    flights = Example(f"file://{tmp_path}/wal", redis.url, namespace, options=options)
    rows = {f"N{number}": {"carrier": "UA", "flights": number} for number in range(20)}
    flights.write({"aircraft": rows})
    program.ask("connect", url=redis.url, namespace=namespace)
    with tidegate.connect(redis.url, namespace) as gate, gate.snapshot() as now:
        assert check_all(program, now, ["aircraft"]) == 20
    encoded = program.ask("encode_key", types=["string"], values=["N7"], key_groups=8, stride=4)
    assert (encoded["bytes"], encoded["key_group"]) == (b"N7".hex(), key_group(b"N7", 8, 4))
    flights.close()


# -- versions and aliases ----------------------------------------------------------------------------


def test_by_an_alias(program, redis, namespace, flights, tmp_path):
    """A read that begins after a flip reads the new namespace; a snapshot from before it stays."""
    flights.write(BATCHES[0])
    other = Example(f"file://{tmp_path}/wal2", redis.url, f"{namespace}-b")
    other.write({"aircraft": {"N14228": {"carrier": "B6", "flights": 9}}})
    at, alias = parse_store(redis.url), f"{namespace}.live"
    set_alias(at, alias, checked_target(at, alias, namespace))
    assert program.ask("connect", url=redis.url, namespace=alias)["namespace"] == namespace
    held = program.ask("snapshot")["snapshot"]
    assert program.ask("get", table="aircraft", key=["N14228"])["value"]["carrier"] == "UA"
    set_alias(at, alias, checked_target(at, alias, f"{namespace}-b"))
    assert program.ask("get", table="aircraft", key=["N14228"])["value"] == {"carrier": "B6", "flights": "9"}
    assert program.ask("get", table="aircraft", key=["N14228"], snapshot=held)["value"]["carrier"] == "UA"
    other.close()


def retire(flights):
    driver = flights.driver
    retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)


def test_a_version_that_was_retired(program, redis, namespace, tmp_path):
    options = Options(key_groups=8, keep_versions=1)
    flights = Example(f"file://{tmp_path}/wal", redis.url, namespace, options=options)
    flights.write(BATCHES[0])
    program.ask("connect", url=redis.url, namespace=namespace)
    for _ in range(3):
        assert program.ask("get", table="aircraft", key=["N14228"])[
            "value"
        ]  # read again after it was retired
        flights.write({"aircraft": {"N14228": {"carrier": "UA", "flights": 2}}})
        retire(flights)
    refused(program, "SnapshotExpiredError", "snapshot", version=1)
    refused(program, "ConfigError", "snapshot", version=9)
    refused(program, "WaitTimeoutError", "wait_for", version=9, timeout_s=0.01)
    flights.close()


def test_a_scan_leaves_a_version_that_is_retired_before_its_first_row(program, proxy, namespace, flights):
    """The server takes no leases."""
    flights.write(BATCHES[0])
    program.ask("connect", url=url_of(proxy), namespace=namespace)
    full = "OOM command not allowed when used memory > 'maxmemory'."
    proxy.refuse_with(full, "FCALL", f"{library_name()}_lease", times=None)
    held = proxy.hold_request("FCALL_RO", f"{library_name()}_scan")
    program.send("scan", table="aircraft")
    held.arrived()
    for number in range(12):  # more than are kept
        flights.write({"aircraft": {"N14228": {"carrier": "UA", "flights": number}}})
    retire(flights)
    held.release()
    answer = program.receive()
    assert answer["version"] == 13
    assert [["N14228"], {"carrier": "UA", "flights": "11"}] in answer["rows"]


def test_a_snapshot_holds_its_version_and_ends_when_it_is_lost(program, redis, namespace, tmp_path):
    options = Options(key_groups=8, keep_versions=1)
    flights = Example(f"file://{tmp_path}/wal", redis.url, namespace, options=options)
    flights.write(BATCHES[0])
    program.ask("connect", url=redis.url, namespace=namespace)
    held = program.ask("snapshot")
    for number in range(3):
        flights.write({"aircraft": {"N14228": {"carrier": "UA", "flights": number}}})
        retire(flights)
    assert (
        program.ask("get", table="aircraft", key=["N14228"], snapshot=held["snapshot"])["value"]["flights"]
        == "1"
    )
    redis.ask("DEL", f"tg:{{{namespace}}}:leases")  # as a revoked lease
    retire(flights)
    for _ in range(2):
        refused(
            program,
            "SnapshotExpiredError",
            "get",
            table="aircraft",
            key=["N14228"],
            snapshot=held["snapshot"],
        )
    flights.close()


def test_a_lease_is_renewed_and_runs_out_while_the_store_is_away(program, proxy, namespace, flights):
    flights.write(BATCHES[0])
    program.ask("connect", url=url_of(proxy), namespace=namespace, options={"timeout_s": 0.2})
    held = program.ask("snapshot", lease_s=0.6)["snapshot"]
    read = {"table": "aircraft", "key": ["N14228"], "snapshot": held}
    proxy.wait_seen(5, "FCALL", f"{library_name()}_lease")  # longer than the lease
    assert program.ask("get", **read)["value"]
    proxy.down()
    for _ in range(100):
        with pytest.raises(ReaderRaisedError) as error:
            program.ask("get", **read)
        if error.value.name == "SnapshotExpiredError":
            break
    proxy.up()
    refused(program, "SnapshotExpiredError", "get", **read)  # and stays so
    program.ask("release", snapshot=held)


def test_a_gate_that_is_closed_releases_its_leases(program, redis, proxy, namespace, flights):
    """Snapshots that are still open pin nothing any more. A store that is away does not hold it up."""
    flights.write(BATCHES[0])
    program.ask("connect", url=redis.url, namespace=namespace)
    held = [program.ask("snapshot", lease_s=600)["snapshot"] for _ in range(3)]
    program.ask("release", snapshot=held[0])
    assert len(flights.driver.store.leases()) == 2
    program.ask("connect", url=url_of(proxy), namespace=namespace, options={"timeout_s": 0.2})
    assert flights.driver.store.leases() == []
    held = [program.ask("snapshot", lease_s=600)["snapshot"] for _ in range(3)]
    proxy.down()
    program.ask("connect", url=redis.url, namespace=namespace)
    refused(program, "ConfigError", "release", snapshot=held[0])
    assert len(flights.driver.store.leases()) == 3  # they run out by themselves


UNBLOCKED = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"


def test_a_wait_goes_on_after_a_failover(program, proxy, namespace, flights):
    flights.write(BATCHES[0])
    program.ask("connect", url=url_of(proxy), namespace=namespace)
    demoted = proxy.refuse_with(UNBLOCKED, "XREAD")
    program.send("wait_for", version=2, timeout_s=20)
    proxy.wait_seen(2, "XREAD")
    flights.write(BATCHES[1])
    assert (program.receive(), demoted.hits) == (2, 1)
    proxy.drop_request("XREAD", times=None)  # it never answers: the pointer decides
    refused(program, "WaitTimeoutError", "wait_for", version=9, timeout_s=0.1)


def test_a_call_may_come_back_to_a_store_that_the_gate_has_left(program, private_redis, tmp_path):
    """A namespace that is moved away, and back later. Two databases are its stores."""
    server = private_redis(settings={"databases": "2"})
    meta, stores = "tg:{flights}:meta", [f"{server.url}/{at}" for at in (0, 1)]
    with contextlib.closing(Example(f"file://{tmp_path}/wal", server.url)) as example:
        example.write(BATCHES[0])
    for key in server.ask("KEYS", "tg:{flights*"):
        server.ask("COPY", key, key, "DB", 1)
    writer = server.ask("HGET", meta, "writer")

    def move(away, to):
        server.ask("HSET", meta, "writer", Removal(1, 1, stores[to]).as_writer(), db=away)
        server.ask("HSET", meta, "writer", writer, db=to)

    program.ask("connect", url=stores[0], namespace="flights", options={"follow_redirects": True})
    for away, to in ((0, 1), (1, 0), (0, 1)):
        move(away, to)
        assert program.ask("get", table="aircraft", key=["N14228"])["version"] == 1
    server.ask("HSET", meta, "writer", Removal(1, 1, stores[0]).as_writer(), db=1)
    refused(program, "StoreRemovedError", "get", table="aircraft", key=["N14228"])  # in a circle


def test_a_warm_read_of_many_tables_is_one_round_trip(program, proxy, namespace, flights):
    """Pointer and reads are sent before the first reply. A new version costs one more, and no catalog."""
    flights.write(BATCHES[0])
    program.ask("connect", url=url_of(proxy), namespace=namespace)
    keys = {"aircraft": [["N14228"], ["N24211"]], "airports": [["EWR"]], "legs": [["EWR", "1545"]]}
    program.ask("get_many", keys=keys)
    pointer, read, catalog = (f"{library_name()}_{name}" for name in ("pointer", "read", "catalog"))
    before = proxy.seen("FCALL_RO", read)
    held = proxy.hold_reply("FCALL_RO", pointer)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(program.ask("get_many", keys=keys)))
    thread.start()
    held.arrived()
    proxy.wait_seen(before + 4, "FCALL_RO", read)
    assert not answers
    held.release()
    thread.join(60)
    assert answers[0]["version"] == 1
    seen = [proxy.seen("FCALL_RO", name) for name in (pointer, read, catalog)]
    flights.write(BATCHES[1])
    assert program.ask("get_many", keys=keys)["version"] == 2
    assert [proxy.seen("FCALL_RO", name) for name in (pointer, read, catalog)] == [
        seen[0] + 1,
        seen[1] + 8,
        seen[2],
    ]


def test_versions_never_go_back(program, redis, namespace, flights):
    meta = f"tg:{{{namespace}}}:meta"
    for rows in BATCHES:
        flights.write(rows)
    program.ask("connect", url=redis.url, namespace=namespace)
    assert program.ask("version") == 3
    redis.ask("HSET", meta, "visible", "2")
    refused(program, "VersionRegressedError", "get", table="aircraft", key=["N14228"])
    redis.ask("HSET", meta, "visible", "3", "digest", "another")
    refused(program, "VersionRegressedError", "version")


# -- refusals ----------------------------------------------------------------------------------------


def test_what_it_cannot_read_is_an_error(program, redis, namespace, flights):
    flights.write(BATCHES[0])
    program.ask("connect", url=redis.url, namespace=namespace)
    assert "airports" in refused(program, "ConfigError", "get", table="nowhere", key=["k"])
    refused(program, "ConfigError", "get", table="aircraft", key=["a", "b"])
    refused(program, "ConfigError", "get", table="legs", key=["EWR", "text"])
    refused(program, "ConfigError", "connect", url=redis.url, namespace=f"{namespace}-other")
    refused(program, "ConfigError", "connect", url="redis://u:secret@h:1/db?x=1", namespace="n")
    refused(
        program,
        "StoreUnavailableError",
        "connect",
        url="redis://127.0.0.1:1",
        namespace="n",
        options={"timeout_s": 0.2},
    )


def test_tampered_values(program, redis, namespace, flights):
    flights.write(BATCHES[0])
    program.ask("connect", url=redis.url, namespace=namespace)
    group = key_group(b"N14228", 8)
    for stored in (
        b"?{}",
        b'+{"flights":"x"}',
        b'+{"flights":3000000000}',
        b"e\x00",
        b"",
        b'+{"carrier":"UA"',
    ):
        redis.ask(
            "HSET",
            f"tg:{{{namespace}/{group}}}:aircraft:d:1:{flights.driver.folded.namespace}",
            "N14228",
            stored,
        )
        assert "N14228" in refused(program, "CorruptError", "get", table="aircraft", key=["N14228"])
        assert "N14228" in refused(program, "CorruptError", "scan", table="aircraft")


@pytest.mark.parametrize(
    "tampered, error",
    [
        (("HSET", "meta", "identity", '{"uuid":"u","name":"n","key_groups":8,"format":3}'), "ConfigError"),
        (("HDEL", "meta", "ready"), "ConfigError"),
        (("HSET", "meta", "visible", "0", "horizon", "4"), "StoreNotVerifiedError"),
        (("HSET", "meta", "servers", "another"), "StoreNotVerifiedError"),
        (("HSET", "meta", "visible", "x"), "CorruptError"),
        (
            ("HSET", "meta", "writer", '{"removed_after":1,"removed_at_us":1,"successor":"redis://h:1"}'),
            "StoreRemovedError",
        ),
    ],
)
def test_tampered_pointers(program, redis, namespace, flights, tampered, error):
    flights.write(BATCHES[0])
    command, of, *arguments = tampered
    redis.ask(command, f"tg:{{{namespace}}}:{of}", *arguments)
    if of == "meta" and arguments[0] in ("identity", "ready"):
        refused(program, error, "connect", url=redis.url, namespace=namespace)
    else:
        program.ask("connect", url=redis.url, namespace=namespace)
        for _ in range(2):  # the server's id is known from the first answer on
            refused(program, error, "get", table="aircraft", key=["N14228"])


@pytest.mark.parametrize("mark", ["u", "floor", "lost", "server", "gone"])
def test_tampered_headers(program, redis, namespace, flights, mark):
    flights.write(BATCHES[0])
    program.ask("connect", url=redis.url, namespace=namespace)
    assert program.ask("get", table="aircraft", key=["N14228"])["value"]
    header = f"tg:{{{namespace}/{key_group(b'N14228', 8)}}}:h"
    uuid = redis.ask("HGET", header, "u")
    match mark:
        case "u":
            redis.ask("HSET", header, "u", f"{uuid}!token", "lost", "1")
        case "floor":
            redis.ask("HSET", header, "floor", "9")
        case "lost":
            redis.ask("HSET", header, "l:aircraft", "1,0")
            redis.ask("DEL", f"tg:{{{namespace}/{key_group(b'N14228', 8)}}}:aircraft:d:1:{uuid}")
        case "server":
            redis.ask("HSET", header, "s", "another")
        case "gone":
            redis.ask("DEL", header)
    error = "SnapshotExpiredError" if mark == "floor" else "StoreNotVerifiedError"
    refused(program, error, "get", table="aircraft", key=["N14228"])
    refused(program, error, "scan", table="aircraft")


def test_a_server_that_was_not_compared_is_refused(program, private_redis, tmp_path):
    server = private_redis()
    example = Example(f"file://{tmp_path}/wal", server.url)
    example.write(BATCHES[0])
    program.ask("connect", url=server.url, namespace="flights")
    assert program.ask("get", table="aircraft", key=["N14228"])["value"]
    server.kill()
    server.restart()
    for _ in range(2):
        refused(program, "StoreNotVerifiedError", "get", table="aircraft", key=["N14228"])
    example.write(BATCHES[1])  # the writer compares it
    assert program.ask("get", table="aircraft", key=["N14228"])["value"]["flights"] == "2"
    example.driver.store.drop()
    refused(program, "StoreLostError", "get", table="aircraft", key=["N14228"])
    example.close()


def test_a_login_and_tls(program, private_redis, tmp_path):
    rights = "on >secret ~* &* +@read +@connection +fcall +fcall_ro"
    server = private_redis(tls=True, users={"reader": rights}, settings={"tls-auth-clients": "no"})
    url, trusted = server.url_for("reader", "secret"), str(server.tls_settings["ssl_ca_certs"])
    refused(
        program, "ConfigError", "connect", url=url, namespace="flights", options={"ssl_ca_certs": trusted}
    )
    wrong = server.url_for("reader", "wrong")
    message = refused(
        program, "ConfigError", "connect", url=wrong, namespace="flights", options={"ssl_ca_certs": trusted}
    )
    assert "refuses this user" in message
    assert "wrong" not in message
    untrusted = {"timeout_s": 0.5}
    refused(program, "StoreUnavailableError", "connect", url=url, namespace="flights", options=untrusted)


@pytest.mark.slow  # a process of its own
@pytest.mark.parametrize("named", ["here", "another host"])
def test_the_name_in_the_certificate_of_a_node_of_cassandra(program, tmp_path, named):
    """Only the host that was asked for gets a message, and so the login."""
    make_certificates(tmp_path / "tls")
    if named == "another host":
        make_of_another(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls" / "server.pem", tmp_path / "tls" / "server.key")
    seen = queue.Queue()

    def serve():
        client, _ = listener.accept()
        client.settimeout(60)
        try:
            with context.wrap_socket(client, server_side=True) as node:
                seen.put(node.recv(9))
        except OSError as error:
            seen.put(str(error))

    command, pipe, none = shlex.split(command_of(PROGRAM)), subprocess.PIPE, subprocess.DEVNULL
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        subprocess.Popen(command, stdin=pipe, stdout=none, stderr=none, text=True) as reader,
    ):
        threading.Thread(target=serve, daemon=True).start()
        url = f"cassandra://127.0.0.1:{listener.getsockname()[1]}/flights"
        options = {"timeout_s": 60, "ssl_ca_certs": str(tmp_path / "tls" / "ca.pem")}
        asked = {"id": 1, "do": "connect", "url": url, "namespace": "flights", "options": options}
        print(json.dumps(asked), file=reader.stdin, flush=True)
        try:
            first = seen.get(timeout=60)
        finally:
            reader.kill()
    if named == "here":
        assert isinstance(first, bytes), first
        assert first
    else:
        assert "certificate unknown" in str(first)


# -- what no server shows on demand ------------------------------------------------------------------


def test_the_checks_in_java(program):
    command = [java(), *FLAGS, "-cp", class_path(), "dev.tidegate.reader.Checks"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# -- the page ----------------------------------------------------------------------------------------


@pytest.mark.slow  # it is compiled
def test_the_example_of_the_readme(program, redis, namespace, flights, tmp_path):
    for rows in BATCHES:
        flights.write(rows)
    page = (FOLDER / "README.md").read_text()
    (source,) = re.findall(r"```java\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "Example.java"
    file.write_text(source.replace('"redis://localhost:6379", "flights"', f'"{redis.url}", "{namespace}"'))
    command = [java(), "-cp", class_path(), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert done.stdout == shown
