"""The commands on Kafka and Cassandra as they are typed: their own processes, and what a person sees."""

import contextlib
import json
import os
import subprocess
import sys
import uuid

import pytest

from tidegate.errors import ConfigError, StoreUnavailableError
from tidegate.options import Options
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import BATCHES, Example
from tidegate.wal.open_log import open_log

TYPED_S = 180
PROGRAM = "from tidegate.cli import main; main()"


@pytest.fixture
def typed(kafka, cassandra_tables, tmp_path):
    """``typed("status", code=2)``: the command in an empty folder; its standard output and error."""
    namespace = f"n{uuid.uuid4().hex[:8]}"
    given = {"STORE": cassandra_tables, "WAL": f"kafka://{kafka.bootstrap}", "NAMESPACE": namespace}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}

    def command(*words, code=0, **other):
        told = {f"TIDEGATE_{name}": value for name, value in {**given, **other}.items()}
        line, told = [sys.executable, "-c", PROGRAM, *words], environment | told
        how = {"capture_output": True, "text": True, "timeout": TYPED_S}
        done = subprocess.run(line, cwd=tmp_path, env=told, check=False, **how)
        assert done.returncode == code, (words, done)
        assert "Traceback" not in done.stderr
        assert all(line.startswith("tidegate: ") for line in done.stderr.splitlines()), done.stderr
        return done.stdout, done.stderr

    command.given, command.namespace = given, namespace
    yield command
    with contextlib.closing(open_log(given["WAL"], namespace)) as log:
        log.drop()


def write(typed):
    example = Example(
        typed.given["WAL"], typed.given["STORE"], typed.namespace,
        options=Options(allow_unsafe=True, key_groups=8),
    )  # fmt: skip
    for rows in BATCHES:
        example.write(rows)
    example.close()


@pytest.mark.slow
def test_the_commands_of_a_day(typed):
    assert "there is no namespace" in typed("status", code=2)[1]
    assert "with 8 key groups" in typed("init", "--key-groups", "8", "--allow-unsafe")[0]
    write(typed)
    assert json.loads(typed("status", "--json")[0])["visible"] == len(BATCHES)
    assert json.loads(typed("get", "airports", "EWR", "--json")[0])["value"]["departures"] == 2
    assert "has no key X" in typed("get", "airports", "X", code=1)[1]
    assert typed("scan", "airports", "--at", "1")[0].count("\n") == 3
    assert "every server counts as compared" in typed("repair", "--allow-unsafe")[0]
    assert typed("verify")[0].startswith("nothing wrong")
    assert typed("vacuum")[0].startswith("gone: 0 rows")
    assert "all namespaces and copies" in typed("doctor", code=1)[0]  # a broker keeps one copy
    typed("drop", "--yes")
    assert "there is no namespace" in typed("status", code=2)[1]


@pytest.mark.parametrize(
    "store,code,why",
    [
        ("cassandra://ann:secret@127.0.0.1:1/tidegate", StoreUnavailableError.exit_code, "refused"),
        ("cassandra://ann:secret@no-such-host.invalid/t", StoreUnavailableError.exit_code, "hosts' names"),
        ("cassandra://ann:secret@127.0.0.1", ConfigError.exit_code, "no keyspace"),
        ("cassandra://ann:secret@127.0.0.1/t?x=1", ConfigError.exit_code, "store_options"),
    ],
)
def test_urls_that_lead_nowhere(typed, tmp_path, store, code, why):
    (tmp_path / "store.properties").write_text("timeout_s=0.5\n")
    said = typed("history", "--store-config", "store.properties", code=code, STORE=store)[1]
    assert why in said
    assert "secret" not in said
    assert len(said.splitlines()) == 1


def test_tables_are_nobodys_to_make_but_inits(typed, cassandra):
    """A keyspace that is not there is told, and not made, by whoever only looks."""
    nowhere = cassandra.url_for("nowhere")
    assert "there is no namespace" in typed("status", code=2, STORE=nowhere)[1]
    with contextlib.closing(open_store(nowhere, "n")) as store:
        assert store.identity() is None
