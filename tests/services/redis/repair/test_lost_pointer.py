"""Redis loses the pointer, or the catalog beside it, and keeps the rows: the log has what they said."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import pytest

from services.support.redis.cluster import RedisCluster
from services.support.redis.query import Query, query_on
from services.support.redis.repairs.sources import from_export, run, trimmed
from services.support.redis.server import RedisServer
from services.support.workloads.query import KEY_GROUPS, LINEAGE, expected, found_at
from tidegate.committers.exports.export import export
from tidegate.committers.opening.open import take_over
from tidegate.committers.repair.repair import repair
from tidegate.errors import CorruptError, StoreNotVerifiedError, WalGapError
from tidegate.sinks.records import ReadAt


@pytest.fixture
def query(redis: RedisServer, tmp_path) -> Iterator[Query]:
    with query_on(redis.url, tmp_path) as made:
        yield made


def forget(redis: RedisServer, query: Query, *names: str) -> None:
    keys = [query.meta.removesuffix("meta") + name for name in names]
    assert redis.ask("DEL", *keys) == len(keys)


def forget_header(redis: RedisServer, query: Query, group: int) -> None:
    assert redis.ask("DEL", f"{query.keys_of(group)}h") == 1


# -- the catalog --------------------------------------------------------------------------------------------


def test_repair_puts_back_the_entries_of_a_catalog_that_was_lost(redis: RedisServer, query: Query):
    trimmed(query)
    before = [(one.version, one.tables, one.digest) for one in query.store().catalog()]
    forget(redis, query, "catalog")
    mended = run(query, "repair", "--force")
    assert mended.exit_code == 0, mended.output
    assert "put back: the catalog's entry of version 7" in mended.output
    assert [(one.version, one.tables, one.digest) for one in query.store().catalog()] == before
    assert run(query, "verify").exit_code == 0
    query.check(9)


def test_a_running_query_puts_back_the_entry_that_its_retirement_misses(redis: RedisServer, query: Query):
    driver = trimmed(query)
    forget(redis, query, "catalog")
    query.commit(driver, 9)
    with pytest.raises(StoreNotVerifiedError, match="version 7 can be read, and has no entry in the catalog"):
        query.retire(driver)
    query.commit(driver, 10)
    assert driver.store.unverified()  # the background and the next open look at that
    repair(driver)
    query.retire(driver)
    query.check(11)


def test_an_export_of_a_version_without_an_entry_names_repair(redis: RedisServer, query: Query, tmp_path):
    trimmed(query)
    forget(redis, query, "catalog")
    store = query.store()
    with pytest.raises(CorruptError, match="on Redis and Cassandra `tidegate repair` puts it back"):
        export(store, store.identity(), 9, tmp_path / "out")


# -- the pointer --------------------------------------------------------------------------------------------


def test_a_pointer_that_was_lost_goes_on_from_the_oldest_version_of_a_trimmed_log(redis, query: Query):
    trimmed(query)
    forget(redis, query, "meta")
    driver = query.run(9)
    query.check(9)
    query.commit(driver, 9)
    query.retire(driver)
    query.check(10)


def test_the_pointer_and_all_that_lies_beside_it_are_put_back(redis: RedisServer, query: Query):
    trimmed(query)
    forget(redis, query, "meta", "catalog", "schemas", "versions")
    assert run(query, "repair", "--force").exit_code == 0
    query.check(9)


def test_nobody_reads_before_the_servers_were_compared(redis: RedisServer, query: Query):
    trimmed(query)
    forget(redis, query, "meta")
    driver = query.driver()
    take_over(driver, LINEAGE)
    with pytest.raises(StoreNotVerifiedError):
        found_at(query.store(), 9)
    assert driver.store.unverified()


def test_a_header_that_was_lost_with_the_pointer_is_no_new_key_group(redis: RedisServer, query: Query):
    """Its rows below the log's oldest version are in no log: they are refused, not absent."""
    trimmed(query)
    forget(redis, query, "meta")
    forget_header(redis, query, 3)
    for _ in range(2):
        with pytest.raises(WalGapError, match=r"key group 3, .*`tidegate repair --from URL`"):
            query.run(9)
    store = query.store()
    (entry,) = store.catalog(9, 9)
    for table, at in entry.tables.items():
        with pytest.raises(StoreNotVerifiedError, match="lost all of it"):
            list(store.scan(ReadAt(table, 9, at.start), 3))


def test_a_store_that_lost_everything_is_put_back_from_an_export(redis: RedisServer, query: Query, tmp_path):
    trimmed(query)
    place = from_export(query, tmp_path)
    assert redis.forget(query.namespace)
    refused = run(query, "repair", "--force")
    assert refused.exit_code == WalGapError.exit_code
    mended = run(query, "repair", "--force", "--from", place)
    assert mended.exit_code == 0, mended.output
    query.check(9)
    assert found_at(query.store(), 9) == expected(9)


def test_a_source_that_does_not_fit_an_emptied_store_is_refused_before_anything_is_written(
    redis: RedisServer, query: Query, tmp_path, caplog
):
    query.run(4)
    place = from_export(query, tmp_path)
    trimmed(query)
    assert redis.forget(query.namespace)
    for _ in range(2):
        refused = run(query, "repair", "--force", "--from", place)
        assert refused.exit_code == 2, refused.output
        words = " ".join(refused.output.split())
        assert re.search(r"take a source with version 8 or a newer one\. Nothing was written", words), words
        assert query.store().identity() is None
    assert "lost its pointer" not in caplog.text


def test_a_pointer_that_went_back_further_than_the_log_reaches(redis: RedisServer, query: Query):
    """An old copy of the keys beside the pointer; all key groups are as they were."""
    driver = query.run(3, summary_every=1)
    query.retire(driver)
    keys = [query.meta.removesuffix("meta") + name for name in ("meta", "catalog", "versions")]
    with redis.client(decode_responses=False) as client:
        old = {key: client.dump(key) for key in keys}
        trimmed(query)
        for key, content in old.items():
            client.restore(key, 0, content, replace=True)
    driver = query.run(9)
    assert found_at(query.store(), 9) == expected(9)
    query.commit(driver, 9)
    query.retire(driver)
    query.check(10)


def test_a_log_that_lost_what_was_never_applied_takes_nothing_from_readers(query: Query, tmp_path):
    """No key group is ahead of the pointer: the visible version stays, and the writer is refused."""
    driver = query.run(3)
    query.retire(driver)
    query.commit(driver, 3)
    before = query.store().pointer()
    store = driver.store
    (entry,) = store.catalog(4, 4)
    later = msgspec.structs.replace(entry, version=9, digest="9")
    assert not store.resume(later, 8, driver.epoch, 4)
    after = query.store().pointer()
    assert (after.visible, after.horizon) == (before.visible, before.horizon)
    query.check(4)


def test_with_the_whole_log_the_versions_become_visible_again_one_by_one(redis: RedisServer, query: Query):
    driver = query.run(9)
    query.retire(driver)
    forget(redis, query, "meta")
    forget_header(redis, query, 3)
    driver = query.run(9)
    assert found_at(query.store(), 9) == expected(9)
    query.retire(driver)  # the horizon that was lost comes back
    query.check(9)


def test_a_store_whose_pointer_was_lost_while_it_was_filled_is_refused(redis: RedisServer, query: Query):
    trimmed(query)
    forget(redis, query, "meta")
    redis.ask("HSET", f"{query.keys_of(3)}h", "filling", 8)
    with pytest.raises(WalGapError, match="it has to be filled from scratch"):
        query.run(9)


def test_the_server_of_the_pointer_comes_back_empty_into_its_cluster(redis_cluster: RedisCluster, tmp_path):
    """Its key groups are lost with it, the others are not: they are read, and an export has the rest."""
    with query_on(redis_cluster.url, tmp_path) as query:
        trimmed(query)
        place = from_export(query, tmp_path)
        primary = redis_cluster.primary_of(query.meta)
        lost = {
            group
            for group in range(KEY_GROUPS)
            if redis_cluster.primary_of(f"{query.keys_of(group)}h") is primary
        }
        with primary.client() as client:
            assert [client.delete(key) for key in client.scan_iter(f"*{query.namespace}*", count=1000)]
        with pytest.raises(WalGapError, match=f"what {len(lost)} key groups lost" if lost else "x"):
            query.run(9)
        assert run(query, "repair", "--force", "--from", place).exit_code == 0
        query.check(9)
