"""A Redis server that was emptied: under a query and its readers, without one, with a log that was cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import tidegate
from services.support.redis.query import Query, query_on
from services.support.redis.repairs.sources import run, trimmed
from services.support.redis.server import RedisServer
from services.support.workloads.query import Reader, expected, found_at
from support.wait import wait_until
from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.committers.background.worker import Background
from tidegate.errors import (
    ConfigError,
    StoreLostError,
    StoreNotVerifiedError,
    StoreUnavailableError,
    TidegateError,
    WalGapError,
)
from tidegate.sinks.redis.keys import header_key
from tidegate.sinks.redis.seals import headers
from tidegate.sinks.redis.store import RedisStore

VERSIONS, KEPT = 30, 3


@pytest.fixture
def query(redis: RedisServer, tmp_path) -> Iterator[Query]:
    with query_on(redis.url, tmp_path) as made:
        yield made


def layers(query: Query) -> set[int]:
    by_group = headers(query.store()._space).values()
    return {version for header in by_group for of_table in header.layers.values() for version in of_table}


def test_a_query_and_its_readers_survive(redis: RedisServer, query: Query):
    """Readers see the last version or an error, never an older one. The query continues by itself."""
    driver = query.run(VERSIONS, keep_versions=KEPT)
    query.retire(driver)
    background = Background(driver.log, driver.store, driver.options, lambda: driver.epoch)
    try:
        with Reader(query, StoreLostError, ConfigError) as reader:  # one that connects then finds nothing
            reader.wait_whole(VERSIONS)
            redis.forget(query.namespace)
            wait_until(lambda: driver.store.identity() is not None)  # a read may have begun before
            reader.wait_whole(VERSIONS)
        assert set(reader.whole) == {VERSIONS}
        wait_until(lambda: not driver.store.unverified())
    finally:
        background.stop()
    query.commit(driver, VERSIONS)
    query.retire(driver)
    query.check(VERSIONS + 1)


def test_the_error_does_not_call_the_loss_a_drop(redis: RedisServer, query: Query):
    driver = query.run(2)
    with tidegate.connect(query.url, query.namespace) as gate:
        assert gate.version() == 2
        redis.forget(query.namespace)
        for ask in (gate.version, lambda: driver.store.heartbeat(driver.epoch)):
            with pytest.raises(StoreLostError, match=r"not there any more\. If nobody dropped it"):
                ask()
    made = run(query, "init")
    assert made.exit_code == StoreLostError.exit_code
    assert "has 2 decided versions" in made.output
    assert "`tidegate recover --namespace" in made.output
    assert query.store().identity() is None


def test_recover_writes_one_base_and_the_kept_versions(redis: RedisServer, query: Query):
    query.run(VERSIONS)
    redis.forget(query.namespace)
    recovered = run(query, "recover", "--force")
    assert recovered.exit_code == 0, recovered.output
    assert f"version {VERSIONS} is visible now" in recovered.output
    pointer = query.store().pointer()
    assert (pointer.visible, pointer.horizon) == (VERSIONS, VERSIONS - 1)  # two are kept by default
    assert layers(query) <= {VERSIONS}
    assert found_at(query.store(), VERSIONS) == expected(VERSIONS)
    query.check(VERSIONS)


@pytest.mark.parametrize("versions", [1, 2, VERSIONS])
def test_a_lost_namespace_that_was_made_again_is_not_empty_i9(
    redis: RedisServer, query: Query, versions: int
):
    """Readers are refused from the creation on, also when the driver cannot go on."""
    query.run(versions)
    redis.forget(query.namespace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RedisStore, "claim", raising(StoreUnavailableError("away")))
        with pytest.raises(StoreUnavailableError, match="away"):
            query.open()
    with tidegate.connect(query.url, query.namespace) as gate, pytest.raises(StoreNotVerifiedError):
        gate.snapshot()
    query.open()
    query.check(versions)


def raising(error: TidegateError) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise error

    return call


@pytest.mark.parametrize("evicted", [False, True])
@pytest.mark.parametrize("name", ["open.after_claim", "repair.after_version", "repair.before_listing"])
def test_a_rebuild_that_was_killed_is_finished_by_the_next(
    redis: RedisServer, query: Query, name: str, evicted: bool
):
    query.run(VERSIONS)
    redis.forget(query.namespace)
    failpoints.arm(f"{name}=raise")
    with pytest.raises(FailpointError):
        query.open()
    failpoints.arm(None)
    with tidegate.connect(query.url, query.namespace) as gate, pytest.raises(TidegateError):
        gate.snapshot().table("t").get(b"m0")
    if name != "open.after_claim":
        with pytest.raises(StoreNotVerifiedError):
            found_at(query.store(), VERSIONS)
    if evicted:  # one header more, while the store was being rebuilt
        redis.ask("DEL", header_key(query.namespace, 0))
    recovered = run(query, "recover", "--force")
    if evicted and recovered.exit_code == StoreNotVerifiedError.exit_code:  # learned of it just now
        recovered = run(query, "recover", "--force")
    assert recovered.exit_code == 0, recovered.output
    query.check(VERSIONS)


def test_a_cut_log_is_noticed_before_anything_is_written(redis: RedisServer, query: Query):
    trimmed(query)
    redis.forget(query.namespace)
    for _ in range(2):
        refused = run(query, "recover", "--force")
        assert refused.exit_code == WalGapError.exit_code
        assert "no log can rebuild this store. Nothing was written" in refused.output
        assert query.store().identity() is None
    for command in ("status", "doctor"):
        red = run(query, command)
        assert red.exit_code == (WalGapError.exit_code if command == "status" else 1), red.output
        assert "cannot be rebuilt" in red.output
        assert "tidegate recover`" not in red.output


def test_an_entry_that_is_not_back_yet_is_no_damage(redis: RedisServer, query: Query, monkeypatch):
    """It ended mirrors for good: the pointer is back before the entries of older versions are."""
    query.run(VERSIONS)
    with tidegate.connect(query.url, query.namespace) as gate:
        assert gate.version() == VERSIONS
        redis.forget(query.namespace)
        with monkeypatch.context() as cut:
            cut.setattr("tidegate.committers.repair.repair.put_back_entries", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                query.open()
        for read in (
            lambda: gate.snapshot(version=VERSIONS - 1),
            lambda: list(gate.diff(VERSIONS - 1, VERSIONS)),
        ):
            with pytest.raises(StoreNotVerifiedError):
                read()
    assert run(query, "recover", "--force").exit_code == 0
    query.check(VERSIONS)
