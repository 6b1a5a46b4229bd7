"""`tidegate repair`: what a server of Redis lost is back, and told."""

import json

import pytest

import tidegate
from support.cli import run
from tidegate.errors import StoreNotVerifiedError
from tidegate.testing.example import BATCHES, Example


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("STORE", "WAL", "NAMESPACE", "WAL_CONFIG", "STORE_CONFIG"):
        monkeypatch.delenv(f"TIDEGATE_{name}", raising=False)


def test_a_server_that_came_back_as_it_was_before_is_mended(private_redis, tmp_path):
    server = private_redis(settings={"appendonly": "no"})
    options = [f"--store={server.url}", f"--wal=file://{tmp_path}/wal", "--namespace=flights"]
    example = Example(f"file://{tmp_path}/wal", server.url)
    example.write(BATCHES[0])
    example.driver.store.heartbeat(example.driver.epoch)
    server.ask("SAVE")
    for rows in BATCHES[1:]:
        example.write(rows)
    example.close()
    server.kill()
    server.restart()
    with tidegate.connect(server.url, "flights") as gate, pytest.raises(StoreNotVerifiedError):
        gate.table("airports").get("EWR")

    refused = run("repair", *options)
    assert refused.exit_code == 2
    assert "tidegate repair would fence it" in refused.output
    mended = run("repair", "--force", "--json", *options)
    assert mended.exit_code == 0, mended.output
    facts = json.loads(mended.stdout)
    assert [one["version"] for one in facts["put_back"]] == [2, 3]
    assert all(one["key_groups"] for one in facts["put_back"])
    assert (facts["visible"], facts["recovered"]) == (3, [2, 3])
    with tidegate.connect(server.url, "flights") as gate:
        assert gate.table("airports").get("EWR") == {"departures": 2, "delay": 1.5}

    again = run("repair", "--force", *options)
    assert again.exit_code == 0, again.output
    assert "nothing was lost" in again.stdout
    assert "version 3 is visible" in again.stdout


def test_an_empty_server_is_written_anew(private_redis, tmp_path):
    server = private_redis()
    options = [f"--store={server.url}", f"--wal=file://{tmp_path}/wal", "--namespace=flights"]
    example = Example(f"file://{tmp_path}/wal", server.url)
    for rows in BATCHES:
        example.write(rows)
    example.close()
    server.kill()
    server.restart(empty=True)
    mended = run("repair", *options)
    assert mended.exit_code == 0, mended.output
    assert "put back: all versions up to 2 in 8 key groups" in mended.stdout
    assert "made visible: version 2, 3" in mended.stdout
    assert run("verify", *options).exit_code == 0


def test_a_namespace_that_is_not_there(private_redis, tmp_path):
    options = [f"--store={private_redis().url}", f"--wal=file://{tmp_path}/wal", "--namespace=flights"]
    assert run("repair", *options).exit_code == 2


def test_a_store_that_loses_nothing(tmp_path):
    options = [f"--store=sqlite://{tmp_path}/store", f"--wal=file://{tmp_path}/wal", "--namespace=flights"]
    assert run("init", *options).exit_code == 0
    told = run("repair", *options)
    assert told.exit_code == 0, told.output
    assert "nothing was lost" in told.stdout


def test_watch_repairs_when_servers_changed_and_no_writer_runs(private_redis, tmp_path):
    server = private_redis(settings={"appendonly": "no"})
    options = [f"--store={server.url}", f"--wal=file://{tmp_path}/wal", "--namespace=flights"]
    example = Example(f"file://{tmp_path}/wal", server.url)
    for rows in BATCHES:
        example.write(rows)
    example.driver.store.heartbeat(example.driver.epoch)
    server.ask("SAVE")
    server.kill()
    server.restart()
    watched = run("repair", "--watch", "--every", "0.1", "--for", "1s", *options)
    assert (watched.exit_code, watched.stdout) == (0, "")
    with tidegate.connect(server.url, "flights") as gate, pytest.raises(StoreNotVerifiedError):
        gate.table("airports").get("EWR")

    server.ask("HDEL", "tg:{flights}:meta", "heartbeat_us")
    watched = run("repair", "--watch", "--every", "0.1", "--for", "1s", *options)
    assert watched.exit_code == 0, watched.output
    assert watched.stdout.count("version 3 is visible, and every server counts as compared") == 1
    with tidegate.connect(server.url, "flights") as gate:
        assert gate.table("airports").get("EWR") == {"departures": 2, "delay": 1.5}
    example.close()
