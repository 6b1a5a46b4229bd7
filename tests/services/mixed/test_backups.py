"""A backup of a namespace on Kafka and a store: the store is emptied, then the log is removed, too."""

import uuid

import pytest
from typer.testing import CliRunner

import tidegate
from tidegate.cli import app
from tidegate.options import Options
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import BATCHES, Example
from tidegate.wal.open_log import open_log

OPTIONS = Options(key_groups=4, allow_unsafe=True)  # one broker


def run(options, *arguments):
    result = CliRunner().invoke(app, [*map(str, arguments), *options], prog_name="tidegate")
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(url, namespace):
    with tidegate.connect(url, namespace) as gate, gate.snapshot() as snapshot:
        tables = {name: dict(snapshot.table(name).scan()) for name in snapshot.tables()}
        return snapshot.version, tables


@pytest.mark.parametrize("gone", ["the store", "the log, too"])
def test_a_namespace_is_back_and_its_query_goes_on_exactly_once(kafka, redis, tmp_path, gone):
    lose_and_restore(kafka, redis.url, redis.forget, tmp_path, gone)


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["the store", "the log, too"])
def test_a_namespace_on_cassandra_is_back_too(kafka, cassandra_tables, tmp_path, gone):
    def forget(name):
        store = open_store(cassandra_tables, name)
        store.drop()
        store.close()

    lose_and_restore(kafka, cassandra_tables, forget, tmp_path, gone)


def lose_and_restore(kafka, url, forget, tmp_path, gone):
    name = f"n{uuid.uuid4().hex}"
    options = [f"--wal={kafka.url}", f"--store={url}", f"--namespace={name}"]
    example = Example(kafka.url, url, name, options=OPTIONS)
    for number, batch in enumerate(BATCHES):
        if number < 2 or gone == "the store":
            example.write(batch)
        if number < 2:
            run(options, "backup", tmp_path / "backup")
    version, before = rows(url, name)
    example.close()
    forget(name)
    if gone == "the log, too":
        log = open_log(kafka.url, name)
        log.drop()
        log.close()
    more = ["--yes", "--force", "--allow-unsafe"]
    run(options, "restore-from", tmp_path / "backup", *more)
    wanted = version if gone == "the store" else version + 1
    assert rows(url, name) == (wanted, before)
    again = Example(kafka.url, url, name, options=OPTIONS)
    assert again.driver.folded.batches == {again.lineage: (0, version - 1)}
    again.driver.folded.batches[again.lineage] = (0, version - 1)
    assert again.write(BATCHES[0], batch_id=version) == wanted + 1
    again.close()
    assert "nothing wrong" in run(options, "verify")
    run(options, "drop", "--yes", "--force")
