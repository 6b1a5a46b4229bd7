"""The reader in Java on Sentinels, a Cluster, a removed store and Cassandra, beside the one in Python."""

import contextlib
import uuid

import pytest

from services.support.java_reader import PROGRAM, command_of, java_reader, refused
from services.support.redis.cluster import slot_of
from support.cli import done
from support.wait import wait_until
from tidegate.options import Options
from tidegate.testing.conformance.program import ReaderRaisedError
from tidegate.testing.conformance.run import FAILED, conformance
from tidegate.testing.example import BATCHES, Example

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("java"), pytest.mark.timeout(600)]
OPTIONS = Options(key_groups=8, allow_unsafe=True)
KEY = {"table": "aircraft", "key": ["N14228"]}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    with java_reader(tmp_path_factory.mktemp("java")) as reader:
        yield reader


@pytest.fixture
def namespace():
    return f"n{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("servers", ["redis_cluster", "redis_sentinel", "cassandra_tables"])
def test_the_conformance_program(program, request, servers):
    found = request.getfixturevalue(servers)
    results = conformance(command_of(PROGRAM), found if isinstance(found, str) else found.url)
    assert [result for result in results if result.outcome == FAILED] == []


def answers(program, value):
    """Whether the newest row is this one; it is read again while a server was not compared yet."""
    with contextlib.suppress(ReaderRaisedError):
        return program.ask("get", **KEY)["value"] == value
    return False


def test_on_a_cluster(program, redis_cluster, namespace, tmp_path):
    """Slots that move are found; so is a replica that was promoted, once the writer has compared it."""
    example = Example(f"file://{tmp_path}/wal", redis_cluster.url, namespace, options=OPTIONS)
    try:
        for rows in BATCHES:
            example.write(rows)
        program.ask("connect", url=redis_cluster.url, namespace=namespace)
        slot = slot_of(f"tg:{{{namespace}/5}}:h")  # of KEY
        owner = redis_cluster.owner_of(slot)
        other = next(each for each in redis_cluster.primaries() if each is not owner)
        row = program.ask("get", **KEY)["value"]
        with redis_cluster.moving(slot, other):
            program.ask("connect", url=redis_cluster.url, namespace=namespace, options={"timeout_s": 0.5})
            with pytest.raises(ReaderRaisedError) as error:
                program.ask("get", **KEY)
            assert error.value.name in ("StoreUnavailableError", "StoreNotVerifiedError")
        example.write({"aircraft": {"N14228": {"carrier": "UA", "flights": 2}}})  # notes its new place
        wait_until(lambda: answers(program, row), "the moved key group")
        redis_cluster.promote(redis_cluster.replicas_of(redis_cluster.owner_of(slot))[0])
        example.write({"aircraft": {"N14228": {"carrier": "UA", "flights": 9}}})
        wait_until(lambda: answers(program, {"carrier": "UA", "flights": "9"}), "the promoted replica")
    finally:
        redis_cluster.heal()
        example.driver.store.drop()
        example.close()


def test_a_removed_store(program, private_redis, namespace, tmp_path):
    old, new, wal = private_redis(), private_redis(), f"file://{tmp_path}/wal"
    with contextlib.closing(Example(wal, [f"old={old.url}"], namespace, options=OPTIONS)) as example:
        example.write(BATCHES[0])
        example.driver.store.end_heartbeat(example.driver.epoch)
    program.ask("connect", url=old.url, namespace=namespace)
    held = program.ask("snapshot")["snapshot"]
    log = ("--wal", wal, "--namespace", namespace)
    done("store", "add", f"new={new.url}", "--store", f"old={old.url}", *log)
    both = ("--store", f"new={new.url}", "--store", f"old={old.url}")
    done("store", "remove", "old", "--redirect", "new", *both, *log)
    assert str(new.port) in refused(program, "StoreRemovedError", "get", **KEY)
    assert program.ask("get", **KEY, snapshot=held)["version"] == 1  # what was open stays readable
    program.ask("connect", url=old.url, namespace=namespace, options={"follow_redirects": True})
    said = refused(program, "StoreRemovedError", "get", **KEY)
    assert "not in followRedirects" in said  # only where its own URL leads
    follow = {"follow_redirects": [f"127.0.0.1:{new.port}"]}
    program.ask("connect", url=old.url, namespace=namespace, options=follow)
    assert program.ask("get", **KEY)["value"] == {"carrier": "UA", "flights": "1"}
    with contextlib.closing(Example(wal, [f"new={new.url}"], namespace, options=OPTIONS)) as example:
        example.write(BATCHES[1])
    assert program.ask("get", **KEY)["value"] == {"carrier": "UA", "flights": "2"}


def test_on_cassandra(program, cassandra_tables, namespace, tmp_path):
    """A lease that was renewed counts from when it was taken."""
    example = Example(f"file://{tmp_path}/wal", cassandra_tables, namespace, options=OPTIONS)
    example.write(BATCHES[0])
    program.ask("connect", url=cassandra_tables, namespace=namespace)
    held = program.ask("snapshot", lease_s=4)["snapshot"]
    wait_until(lambda: max(lease.age_s for lease in example.driver.store.leases()) > 4, "it was renewed")
    program.ask("release", snapshot=held)
    assert example.driver.store.leases() == []
    assert program.ask("get", **KEY)["value"]
    example.driver.store.drop()
    example.close()
    again = Example(f"file://{tmp_path}/again", cassandra_tables, namespace, options=OPTIONS)
    again.write(BATCHES[0])
    with pytest.raises(ReaderRaisedError, match="dropped while it was open here"):
        program.ask("get", **KEY)
    again.driver.store.drop()
    again.close()
