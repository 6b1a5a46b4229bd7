"""A reply of each kind is lost once, or its request; a request of each kind arrives late, of a driver of
yesterday.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.support.cassandra.proxy import CassandraProxy
from services.support.cassandra.query import AWAY_S, TOLD, at_last, query_on
from services.support.cassandra.server import CassandraServer
from services.support.workloads.query import Query, Reader, expected, found_at
from support.concurrency import Meanwhile
from tidegate.errors import FencedError, StoreUnavailableError, TidegateError
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.leases import Lease

FLIP, CLAIM = "SET visible", "SET epoch = ?, writer"
ANNOUNCE = "SET horizon = ? WHERE space = ? IF horizon = ? AND"
FORGET = "DELETE FROM tidegate.tidegate_pointers"
HOLD, BEAT = "SET leases_at", "SET heartbeat_at"
ROWS, NOTES = "INTO tidegate.tidegate_rows", "INTO tidegate.tidegate_notes"
DROPS = "DELETE FROM tidegate.tidegate_rows"
SCHEMAS, LEASES = "INTO tidegate.tidegate_schemas", "tidegate_leases"


@pytest.fixture
def query(cassandra_tables: str, cassandra_proxy: CassandraProxy, tmp_path) -> Iterator[Query]:
    """It goes by the proxy; the tests look without it. A lost frame's connection is closed, so nobody waits
    for the end of ``timeout_s``."""
    with query_on(cassandra_proxy.url, tmp_path) as made:
        yield made


# -- what becomes of a conditional write ----------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("took_effect", [True, False])
def test_nobody_says_what_became_of_a_flip(
    took_effect: bool, cassandra: CassandraServer, cassandra_proxy: CassandraProxy, query: Query
):
    """It is read back; each version becomes visible, once."""
    driver = query.run(1)
    lose = cassandra_proxy.drop_reply if took_effect else cassandra_proxy.drop_request
    lost = []
    with Reader(query, url=cassandra.url) as reader:
        for batch_id in (1, 2, 3):
            lost += [lose("BATCH", FLIP)] if batch_id != 2 else []
            query.commit(driver, batch_id)
        reader.wait_whole(4)
        assert set(reader.refused) <= TOLD
    assert [each.hits for each in lost] == [1, 1]
    sent_again = 0 if took_effect else 2
    assert cassandra_proxy.seen("BATCH", FLIP) >= 4 + sent_again
    query.check(4, cassandra.url)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("took_effect", [True, False])
def test_nobody_says_what_became_of_a_claim(
    took_effect: bool, cassandra: CassandraServer, cassandra_proxy: CassandraProxy, query: Query
):
    """I6: the epoch that stands afterwards is the log's, and an older driver is fenced either way."""
    older = query.run(2)
    lose = cassandra_proxy.drop_reply if took_effect else cassandra_proxy.drop_request
    lost = lose("EXECUTE", CLAIM)
    newer = query.open()
    assert lost.hits == 1
    assert query.store(cassandra.url).pointer().epoch == newer.epoch == older.epoch + 1
    with pytest.raises(FencedError):
        query.commit(older, 2)
    query.commit(newer, 2)
    query.check(3, cassandra.url)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("took_effect", [True, False])
def test_nobody_says_what_became_of_an_announcement(
    took_effect: bool, cassandra: CassandraServer, cassandra_proxy: CassandraProxy, query: Query
):
    """It is read back; the horizon moves on in steps of one."""
    driver = query.run(5)
    lose = cassandra_proxy.drop_reply if took_effect else cassandra_proxy.drop_request
    lost = lose("EXECUTE", ANNOUNCE)
    with Reader(query, url=cassandra.url) as reader:
        query.retire(driver)
        reader.wait_whole(5)
    assert lost.hits == 1
    assert query.store(cassandra.url).pointer().horizon == 3
    assert cassandra_proxy.seen("EXECUTE", ANNOUNCE) >= (3 if took_effect else 4)
    query.check(5, cassandra.url)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("took_effect", [True, False])
def test_nobody_says_what_became_of_a_lease(
    took_effect: bool, cassandra: CassandraServer, cassandra_proxy: CassandraProxy, query: Query
):
    """I8: whoever was told of it holds the horizon back."""
    driver = query.run(5)
    lose = cassandra_proxy.drop_reply if took_effect else cassandra_proxy.drop_request
    lost = lose("EXECUTE", HOLD)
    driver.store.lease(Lease("mine", 1), 60.0)
    assert lost.hits == 1
    query.retire(driver)
    assert driver.store.pointer().horizon == 1
    assert [each.version for each in driver.store.leases()] == [1]
    driver.store.release("mine")
    query.retire(driver)
    assert driver.store.pointer().horizon == 3
    query.check(5, cassandra.url)


def test_a_driver_settles_what_it_reads_of_the_pointer(cassandra_proxy: CassandraProxy, query: Query):
    """A conditional write that was left half done is finished, or can never be, before its writer reads on:
    SERIAL. Readers do not pay for that."""
    serial, pointer = b"\0\x08", "SELECT visible, digest, epoch, writer"
    levels: set[bool] = set()  # a request may be sent twice where it takes long
    wire = cassandra_proxy.plain

    def note(frame: bytes) -> bool:
        size = int.from_bytes(frame[9:11], "big")
        levels.add(frame[11 + size : 13 + size] == serial)
        return False

    driver = query.run(1)
    watch = cassandra_proxy.drop_request("EXECUTE", pointer, times=0)
    inner = watch.where
    watch.where = lambda frame: bool(inner and inner(frame)) and note(frame)
    driver.store.pointer()
    assert levels == {True}
    query.store().pointer()
    assert levels == {True, False}
    assert wire.counted()


def every_second(cases):
    """They take seconds each: `make full` runs the others."""
    return [pytest.param(*case, marks=[pytest.mark.slow] * (at % 2)) for at, case in enumerate(cases)]


# -- replies that are lost --------------------------------------------------------------------------------

WRITING = [
    ("BATCH", ROWS),
    ("BATCH", NOTES),
    ("BATCH", DROPS),
    ("BATCH", FORGET),
    ("EXECUTE", SCHEMAS),
    ("EXECUTE", "INTO tidegate.tidegate_tables"),
    ("EXECUTE", "FROM tidegate.tidegate_notes WHERE"),
    ("EXECUTE", "DELETE FROM tidegate.tidegate_notes"),
    ("EXECUTE", "SELECT visible"),
    ("EXECUTE", "SELECT entry"),
]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind, cql", every_second(WRITING))
def test_a_reply_is_lost_while_it_writes(
    kind: str, cql: str, cassandra: CassandraServer, cassandra_proxy: CassandraProxy, query: Query
):
    lost = None
    if cql == "INTO tidegate.tidegate_tables":
        lost = cassandra_proxy.drop_reply(kind, cql)
    driver = query.run(3)
    lost = lost or cassandra_proxy.drop_reply(kind, cql)
    with Reader(query, url=cassandra.url) as reader:
        query.commit(driver, 3)
        query.commit(driver, 4)
        try:
            query.retire(driver)
        except StoreUnavailableError:
            assert cql == FORGET  # a conditional write: tried again with the next version
            query.retire(driver)
        reader.wait_whole(5)
    assert lost.hits == 1
    query.check(5, cassandra.url)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("cql", ["SELECT value", "SELECT key, value", "SELECT visible", "SELECT entry", HOLD])
def test_a_reply_is_lost_to_a_reader(
    cql: str, cassandra: CassandraServer, cassandra_proxy: CassandraProxy, query: Query
):
    query.run(3, cassandra.url)
    lost = cassandra_proxy.drop_reply("EXECUTE", cql)
    with Reader(query) as reader:
        reader.wait_whole(3)
        if cql == "SELECT value":
            query.store().get(ReadAt("marker", 3), b"m0")
        lost.wait()
        reader.wait_whole(3)
        assert not reader.refused  # it was asked again, within timeout_s
    query.check(3, cassandra.url)


@pytest.mark.slow
def test_the_only_way_is_cut_before_the_tables_were_looked_for(cassandra_proxy: CassandraProxy, query: Query):
    """The driver asks for them over a connection of its own, and has errors of its own for that."""
    query.run(1)
    store = query.store(timeout_s=AWAY_S)
    assert at_last(lambda: store._space.session.local_dc) == "datacenter1"
    cassandra_proxy.down()
    with pytest.raises(StoreUnavailableError):
        store.identity()
    cassandra_proxy.up()
    assert at_last(store.identity).name == query.namespace


# -- requests that come late ------------------------------------------------------------------------------

LATE = [
    ("BATCH", ROWS),
    ("BATCH", NOTES),
    ("BATCH", FLIP),
    ("EXECUTE", CLAIM),
    ("EXECUTE", SCHEMAS),
    ("EXECUTE", ANNOUNCE),
    ("BATCH", DROPS),
    ("EXECUTE", "DELETE FROM tidegate.tidegate_notes"),
    ("BATCH", FORGET),
]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind, cql", every_second(LATE))
def test_a_request_arrives_late(
    kind: str,
    cql: str,
    cassandra: CassandraServer,
    cassandra_proxy: CassandraProxy,
    query: Query,
    meanwhile: Meanwhile,
):
    """A driver stands still with its request under way, a newer one goes on; then the request arrives."""
    zombie = query.run(4)
    late = cassandra_proxy.hold_request(kind, cql)

    def dies() -> None:
        try:
            if cql == CLAIM:
                query.open()
            else:
                query.commit(zombie, 4)
                query.retire(zombie)
        except TidegateError:
            pass

    dying = meanwhile.start(dies)
    late.arrived()
    direct = query.store(cassandra.url)
    with Reader(query, url=cassandra.url) as reader:
        newer = query.run(5, cassandra.url)
        for batch_id in range(5, 9):
            query.commit(newer, batch_id)
            query.retire(newer)
        reader.wait_whole(9)
        before = {version: found_at(direct, version) for version in (7, 8, 9)}
        late.release()
        late.remove()
        dying.result(60)
        reader.wait_whole(9)
    assert {version: found_at(direct, version) for version in (7, 8, 9)} == before
    assert before == {version: expected(version) for version in (7, 8, 9)}
    assert direct.pointer().epoch >= newer.epoch
    query.run(10, cassandra.url)
    query.check(10, cassandra.url)
