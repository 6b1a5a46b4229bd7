"""`tidegate repair --from`: what no log holds any more comes from another store, or from an export."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from services.support.redis.query import Query, query_on
from services.support.redis.repairs.sources import from_export, run, trimmed
from services.support.redis.server import RedisServer
from services.support.workloads.query import expected, found_at
from tidegate.committers.background.membership import add_store, remove_store
from tidegate.committers.commit import complete
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.exports.export import export
from tidegate.committers.steps.decided_versions import decided_versions_from
from tidegate.errors import WalGapError
from tidegate.options.endpoints import StoreRef

LOST = (1, 4)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("TIDEGATE_") and "REDIS" not in name]:
        monkeypatch.delenv(name)


@pytest.fixture
def query(redis: RedisServer, tmp_path):
    with query_on(redis.url, tmp_path) as made:
        yield made


def from_store(query: Query, folder: Path) -> str:
    """Another store of the log, filled from this one while it was whole, and followed since."""
    driver = query.driver()
    driver.decisions.catch_up()
    url = f"sqlite://{folder}/copy"
    copy = query.store(url)
    assert add_store(driver, StoreRef("copy", url), copy).catch_up().visible
    return url


def base_of(redis: RedisServer, query: Query, group: int) -> str:
    return next(iter(redis.ask("KEYS", f"{query.keys_of(group)}*:b")))


def one_base(redis: RedisServer, query: Query) -> int:
    assert sum(redis.ask("DEL", base_of(redis, query, group)) for group in LOST) == len(LOST)
    return len(LOST)


def headers(redis: RedisServer, query: Query) -> int:
    assert sum(redis.ask("DEL", f"{query.keys_of(group)}h") for group in LOST) == len(LOST)
    return len(LOST)


def everything_of_some(redis: RedisServer, query: Query) -> int:
    assert all(redis.forget(query.keys_of(group)) for group in LOST)
    return len(LOST)


@pytest.mark.parametrize("source", [from_store, from_export])
@pytest.mark.parametrize("lose", [one_base, headers, everything_of_some])
def test_key_groups_are_put_back_exactly(
    source: Callable[..., str], lose: Callable[..., int], redis: RedisServer, query: Query, tmp_path
):
    driver = trimmed(query)
    place = source(query, tmp_path)
    stores = ["--store=redis=" + query.url, "--store=copy=" + place] if source is from_store else []
    lost = lose(redis, query)
    refused = run(query, "repair", "--force", *stores)
    assert refused.exit_code == WalGapError.exit_code, refused.output
    assert "`tidegate repair --from URL --namespace" in refused.output
    mended = run(query, "repair", "--force", "--json", "--from", place, *stores)
    assert mended.exit_code == 0, mended.output
    bases = [one for one in json.loads(mended.stdout)["put_back"] if one["base"]]
    assert [one["key_groups"] for one in bases] == [lost]
    assert run(query, "verify").exit_code == 0
    query.check(driver.folded.last_version)
    if source is from_store:
        alone = query.driver()
        alone.decisions.catch_up()
        remove_store(alone, "copy")
    again = query.run(12)
    query.retire(again)
    query.check(12)


def another_store_ahead(query: Query, driver: Coordinator, url: str) -> None:
    """The other store shows what was decided, and no longer keeps what this one shows."""
    copy = query.driver(url, keep_versions=1)
    copy.decisions.catch_up()
    copy.decisions.epoch = driver.epoch
    for fact in decided_versions_from(copy.decisions, copy.store.pointer().visible + 1, copy.store.where):
        complete(copy, fact)
    query.retire(copy)


def an_export_ahead(query: Query, driver: Coordinator, url: str) -> str:
    another_store_ahead(query, driver, url)
    copy = query.store(url)
    export(copy, copy.identity(), 11, Path(url.removeprefix("sqlite://")).parent / "ahead")
    return str(Path(url.removeprefix("sqlite://")).parent / "ahead")


@pytest.mark.parametrize("exported", [False, True])
def test_a_source_may_be_ahead_of_what_the_store_shows(
    exported: bool, redis: RedisServer, query: Query, tmp_path
):
    """A query decides what it cannot apply where rows are lost; another store follows, and retires."""
    trimmed(query)
    url = from_store(query, tmp_path)
    one_base(redis, query)
    stores = [f"--store=redis={query.url}", f"--store=copy={url}"]
    assert run(query, "repair", "--force", *stores).exit_code == WalGapError.exit_code
    driver = query.driver(apply_deadline_s=3.0)
    state = driver.decisions.catch_up()
    driver.decisions.epoch = driver.decisions.tried_epoch = state.epoch  # it runs on
    driver.decisions.writer = state.writer
    for batch_id in (9, 10):
        with pytest.raises(WalGapError):
            query.commit(driver, batch_id)
    assert (driver.store.pointer().visible, driver.folded.last_version) == (9, 11)
    place = url
    if exported:
        place = an_export_ahead(query, driver, url)
    else:
        another_store_ahead(query, driver, url)
    assert query.store(url).pointer().horizon == 11
    mended = run(query, "repair", "--force", "--from", place, *stores)
    assert mended.exit_code == 0, mended.output
    assert found_at(query.store(), 11) == expected(11)
    assert run(query, "verify").exit_code == 0
    query.check(11)


def test_a_source_that_was_left_behind_catches_up_first(redis: RedisServer, query: Query, tmp_path):
    """The other store was away. It shows what this one has retired, and no query starts to bring it on."""
    trimmed(query)
    url = from_store(query, tmp_path)
    driver = query.driver()
    state = driver.decisions.catch_up()
    driver.decisions.epoch = driver.decisions.tried_epoch = state.epoch  # it runs on
    driver.decisions.writer = state.writer
    query.commit(driver, 9, 10, 11, 12)
    query.retire(driver)
    assert query.store(url).pointer().visible < driver.store.pointer().horizon
    one_base(redis, query)
    stores = [f"--store=redis={query.url}", f"--store=copy={url}"]
    assert run(query, "repair", "--force", *stores).exit_code == WalGapError.exit_code
    mended = run(query, "repair", "--force", "--from", url, *stores)
    assert mended.exit_code == 0, mended.output
    query.check(13)


def test_a_source_of_another_namespace_is_refused(redis: RedisServer, query: Query, tmp_path):
    trimmed(query)
    with query_on(redis.url, tmp_path / "other") as other:
        other.run(9)
        theirs = from_export(other, tmp_path)
    one_base(redis, query)
    before = redis.ask("HGETALL", f"{query.keys_of(1)}h")
    refused = run(query, "repair", "--force", "--from", theirs)
    assert refused.exit_code == 2, refused.output
    assert "its rows are not this namespace's; nothing was written" in " ".join(refused.output.split())
    assert redis.ask("HGETALL", f"{query.keys_of(1)}h") == before


def test_a_source_of_another_history_is_refused(redis: RedisServer, query: Query, tmp_path):
    """The same namespace, the same version, and other rows: its manifest says another digest."""
    trimmed(query)
    place = Path(from_export(query, tmp_path))
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["digest"] = "0" * 32
    (place / "manifest.json").write_text(json.dumps(manifest))
    one_base(redis, query)
    refused = run(query, "repair", "--force", "--from", str(place))
    assert refused.exit_code == 2
    assert "they are of two histories" in " ".join(refused.output.split())


def test_an_export_below_the_horizon_is_refused(redis: RedisServer, query: Query, tmp_path):
    query.run(4)
    place = from_export(query, tmp_path)
    trimmed(query)
    one_base(redis, query)
    refused = run(query, "repair", "--force", "--from", place)
    assert refused.exit_code == 2
    assert "take a source with one of these; nothing was written" in " ".join(refused.output.split())


def test_an_export_of_some_tables_is_refused(redis: RedisServer, query: Query, tmp_path):
    trimmed(query)
    store = query.store()
    export(store, store.identity(), 9, tmp_path / "some", ["marker"])
    refused = run(query, "repair", "--force", "--from", str(tmp_path / "some"))
    assert refused.exit_code == 2
    assert "export without --table" in " ".join(refused.output.split())


def test_other_stores_than_redis_take_no_copy(tmp_path):
    with query_on(f"sqlite://{tmp_path}/store", tmp_path) as query:
        query.run(3)
        place = from_export(query, tmp_path)
        refused = run(query, "repair", "--force", "--from", place)
        assert refused.exit_code == 2
        assert "repair from a copy is for stores on Redis" in " ".join(refused.output.split())
