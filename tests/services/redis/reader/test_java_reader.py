"""The reader in Java, readers/java: the conformance program, and faults that need a proxy or a server."""

import contextlib
import json
import queue
import re
import shlex
import socket
import ssl
import subprocess
import threading

import pytest

from services.support.certificates import make_certificates, make_of_another
from services.support.jars import java
from services.support.java_reader import (
    FLAGS,
    FOLDER,
    PROGRAM,
    class_path,
    command_of,
    java_reader,
    refused,
)
from services.support.redis.proxy import RedisProxy
from services.support.servers import ROOT
from tidegate.committers.steps.retire import retire_up_to
from tidegate.keys.groups import key_group
from tidegate.sinks.redis.client.functions import library_name
from tidegate.sinks.rules.removal import Removal
from tidegate.testing.conformance.canonical import comparable_value
from tidegate.testing.conformance.refusals import ON_SQLITE
from tidegate.testing.conformance.run import FAILED, PASSED, conformance
from tidegate.testing.conformance.vectors.values import as_table, decoded
from tidegate.testing.example import BATCHES, Example

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


def test_it_passes_every_check(program, redis):
    """Rows, versions, aliases and refusals have their checks there, once for all readers."""

    def stop(result):
        assert result.outcome != FAILED, f"{result.name}: {result.text}"

    results = conformance(command_of(PROGRAM), redis.url, report=stop)
    assert [result.name for result in results if result.outcome != PASSED] == [*ON_SQLITE]


def vectors(name):
    return json.loads((ROOT / "conformance" / "vectors" / f"{name}.json").read_text())


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
    table = as_table(schema)
    assert comparable_value(table, answer) == comparable_value(table, decoded(schema, stored, 0))


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


# -- versions and aliases ----------------------------------------------------------------------------


def retire(flights):
    driver = flights.driver
    retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)


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


# -- refusals ----------------------------------------------------------------------------------------


def test_what_it_cannot_reach_or_read_is_named(program, redis, namespace, flights):
    flights.write(BATCHES[0])
    refused(program, "ConfigError", "connect", url="redis://u:secret@h:1/db?x=1", namespace="n")
    away = {"url": "redis://127.0.0.1:1", "namespace": "n", "options": {"timeout_s": 0.2}}
    refused(program, "StoreUnavailableError", "connect", **away)
    program.ask("connect", url=redis.url, namespace=namespace)
    assert "airports" in refused(program, "ConfigError", "get", table="nowhere", key=["k"])
    group, uuid = f"tg:{{{namespace}/{key_group(b'N14228', 8)}}}", flights.driver.folded.namespace
    redis.ask("HSET", f"{group}:aircraft:d:1:{uuid}", "N14228", b"?{}")
    for do in ({"do": "get", "key": ["N14228"]}, {"do": "scan"}):
        assert "N14228" in refused(program, "CorruptError", table="aircraft", **do)
    redis.ask("HSET", f"{group}:h", "floor", "9")  # rows below it are merged with newer ones
    for do in ({"do": "get", "key": ["N14228"]}, {"do": "scan"}):
        refused(program, "SnapshotExpiredError", table="aircraft", **do)
    redis.ask("HSET", f"tg:{{{namespace}}}:meta", "visible", "x")
    refused(program, "CorruptError", "version")


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
