"""``verify`` on Redis: no false alarm while a writer runs, and no damage of a header that is not found."""

from __future__ import annotations

import contextlib
import os
import threading

import pytest
from typer.testing import CliRunner

from services.support.redis.query import Query, query_on
from services.support.redis.server import RedisServer
from support.concurrency import WAIT_S
from tidegate.cli import app
from tidegate.committers.operations.verify import verify
from tidegate.errors import CorruptError

RUNS = int(os.environ.get("TIDEGATE_VERIFY_RUNS", "20"))
"""Runs beside a writer."""
OTHER_KEYS = int(os.environ.get("TIDEGATE_VERIFY_OTHER_KEYS", "1000"))
"""Keys on the server that are not of the namespace."""
KEYS_AT_ONCE, WRITE_S = 1_000, 0.05


@pytest.fixture
def query(redis: RedisServer, tmp_path):
    with query_on(redis.url, tmp_path) as made:
        made.run(4)
        yield made


def found(query: Query) -> list[str]:
    findings = verify(query.log(), query.store()).findings
    return [f"{one.where}: {one.expected}, found {one.found}" for one in findings]


@pytest.mark.parametrize("retired", [False, True], ids=["commit", "commit and merge"])
def test_what_a_writer_writes_between_two_looks_is_no_finding(query, retired):
    """A version that was sealed after the keys were listed was reported as lost."""
    driver, store = query.open(), query.store()
    plain, done = store._space.asked, []

    def write():
        done.append(None)
        query.commit(driver, 3 + len(done))
        if retired:
            query.retire(driver)

    def hooked(calls, **options):
        if not calls or calls[0].name != "header":
            return plain(calls, **options)
        write()
        replies = plain(calls, **options)
        write()
        return replies

    store._space.asked = hooked
    assert list(store.self_check()) == []
    assert len(done) == 2


def test_no_run_beside_a_writer_has_a_finding(private_redis, tmp_path):
    """For longer: TIDEGATE_VERIFY_RUNS=1000 TIDEGATE_VERIFY_OTHER_KEYS=1000000 pytest -k beside_a_writer."""
    server = private_redis(settings={"appendonly": "no"})
    for first in range(0, OTHER_KEYS, KEYS_AT_ONCE):
        server.ask(
            "MSET", *(part for n in range(first, first + KEYS_AT_ONCE) for part in (f"other:{n}", "x"))
        )
    with query_on(server.url, tmp_path) as query:
        driver, ended = query.run(4, keep_versions=3), threading.Event()

        def write() -> None:
            batch_id = 4
            while not ended.wait(WRITE_S):
                query.commit(driver, batch_id)
                query.tidy(driver)
                batch_id += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            store, log = query.store(), query.log()
            alarms = [finding for _ in range(RUNS) for finding in verify(log, store).findings]
        finally:
            ended.set()
            writer.join(WAIT_S)
        assert not writer.is_alive()
        assert alarms == []
        assert driver.store.pointer().visible > 5


def test_a_listed_layer_and_a_listed_base_without_keys(query, redis):
    query.retire(query.open())
    store = query.store()
    header = store._space.asked([store._space.of_group(0, "header")])[0]
    fields = dict(zip(header[::2], header[1::2], strict=True))
    listed = [name for name in fields if name[:2] in (b"l:", b"b:")]
    assert {name[:2] for name in listed} == {b"l:", b"b:"}
    for name in listed:
        table, version = name[2:].decode(), fields[name].split(b",")[-1].decode()
        kind = f"d:{version}:{store._space.uuid.decode()}" if name[:1] == b"l" else "b"
        key = f"tg:{{{query.namespace}/0}}:{table}:{kind}"
        redis.ask("RENAME", key, f"{key}-away")
        (finding,) = store.self_check()
        assert f"key group 0, table {table}" in finding.where
        assert "tidegate repair" in finding.found
        redis.ask("RENAME", f"{key}-away", key)
    assert list(store.self_check()) == []


DAMAGE = {
    "a base without a number": ("b:t", ""),
    "a base that is no number": ("b:t", "x"),
    "layers that are no numbers": ("l:t", "1,x"),
    "a floor that is none": ("floor", "x"),
    "a floor above all versions": ("floor", "9"),
    "a floor above the horizon": ("floor", "3"),
    "a table whose name is no text": (b"b:\xff", "1"),
    "another server": ("s", "0" * 40),
    "another namespace": ("u", "x"),
    "marks of a repair": ("u", None),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_header_is_a_finding_with_its_place(query, redis, how):
    """Each was a traceback, or was found by readers alone."""
    field, content = DAMAGE[how]
    key = f"tg:{{{query.namespace}/2}}:h"
    redis.ask("HSET", key, field, redis.ask("HGET", key, "u") + "!x" if content is None else content)
    places = [line for line in found(query) if "key group 2" in line]
    assert places, found(query)
    assert any(key in line or "marks" in line for line in places)
    words = [f"--store={query.url}", f"--wal={query.wal}", f"--namespace={query.namespace}"]
    done = CliRunner().invoke(app, ["verify", *words])
    assert done.exit_code == CorruptError.exit_code, done.output
    with contextlib.suppress(SystemExit):
        done = CliRunner().invoke(app, ["repair", *words])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception


def test_a_server_id_that_somebody_changed_is_mended_by_a_repair(query, redis):
    redis.ask("HSET", f"tg:{{{query.namespace}/2}}:h", "s", "0" * 40)
    words = [f"--store={query.url}", f"--wal={query.wal}", f"--namespace={query.namespace}"]
    assert CliRunner().invoke(app, ["repair", *words]).exit_code == 0
    assert found(query) == []
