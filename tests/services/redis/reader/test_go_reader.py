"""The reader in Go, examples/readers/go, beside the one in Python on the same data."""

import json
import shutil
import subprocess

import pytest

import tidegate
from services.support.servers import ROOT
from tidegate.committers.operations.alias import checked_target, set_alias
from tidegate.keys.groups import key_group
from tidegate.options import Options, parse_store
from tidegate.testing.example import BATCHES, Example
from tidegate.testing.store.harness import ManualClock

FOLDER = ROOT / "examples" / "readers" / "go"
NO_GO = """Go builds the example reader for its test and was not found.
  Debian, Ubuntu:  sudo apt-get update && sudo apt-get install -y golang-go"""
BUILD_S, READ_S = 400, 60

pytestmark = pytest.mark.xdist_group("go")  # built once


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    go = shutil.which("go")
    if go is None:
        pytest.fail(NO_GO)
    program = tmp_path_factory.mktemp("go") / "reader"
    build = [go, "build", "-o", str(program), "."]
    done = subprocess.run(build, cwd=FOLDER, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture
def flights(redis, namespace, tmp_path):
    example = Example(f"file://{tmp_path}/wal", redis.url, namespace)
    yield example
    example.close()


def read(program, *arguments):
    command = [str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=READ_S, check=False)


def test_it_is_small():
    assert len((FOLDER / "main.go").read_text().splitlines()) <= 110


@pytest.mark.timeout(BUILD_S + 60)  # the first build fetches and compiles the client
def test_both_read_the_same(reader, redis, namespace, flights):
    keys = ["N14228", "N24211", "N00000", "käse"]
    for rows in BATCHES:
        flights.write(rows)
        done = read(reader, redis.url, namespace, "aircraft", *keys)
        assert done.returncode == 0, done.stderr
        lines = [line.split("\t") for line in done.stdout.splitlines()]
        with tidegate.connect(redis.url, namespace) as gate:
            expected = gate.table("aircraft").get_many(keys)
        assert [line[0] for line in lines] == keys
        assert [int(line[1]) for line in lines] == [key_group(key.encode(), 8) for key in keys]
        found = {key: json.loads(value) for key, _, value in lines if value != "(absent)"}
        assert found == expected


@pytest.mark.timeout(BUILD_S + 60)
def test_tables_with_fewer_key_groups(reader, redis, namespace, tmp_path):
    options = Options(key_groups=8, table_key_groups={"aircraft": 2})
    flights = Example(f"file://{tmp_path}/wal", redis.url, namespace, options=options)
    rows = {f"N{number}": {"carrier": "UA", "flights": number} for number in range(20)}
    flights.write({"aircraft": rows})
    done = read(reader, redis.url, namespace, "aircraft", *rows)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert {key: json.loads(value) for key, _, value in lines} == rows
    assert {int(group) for _, group, _ in lines} == {0, 4}
    flights.close()


@pytest.mark.timeout(BUILD_S + 60)
def test_by_an_alias(reader, redis, namespace, flights):
    flights.write(BATCHES[0])
    alias = f"{namespace}.live"
    at = parse_store(redis.url)
    set_alias(at, alias, checked_target(at, alias, namespace))
    done = read(reader, redis.url, alias, "aircraft", "N14228")
    assert json.loads(done.stdout.split("\t")[2]) == {"carrier": "UA", "flights": 1}


@pytest.mark.timeout(BUILD_S + 60)
def test_several_columns_and_tables_that_were_emptied(reader, redis, namespace, flights):
    flights.write(BATCHES[0])
    done = read(reader, redis.url, namespace, "legs", "3:EWR,4:1545,")
    assert json.loads(done.stdout.split("\t")[2]) == {"dest": "IAH"}
    flights.write({"legs": {("JFK", 1): {"dest": "MIA"}}}, frozenset({"legs"}))
    done = read(reader, redis.url, namespace, "legs", "3:EWR,4:1545,", "3:JFK,1:1,")
    assert [line.split("\t")[2] for line in done.stdout.splitlines()] == ["(absent)", '{"dest":"MIA"}']


@pytest.mark.timeout(BUILD_S + 60)
def test_what_has_expired_is_absent(reader, redis, namespace, tmp_path):
    """By the version's time, as for the one in Python."""
    clock, keys = ManualClock(), ["N1", "N2"]
    options = Options(key_groups=8, ttl={"aircraft": "1 h"})
    flights = Example(f"file://{tmp_path}/wal", redis.url, namespace, options=options, clock=clock)
    rows = {key: {"carrier": "UA", "flights": 1} for key in keys}
    for some in (rows, {"N2": rows["N2"]}, {}):
        flights.write({"aircraft": some})
        done = read(reader, redis.url, namespace, "aircraft", *keys)
        lines = [line.split("\t") for line in done.stdout.splitlines()]
        there = {key for key, _, value in lines if value != "(absent)"}
        with tidegate.connect(redis.url, namespace) as gate:
            assert there == gate.table("aircraft").get_many(keys).keys()
        clock.advance(2_400)
    assert there == {"N2"}
    flights.close()


@pytest.mark.timeout(BUILD_S + 60)
def test_what_it_cannot_read_is_an_error(reader, redis, namespace, flights):
    flights.write(BATCHES[0])
    done = read(reader, redis.url, namespace, "nowhere", "k")
    assert (done.returncode, "no table nowhere at version 1" in done.stderr) == (1, True)
    done = read(reader, redis.url, f"{namespace}-other", "aircraft", "k")
    assert (done.returncode, "not there" in done.stderr) == (1, True)


@pytest.mark.timeout(BUILD_S + 60)
def test_a_server_that_was_not_compared_is_refused(reader, private_redis, tmp_path):
    server = private_redis()
    example = Example(f"file://{tmp_path}/wal", server.url)
    example.write(BATCHES[0])
    assert read(reader, server.url, "flights", "aircraft", "N14228").returncode == 0
    server.kill()
    server.restart()
    done = read(reader, server.url, "flights", "aircraft", "N14228")
    assert (done.returncode, "TGSERVER" in done.stderr) == (1, True), done.stderr
    example.write(BATCHES[1])  # the writer compares it
    done = read(reader, server.url, "flights", "aircraft", "N14228")
    assert done.stdout.endswith('{"carrier":"UA","flights":2}\n')
    example.close()
