"""``VersionedSink`` through Spark Connect, on real servers: whatever is killed, each batch is there once.

Everything runs in processes of its own: a process has classic sessions, or those of Spark Connect.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from connect_client import LOGIN
from connect_query import BATCHES, add_input
from log_places import command

import tidegate
from support.connect_server import ConnectServer
from support.wait import wait_until
from support.whole_snapshots import whole_snapshots
from tidegate.testing.example import write_flights
from tidegate.wal.fold import View, fold_all
from tidegate.wal.open_log import open_log

WRITERS = pytest.importorskip("pyspark.sql.datasource")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.only_log("file"),
    pytest.mark.skipif(
        not hasattr(WRITERS, "DataSourceStreamArrowWriter"), reason="for this it takes PySpark 4.1 or newer"
    ),
]

HERE = Path(__file__).parent
CLIENT_S = 600.0
CLASSIC = "local[2]"
TABLES = ("newest", "greatest", "sums", "only", "patched", "changes", "left", "states", "listed")


@pytest.fixture
def folder(tmp_path):
    """The input, the checkpoints, log and store of one test."""
    add_input(tmp_path, 0, 1, 2)
    return tmp_path


@pytest.fixture
def server(folder):
    """Starts servers; ``armed`` are failpoints of the process that commits."""
    with contextlib.ExitStack() as ended:
        yield lambda armed="": ended.enter_context(contextlib.closing(ConnectServer(folder, armed)))


@pytest.fixture
def client(folder):
    """Starts a client, which ends with its query, or is killed."""
    started = []

    def start(namespace, master, place=""):
        words = [sys.executable, str(HERE / "connect_query.py"), str(folder), namespace, master, place]
        told = folder / f"client-{len(started)}.log"
        with told.open("w") as output:
            started.append(subprocess.Popen(words, cwd=folder, stdout=output, stderr=subprocess.STDOUT))
        started[-1].told = told
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def ended(client):
    """Wait for the end of a client; return its exit code and what it printed."""
    code = client.wait(CLIENT_S)
    return code, client.told.read_text()[-8_000:]


def run(client, *arguments):
    """Run a query to its end."""
    code, told = ended(client(*arguments))
    assert code == 0, told


def committed(folder, namespace):
    return sorted(int(path.name) for path in (folder / f"checkpoint-{namespace}" / "commits").glob("[0-9]*"))


def forget(checkpoint, *names):
    """Remove files of a checkpoint, with Hadoop's checksums."""
    for path in (checkpoint / name for name in names):
        for each in (path, path.with_name(f".{path.name}.crc")):
            each.unlink(missing_ok=True)


def rows_of(folder, namespace):
    """All tables at each version."""
    found = []
    with tidegate.connect(f"sqlite://{folder}/store", namespace) as gate:
        for version in range(1, gate.version() + 1):
            with gate.snapshot(version=version) as snapshot:
                found.append({name: dict(snapshot.table(name).scan()) for name in TABLES})
                seen = sorted(int(item) for _, item in snapshot.table("_local.seen").scan())
                found[-1]["seen"] = {None: seen}
                numbers = [row["n"] for row in found[-1]["newest"].values()]
                counted = {n: {"keys": numbers.count(n), "sum": n * numbers.count(n)} for n in numbers}
                assert dict(snapshot.table("by_n").scan()) == counted, f"derived, at version {version}"
    return found


def fingerprints(folder, namespace):
    with contextlib.closing(open_log(f"file://{folder}/wal", namespace, {})) as log:
        return [fact.origin.fingerprint for fact in fold_all(View(), log.decisions()).state.recent]


def is_whole(tables, batches):
    """Whether the tables have each row of these batches once."""
    sums = {}
    for row in (row for number in batches for row in BATCHES[number]):
        sums[row["k"]] = {"n": sums.get(row["k"], {"n": 0})["n"] + row["n"]}
    seen = {None: sorted(row["n"] for number in batches for row in BATCHES[number])}
    return tables["seen"] == seen and all(tables[name] == sums for name in ("sums", "states", "listed"))


def is_equal(snapshot):
    """Whether three tables have the same sums."""
    sums, states, listed = (dict(snapshot.table(name).scan()) for name in ("sums", "states", "listed"))
    return sums == states == listed


HEAD = """
import contextlib
import tidegate
from connect_query import started

def is_there():
    with contextlib.suppress(tidegate.ConfigError):
        with tidegate.connect(STORE, "numbers") as gate:
            return gate.version()
"""


@pytest.mark.timeout(700)
def test_the_readmes_program_runs_through_spark_connect(tmp_path):
    """It differs in the session, and in how it waits: the sink that commits is in another process."""
    readme = (HERE.parents[1] / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1]
    for old, new in (
        ('.master("local[2]")', '.remote("local[2]")'),
        ("sink.start(", "started(sink, "),
        ("while sink.last_commit is None:", "while not is_there():"),
        ("/tmp/tide", f"{tmp_path}/tide"),
    ):
        assert old in code
        code = code.replace(old, new)
    program = tmp_path / "pasted.py"
    program.write_text(HEAD + code)
    environment = {**os.environ, "SPARK_TESTING": "1"}  # a port of its own
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=CLIENT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    version, count = re.fullmatch(r"(\d+) \{.*\} (\d+)", done.stdout.strip().splitlines()[-1]).groups()
    assert int(version) >= 1
    assert count == "10"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_query_moves_between_classic_sessions_and_spark_connect_i2(folder, server, client):
    """Each begins with the batch that the other has committed last, as if Spark did not know of that."""
    checkpoint = folder / "checkpoint-moved"
    run(client, "moved", CLASSIC)
    assert committed(folder, "moved") == [0, 1, 2]
    forget(checkpoint, "commits/2")
    add_input(folder, 3)
    at = server()
    both = client("moved", at.url), client("stayed", at.url)  # two clients, of one server
    for code, told in map(ended, both):
        assert code == 0, told
    forget(checkpoint, "commits/3")
    run(client, "moved", CLASSIC)

    assert committed(folder, "moved") == committed(folder, "stayed") == [0, 1, 2, 3]
    assert rows_of(folder, "moved") == rows_of(folder, "stayed")
    assert [is_whole(each, range(at + 1)) for at, each in enumerate(rows_of(folder, "moved"))] == [True] * 4
    assert fingerprints(folder, "moved") == fingerprints(folder, "stayed")

    shutil.rmtree(checkpoint)  # a checkpoint of another query
    shutil.copytree(folder / "checkpoint-stayed", checkpoint)
    forget(checkpoint, "commits/3")
    code, told = ended(client("moved", at.url))
    assert code, told
    assert "LineageError: " in told
    older = folder / "checkpoint-stayed"
    forget(older, *(f"{each}/{batch}" for each in ("commits", "offsets", "sources/0") for batch in (2, 3)))
    os.utime(folder / "input" / "2.json", (1_700_000_000,) * 2)  # an older copy, and another file than then
    code, told = ended(client("stayed", at.url))
    assert code, told
    assert "LineageError: " in told
    assert len(rows_of(folder, "moved")) == len(rows_of(folder, "stayed")) == 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "killed, armed",
    [
        ("worker", "manifest.after_write=kill@2"),
        ("worker", "decide.after_append=kill@2"),
        ("server", ""),
        ("client", ""),
    ],
)
def test_whatever_is_killed_in_a_batch_each_batch_is_there_once_i1_i2_i4(
    folder, server, client, killed, armed
):
    """SIGKILL in batch 1. The next client continues; what was decided is finished."""
    with whole_snapshots(f"sqlite://{folder}/store", "n", is_equal) as versions:
        first = server(armed)
        started = client("n", first.url, "" if killed == "worker" else killed)
        if killed == "server":
            wait_until(lambda: first.ended, "the server is killed", CLIENT_S)
            started.kill()  # it would ask the server for minutes
        else:
            code, told = ended(started)
            assert code, told
        if killed == "client":  # the batches go on without it
            wait_until(lambda: committed(folder, "n") == [0, 1, 2], "the query ends", CLIENT_S)
        else:
            assert committed(folder, "n") == [0]
        add_input(folder, 3)
        run(client, "n", first.url if killed == "client" else server().url)
        wait_until(lambda: versions and versions[-1] == 4, "the reader sees the last version")
    assert committed(folder, "n") == [0, 1, 2, 3]
    assert [is_whole(each, range(at + 1)) for at, each in enumerate(rows_of(folder, "n"))] == [True] * 4
    where = ["--store", f"sqlite://{folder}/store", "--namespace", "n", "--wal", f"file://{folder}/wal"]
    assert json.loads(command("verify", "--json", *where))["findings"] == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("master", [CLASSIC, "sc:"])
def test_tables_are_read_by_the_name_of_the_source_and_loaded_and_imported(tmp_path, monkeypatch, master):
    """In an installed tidegate the module that Spark looks for is beside it."""
    by_name = tmp_path / "installed"
    shutil.copytree(HERE.parents[1] / "src" / "pyspark_tidegate", by_name / "pyspark_tidegate")
    monkeypatch.setenv("PYTHONPATH", f"{by_name}:{os.environ.get('PYTHONPATH', '')}")
    wal, store = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    write_flights(wal, store, alias="live")
    command("export", str(tmp_path / "export"), "--store", store, "--namespace", "flights")
    program = [sys.executable, str(HERE / "connect_client.py"), str(tmp_path)]
    (events := tmp_path / "events").mkdir()
    logged = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
    logged |= {"spark.eventLog.compress": "false"}
    with contextlib.ExitStack() as ended:
        if master != CLASSIC:
            server = ConnectServer(tmp_path, settings=logged)
            master = ended.enter_context(contextlib.closing(server)).url
        done = subprocess.run(
            [*program, master], capture_output=True, text=True, timeout=CLIENT_S, check=False
        )
    assert done.returncode == 0, done.stderr[-6000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    made = {line["name"]: line["made"] for line in lines}
    assert made["read"] == made["registered"] == [["N14228", "UA", 2]]
    requests = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    shown = ["versionAsOf" in requests, "(redacted)" in requests, LOGIN in requests]
    assert shown == ([False] * 3 if master == CLASSIC else [True, True, False])
    assert made["one key"] == [["N24211", "UA", 1]]
    assert [row[-2:] for row in made["stream"]] == [
        ["upsert", 1],
        ["upsert", 1],
        ["upsert", 2],
        ["delete", 3],
    ]
    assert (made["load"], made["rename"], made["import"]) == ([1, 1], 2, [1, 1])
    with tidegate.connect(store, "written") as gate:
        assert dict(gate.table("aircraft").scan()) == {
            "N1": {"carrier": "UA", "places": 1}, "N2": {"carrier": "AA", "places": 2},
        }  # fmt: skip
    with tidegate.connect(store, "imported") as copy, tidegate.connect(store, "flights") as gate:
        for table in ("aircraft", "airports", "legs", "notes"):
            assert dict(copy.table(table).scan()) == dict(gate.table(table).scan())
