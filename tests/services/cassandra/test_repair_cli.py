"""`tidegate repair` on Cassandra: what nodes lost is back, also below the horizon; what was not compared
is reported.
"""

import contextlib
import json
import re
import sqlite3
import uuid

import pytest
from cassandra.query import SimpleStatement
from typer.testing import CliRunner

import tidegate
from services.support.cassandra.server import KEYSPACE
from tidegate.cli import app
from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import CorruptError
from tidegate.options import Options
from tidegate.sinks.cassandra.client.statements import within
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import Example

KEYS = [f"K{number:02d}" for number in range(12)]
OPTIONS = Options(key_groups=8, keep_versions=3)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("STORE", "WAL", "NAMESPACE", "WAL_CONFIG", "STORE_CONFIG"):
        monkeypatch.delenv(f"TIDEGATE_{name}", raising=False)


def run(*arguments):
    done = CliRunner().invoke(app, arguments, prog_name="tidegate")
    assert done.exit_code == 0, done.output
    return done.stdout


class Place:
    """A namespace on the node, its log in files."""

    def __init__(self, url, folder):
        self.url, self.wal, self.namespace = url, f"file://{folder}/wal", f"n{uuid.uuid4().hex[:8]}"
        self.options = [f"--store={url}", f"--wal={self.wal}", f"--namespace={self.namespace}"]

    def write(self, batches):
        example = Example(self.wal, self.url, self.namespace, options=OPTIONS)
        for rows in batches:
            example.write({"airports": rows})
        driver = example.driver
        retire_up_to(driver.log, driver.store, driver.folded, OPTIONS, lambda: False)
        example.close()

    def retire(self):
        """As a query that starts does: what was announced last is dropped once more."""
        self.write([])

    def trim(self, oldest):
        """The log as it is when it is old: what versions before this one staged is gone."""
        example = Example(self.wal, self.url, self.namespace, options=OPTIONS)
        log, needed = example.driver.log, []
        for fact in example.driver.folded.recent:
            if fact.version >= oldest:
                frames = read_manifest(log, fact).frames()
                needed += [fact.manifest_address, *(frame.address for frame in frames)]
        log.trim_blobs(needed, 2**62)
        example.close()

    def lose_all_rows(self):
        """Rows and tombstones: what nodes lose whose commit log was not synced."""
        with contextlib.closing(open_store(self.url, self.namespace)) as store:
            truncate = SimpleStatement(within("TRUNCATE tidegate_rows", KEYSPACE))
            store.identity()
            store._space.session.driver.execute(truncate)

    def ask(self, cql, *values):
        with contextlib.closing(open_store(self.url, self.namespace)) as store:
            statement, space = SimpleStatement(within(cql, KEYSPACE)), store._space.made.space
            return list(store._space.session.driver.execute(statement, (space, *values)))

    def follow(self, told):
        """Run the commands of a message."""
        for command in re.findall("`tidegate ([^`]*)`", told):
            words = [word.replace("=URL", f"={self.url}") for word in command.split()]
            drops = words[0] == "drop"
            run(*words, *["--yes"] * drops, *self.options[drops:2])

    def ask_all(self, cql):
        with contextlib.closing(open_store(self.url, self.namespace)) as store:
            store.identity()
            store._space.session.driver.execute(SimpleStatement(within(cql, KEYSPACE)))

    def read(self):
        with tidegate.connect(self.url, self.namespace) as gate:
            return {key: row["departures"] for key, row in gate.table("airports").scan()}


@pytest.fixture
def place(cassandra_tables, tmp_path):
    return Place(cassandra_tables, tmp_path)


def row(number):
    return {"departures": number, "delay": 0.0}


def deleting(versions):
    """Each version writes every key but its own, which it deletes."""
    return [
        {key: None if at == version else row(version) for at, key in enumerate(KEYS)} for version in versions
    ]


def test_a_horizon_that_deleted_a_key_is_no_loss(place):
    """Its delete markers go with its retirement, so that its rows are fewer than it had changes."""
    place.write(deleting(range(1, 9)))
    assert "nothing was lost" in run("repair", "--force", *place.options)
    assert json.loads(run("verify", "--json", *place.options))["findings"] == []


def test_lost_rows_are_back_where_the_horizon_deleted_a_key(place):
    place.write(deleting(range(1, 9)))
    expected = place.read()
    assert len(expected) == len(KEYS) - 1
    place.lose_all_rows()
    place.retire()
    facts = json.loads(run("repair", "--force", "--json", *place.options))
    assert [one["version"] for one in facts["put_back"]] == [6, 7, 8]
    assert facts["not_compared"] is None
    assert place.read() == expected
    assert run("verify", *place.options).startswith("nothing wrong")
    assert "nothing was lost" in run("repair", "--force", *place.options)


@pytest.mark.parametrize("retired", [False, True])
def test_rows_that_were_deleted_by_hand_are_back(place, retired):
    """Red before: the mark of the delete hides the row for good, `repair` ended with 15 and no next step."""
    place.write([{key: row(1) for key in KEYS}, *([{"K00": row(n)} for n in range(2, 8)] * retired)])
    expected = place.read()
    rows = place.ask("SELECT tbl, kg, key, version FROM tidegate_rows WHERE space = %s ALLOW FILTERING")
    lost = next(found for found in rows if found[0] == "airports" and b"K07" in found[2])
    of_row = "tbl = %s AND kg = %s AND key = %s AND version = %s"
    place.ask(f"DELETE FROM tidegate_rows WHERE space = %s AND {of_row}", *lost)
    assert "K07" not in place.read()
    done = CliRunner().invoke(app, ["repair", "--force", *place.options], prog_name="tidegate")
    assert done.exit_code == (0 if retired else 15), done.output  # as a row of the horizon it is another one
    place.follow(done.stderr)
    assert place.read() == expected
    assert run("verify", *place.options).startswith("nothing wrong")


@pytest.mark.parametrize("lost", ["an entry", "schemas", "schemas, deleted by hand"])
def test_what_the_catalog_lost_is_back(place, lost):
    """Red before: of the entry `repair` said that nothing was lost, of both the message asked for a copy."""
    place.write([{key: row(version) for key in KEYS} for version in (1, 2, 3)])
    expected = place.read()
    if lost == "an entry":
        place.ask("DELETE FROM tidegate_pointers WHERE space = %s AND version = 3")
    elif lost == "schemas":
        place.ask_all("TRUNCATE tidegate_schemas")
    else:
        place.ask("DELETE FROM tidegate_schemas WHERE space = %s")
    with pytest.raises(CorruptError, match="on Redis and Cassandra `tidegate repair` puts it back"):
        place.read()
    done = CliRunner().invoke(app, ["repair", "--force", *place.options], prog_name="tidegate")
    assert done.exit_code == (15 if "by hand" in lost else 0), done.output
    place.follow(done.stderr)
    assert place.read() == expected
    assert run("verify", *place.options).startswith("nothing wrong")


def test_a_keyspace_that_lacks_a_table_is_not_empty(place, cassandra):
    """Red before: `status` said that the store has nothing of the namespace, and `recover` was refused."""
    place.write([{key: row(1) for key in KEYS}])
    expected = place.read()
    place.ask_all("DROP TABLE tidegate_notes")
    for command in ("status", "verify", "recover"):
        done = CliRunner().invoke(app, [command, *place.options], prog_name="tidegate")
        assert "lacks tidegate_notes: `tidegate init" in done.output, done.output
    run("init", *place.options)
    run("repair", "--force", *place.options)
    assert place.read() == expected
    assert run("verify", *place.options).startswith("nothing wrong")


def test_rows_from_below_the_horizon_are_back(place):
    """Version 1 wrote twelve keys that no later version changed; it was retired long ago."""
    old = {f"OLD{number:02d}": row(1) for number in range(12)}
    place.write(
        [old | {"GONE": row(1)}, {"GONE": None}, *({key: row(n) for key in KEYS} for n in range(3, 9))]
    )
    expected = place.read()
    assert len(expected) == 24
    place.lose_all_rows()
    told = run("repair", "--force", *place.options)
    assert "put back: version 1 in " in told
    assert place.read() == expected
    place.retire()
    assert place.read() == expected
    assert run("verify", *place.options).startswith("nothing wrong")
    assert "nothing was lost" in run("repair", "--force", *place.options)


@pytest.mark.slow
def test_a_deleted_row_that_came_back_with_older_rows_is_hidden_again(place):
    """The tombstones were lost, and rows that had been flushed long before were not."""
    place.write([{"GONE": row(1), "STAYS": row(1)}])
    flushed = [
        (table, group, *found)
        for table, group in [("airports", group) for group in range(8)]
        for found in place.ask(
            "SELECT key, version, value, WRITETIME(value) FROM tidegate_rows"
            " WHERE space = %s AND tbl = %s AND kg = %s",
            table, group,
        )
    ]  # fmt: skip
    place.write([{"GONE": None}, *({key: row(n) for key in KEYS} for n in range(3, 9))])
    expected = place.read()
    place.lose_all_rows()
    for found in flushed:
        place.ask(
            "INSERT INTO tidegate_rows (space, tbl, kg, key, version, value) VALUES (%s, %s, %s, %s, %s, %s)"
            " USING TIMESTAMP %s",
            *found,
        )
    assert place.read() == {"GONE": 1, "STAYS": 1}
    assert "put back: version 2 in 1 key groups" in run("repair", "--force", *place.options)
    assert place.read() == expected
    run("vacuum", *(one for one in place.options if not one.startswith("--wal")))
    assert place.read() == expected
    assert run("verify", *place.options).startswith("nothing wrong")


def test_what_the_log_no_longer_has_is_not_compared_and_that_is_reported(place, caplog):
    place.write(deleting(range(1, 9)))
    expected = place.read()
    place.trim(6)
    facts = json.loads(run("repair", "--force", "--json", *place.options))
    assert facts["put_back"] == []
    assert "versions before 6 wrote were not compared" in facts["not_compared"]
    assert "versions before 6 wrote were not compared" in caplog.text
    place.lose_all_rows()
    told = run("repair", "--force", *place.options)
    assert [line[:23] for line in told.splitlines()[:3]] == [f"put back: version {n} in " for n in (6, 7, 8)]
    assert "not compared: rows that versions before 6 wrote" in told
    assert "`tidegate store add NAME=URL --namespace" in told
    assert place.read() == expected


def test_a_secondary_is_repaired_as_the_primary_is(place, tmp_path):
    """The primary is on SQLite; both lost the same rows."""
    main = f"sqlite://{tmp_path}/main"
    place.url, other = main, place.url
    place.write(deleting(range(1, 9)))
    log = place.options[1:]
    run("store", "add", f"copy={other}", f"--store=main={main}", *log, "--force")
    for path in (tmp_path / "main").rglob("shard-*.sqlite"):
        with (
            contextlib.closing(sqlite3.connect(path)) as shard,
            contextlib.suppress(sqlite3.OperationalError),
        ):
            shard.execute("DELETE FROM t_airports")
            shard.commit()
    place.url = other
    place.lose_all_rows()
    facts = json.loads(
        run("repair", "--json", "--force", f"--store=main={main}", f"--store=copy={other}", *log)
    )
    (copy,) = facts["stores"]
    assert (copy["name"], copy["error"], copy["not_compared"]) == ("copy", None, None)
    assert [one["version"] for one in facts["put_back"]] == [6, 7, 8]
    assert [one["version"] for one in copy["put_back"]] == [8]  # it was filled at this version
    there = []
    for place.url in (main, other):
        there.append(place.read())
        assert len(there[-1]) == len(KEYS) - 1
    assert there[0] == there[1]


def test_a_row_whose_value_was_emptied_is_damaged_for_every_read(place):
    """Not absent: its key is there."""
    place.write([{key: row(n) for key in KEYS} for n in range(1, 4)])
    (group,) = {
        group
        for group in range(8)
        for found in place.ask(
            "SELECT key FROM tidegate_rows WHERE space = %s AND tbl = 'airports' AND kg = %s", group
        )
        if found[0] == b"K03"
    }
    place.ask(
        "UPDATE tidegate_rows SET value = null WHERE space = %s AND tbl = 'airports' AND kg = %s"
        " AND key = %s AND version = 3",
        group, b"K03",
    )  # fmt: skip
    with tidegate.connect(place.url, place.namespace) as gate:
        airports = gate.table("airports")
        for read in (
            lambda: airports.get("K03"),
            lambda: airports.get_many(KEYS),
            lambda: list(airports.scan()),
        ):
            with pytest.raises(CorruptError, match="key b'K03'"):
                read()
    assert "compares their values" in run("repair", "--force", *place.options)
    told = CliRunner().invoke(app, ["verify", *place.options], prog_name="tidegate")
    assert told.exit_code == 14
    assert "key 'K03'\ta row of 29 bytes\ta row of 0 bytes" in told.output
    run("vacuum", *(one for one in place.options if not one.startswith("--wal")))
