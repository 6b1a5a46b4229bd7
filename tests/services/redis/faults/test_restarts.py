"""A Redis that is killed and comes back in the middle, with all that it had, or with none of it."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from services.support.redis.query import Query, query_on
from services.support.workloads.query import Reader, held_snapshot
from support.concurrency import Failpoints
from tidegate.committers.background.worker import Background
from tidegate.errors import ConfigError, StoreLostError, StoreNotVerifiedError, TidegateError

PLACES = [
    ("apply.before_chunk", 2),
    ("apply.after_chunk", 2),
    ("seal.after", 1),
    ("publish.before", 1),
    ("publish.after", 1),
    ("commit.before_return", 1),
    ("retire.after_announce", 1),
]
EMPTY = {"appendonly": "no"}


@pytest.fixture(params=["kept", "empty"])
def server(request, private_redis):
    made = private_redis(settings={} if request.param == "kept" else EMPTY)
    made.kept_data = request.param == "kept"
    return made


@pytest.fixture
def query(server, tmp_path):
    with query_on(server.url, tmp_path) as made:
        yield made


def go_on(query: Query, driver, batches: int) -> str:
    """The batches, with retirement after each; what stopped it, or nothing."""
    try:
        for batch_id in range(batches):
            query.commit(driver, batch_id)
            with contextlib.suppress(StoreNotVerifiedError):  # as in the background: tried again at the next
                query.retire(driver)
    except TidegateError as error:
        return type(error).__name__
    return ""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("place, nth", PLACES)
def test_server_is_killed_at(place, nth, server, query: Query, failing_at: Failpoints):
    def restart() -> None:
        server.kill()
        server.restart()

    driver = query.run(4)
    with Reader(query, StoreLostError, ConfigError) as reader:  # one that connects to an empty server
        reader.wait_whole(4)
        at = failing_at.at(place, restart, nth)
        stopped = go_on(query, driver, 7)
        assert at.done
        if server.kept_data:
            assert stopped == ""
        else:
            assert stopped == "StoreLostError", stopped
            query.run(7)
        reader.wait_whole(7)
    query.check(7)


def test_schemas_that_were_lost_without_a_row_are_put_back(private_redis, tmp_path):
    """They lie beside the pointer, on one server; the rows of all key groups may be whole elsewhere."""
    server = private_redis(settings={"enable-debug-command": "local"})
    with query_on(server.url, tmp_path) as query:
        query.run(3).store.close()
        client = server.client()
        assert client.delete(query.meta.replace(":meta", ":schemas")) == 1
        client.execute_command("DEBUG", "CHANGE-REPL-ID")  # as after a promotion, and another process
        client.hset(query.meta, "processes", "")
        driver = query.open()
        assert {at.schema_id for at in driver.folded.tables.values()} <= set(driver.store.schemas())


def test_a_snapshot_from_before_is_refused_while_an_empty_server_is_filled(
    private_redis, tmp_path, failing_at: Failpoints
):
    """I8: the server counts as compared from version 0 on, long before it has the snapshot's version."""
    server = private_redis(settings=EMPTY)
    with query_on(server.url, tmp_path) as query:
        query.run(4).store.close()
        with held_snapshot(query) as held:
            server.kill()
            server.restart()
            looks = [held.look()]
            failing_at.at("publish.after", lambda: looks.append(held.look()), nth=1)
            failing_at.at("publish.before", lambda: looks.append(held.look()), nth=3)
            query.run(4)
            assert set(looks) <= {"StoreLostError", "VersionRegressedError", "StoreNotVerifiedError"}, looks
            held.look()  # whole again, or refused
        query.check(4)


def test_an_idle_query_repairs_a_restarted_server(private_redis, tmp_path):
    """No batch comes for hours: readers are not kept waiting for it."""
    server = private_redis()
    with query_on(server.url, tmp_path) as query:
        driver = query.run(4)
        options = dataclasses.replace(driver.options, heartbeat_s=0.1)
        beside = Background(driver.log, driver.store, options, lambda: driver.epoch)
        try:
            server.kill()
            server.restart()
            with Reader(query, ConfigError) as reader:
                reader.wait_whole(4)
        finally:
            beside.stop()
        query.check(4)
        query.commit(driver, 4)  # and the query goes on as if nothing had been
        query.check(5)
