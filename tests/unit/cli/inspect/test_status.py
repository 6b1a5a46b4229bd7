"""The commands init and status: a namespace made once, and what log and store know of it."""

import json
import threading

import pytest

from support.cli import decisions, done, done_json, options_for, readers_only, refused, run
from tidegate.errors import StoreUnavailableError, WalUnavailableError
from tidegate.options import Options
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.example import BATCHES, LINEAGE, Example
from tidegate.wal.file.log import FileLog
from tidegate.wal.record import Decided, decode_record


def test_init_makes_a_namespace_once(tmp_path):
    options = options_for(tmp_path, "new")
    first = done_json("init", "--key-groups", 4, *options)
    assert (first["made"], first["key_groups"]) == (True, 4)
    assert done_json("init", *options) == {**first, "made": False}
    assert "was there already, with 4 key groups" in done("init", *options)
    assert "made with key_groups=4, 5 was asked for" in refused(2, "init", "--key-groups", 5, *options)
    assert "next: start a query" in done("init", *options_for(tmp_path, "newer"))
    status = done_json("status", *options)
    assert (status["visible"], status["decided"], status["lineage"], status["tables"]) == (0, 0, None, [])
    assert "none yet" in done("status", *options)
    history = run("history", *readers_only(options))
    assert (history.exit_code, history.stdout) == (0, "")
    assert "namespace new has no visible version yet" in history.stderr
    assert done_json("history", *readers_only(options)) == []
    assert "no visible version yet" in refused(2, "scan", "t", *readers_only(options))


def test_status_tells_where_log_and_store_stand(stuck):
    before = decisions(stuck.driver)
    status = done_json("status", *stuck.options)
    assert (status["decided"], status["visible"], status["lag"], status["horizon"]) == (2, 1, 1, 0)
    assert (status["epoch"], status["writer"]) == (1, stuck.driver.writer)
    assert (status["lineage"], status["last_batch"]) == (LINEAGE, 1)
    assert (status["void_records"], status["problems"], status["heartbeat_age_s"]) == (0, [], None)
    aircraft = status["tables"][0]
    assert (aircraft["name"], aircraft["key"]) == ("aircraft", {"tailnum": "string"})
    text = done("status", *stuck.options)
    assert "2 (1 not visible yet" in text
    assert "aircraft\ttailnum string\tcarrier string, flights int\tnever" in text
    stuck.driver.store.heartbeat(1)
    assert "seems to be running" in done("status", *stuck.options)
    assert decisions(stuck.driver) == before


def test_status_without_a_log_tells_what_the_store_knows(flights):
    status = done_json("status", *readers_only(flights))
    assert status["visible"] == 3
    assert "decided" not in status
    assert "not known without --wal" in done("status", *readers_only(flights))


def test_status_counts_void_records(stuck):
    decided = [c for c in decisions(stuck.driver) if isinstance(decode_record(c, "test"), Decided)]
    stuck.driver.log.append_decision(decided[0])
    status = done_json("status", *stuck.options)
    assert status["void_records"] == 1
    assert "version 1 does not follow" in status["void_reasons"][0]
    assert "void records\t1 (last: " in done("status", *stuck.options)


def test_status_of_a_log_and_a_store_that_do_not_fit(tmp_path, flights):
    root = tmp_path
    example = Example(f"file://{root}/wal", f"sqlite://{root}/store", options=Options(key_groups=2))
    example.write(BATCHES[0])
    example.close()
    wal = options_for(root)[1]
    mixed = [flights[0], wal, flights[2]]
    result = run("status", "--json", *mixed)
    assert result.exit_code == 10
    assert "check the URLs" in json.loads(result.stdout)["problems"][0]
    assert "check the URLs" in result.stderr
    missing = [f"--store=sqlite://{root}/elsewhere", wal, flights[2]]
    result = run("status", *missing)
    assert (result.exit_code, "tidegate recover" in result.stderr) == (10, True)
    assert "(2 key groups, uuid " in result.stdout  # the log knows them
    assert "None" not in result.stdout
    empty = [flights[0], f"--wal=file://{root}/elsewhere", flights[2]]
    result = run("status", *empty)
    assert (result.exit_code, "the log is gone: it is empty" in result.stderr) == (10, True)
    assert not (root / "elsewhere").exists()


@pytest.mark.parametrize("silent", [False, True])
def test_a_log_that_is_away_hides_nothing_that_the_store_knows(flights, monkeypatch, silent):
    def away(_):
        if silent:
            threading.Event().wait(60)
        raise WalUnavailableError("the log: no answer")

    monkeypatch.setattr(FileLog, "is_empty", away)
    result = run("status", "--limit=1", *flights)
    assert result.exit_code == 6
    assert "visible version\t3" in result.stdout
    assert "not known: see the problem below" in result.stdout
    assert ("no answer within 1 s" if silent else "the log: no answer") in result.stderr
    result = run("status", "--limit=1", "--json", *flights)
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["visible"]) == (6, 3)
    assert "no answer" in answer["log_error"]


def test_a_store_that_is_away_costs_one_time_limit(flights, monkeypatch):
    requests = []

    def away(_):
        requests.append("identity")
        raise StoreUnavailableError("the store: no answer")

    monkeypatch.setattr(SqliteStore, "identity", away)
    result = run("status", *flights)
    assert (result.exit_code, requests) == (StoreUnavailableError.exit_code, ["identity"])
    assert "the store: no answer" in result.stderr


@pytest.mark.parametrize(
    "url, why",
    [
        ("redis://127.0.0.1:1", "Connection refused"),
        ("redis+sentinel://127.0.0.1:1/primary", "Connection refused"),
        ("cassandra://127.0.0.1:1/keyspace", "Connection refused"),
        ("redis://no-such-host.invalid", "no-such-host.invalid:6379: "),
    ],
)
def test_a_server_that_is_not_there_is_named_without_a_wait_for_the_limit(url, why):
    told = refused(7, "status", "--store", url, "--namespace", "n", "--limit", 600)
    assert why in told


def test_a_log_that_is_not_there_is_named_without_a_wait_for_the_limit(tmp_path):
    log = "kafka://127.0.0.1:1"
    at = ["--store", f"sqlite://{tmp_path}/s", "--wal", log, "--namespace", "n", "--limit", 600]
    assert "127.0.0.1:1: Connection refused" in refused(6, "status", *at)
