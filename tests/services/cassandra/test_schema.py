"""How keyspace and tables are made: by `tidegate init`, once, whoever else does the same; what is refused."""

import dataclasses
import json
import subprocess
import uuid

import pytest
from typer.testing import CliRunner

from services.support.cassandra.cluster import CassandraCluster
from tidegate.cli import app
from tidegate.errors import ConfigError
from tidegate.options import Options
from tidegate.sinks.cassandra.client.statements import shapes, tables
from tidegate.sinks.cassandra.store import CassandraStore
from tidegate.testing.example import BATCHES, Example

AT_ONCE = 3
INIT_S = 300


@pytest.fixture(autouse=True)
def here(monkeypatch):
    for name in ("STORE", "WAL", "NAMESPACE", "WAL_CONFIG", "STORE_CONFIG"):
        monkeypatch.delenv(f"TIDEGATE_{name}", raising=False)


@pytest.fixture
def keyspace(cassandra):
    name = f"k{uuid.uuid4().hex[:12]}"
    yield name
    cassandra.ask(f"DROP KEYSPACE IF EXISTS {name}", timeout_s=60)


def init(url, wal, *options, namespace="flights"):
    arguments = ["init", "--json", f"--store={url}", f"--wal={wal}", f"--namespace={namespace}", *options]
    return CliRunner().invoke(app, arguments, prog_name="tidegate")


def there(server, keyspace):
    asked = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"
    return {row.table_name for row in server.ask(asked, keyspace)}


# -- init -------------------------------------------------------------------------------------------


def test_init_makes_all_that_a_namespace_needs(cassandra, keyspace, tmp_path):
    url, wal = cassandra.url_for(keyspace), f"file://{tmp_path}/wal"
    made = json.loads(init(url, wal).stdout)
    assert made["prepared"][0] == f"keyspace {keyspace} (copies: datacenter1: 1)"
    assert made["prepared"][1:] == [f"table {table}" for table in tables()]
    assert there(cassandra, keyspace) == set(tables())
    example = Example(wal, url, options=Options())
    example.write(BATCHES[0])
    example.close()
    again = json.loads(init(url, wal).stdout)
    assert again == {**made, "made": False, "prepared": []}


def test_init_says_what_it_made(cassandra, keyspace, tmp_path):
    arguments = [
        f"--store={cassandra.url_for(keyspace)}",
        f"--wal=file://{tmp_path}/wal",
        "--namespace=flights",
    ]
    said = CliRunner().invoke(app, ["init", *arguments], prog_name="tidegate").stdout
    assert f"made keyspace {keyspace} (copies: datacenter1: 1)\n" in said
    assert "made table tidegate_rows\n" in said
    assert "namespace flights made, with 128 key groups" in said


@pytest.mark.slow
def test_copies_from_a_file(cassandra, keyspace, tmp_path):
    config = tmp_path / "store.properties"
    config.write_text("replication=datacenter1:3\n")
    result = init(cassandra.url_for(keyspace), f"file://{tmp_path}/wal", f"--store-config={config}")
    # Made as told; then refused, since one node cannot keep three copies.
    asked = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
    assert cassandra.ask(asked, keyspace)[0].replication["datacenter1"] == "3"
    assert result.exit_code != 0


def test_an_administrators_keyspace_only_gets_the_tables(cassandra, keyspace):
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    cassandra.ask(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}", timeout_s=60)
    store = not_told_how_many(cassandra.url_for(keyspace))
    assert store.prepare() == [f"table {table}" for table in tables()]
    assert store.prepare() == []
    store.close()


def test_a_table_that_is_missing_is_made(cassandra, keyspace):
    store = CassandraStore(cassandra.url_for(keyspace), "flights")
    store.prepare()
    cassandra.ask(f"DROP TABLE {keyspace}.tidegate_notes", timeout_s=60)
    assert store.prepare() == ["table tidegate_notes"]
    store.close()


def not_told_how_many(url):
    """As with hosts elsewhere."""
    store = CassandraStore(url, "flights")
    store._space.settings = dataclasses.replace(store._space.settings, replication={})
    return store


# -- what is refused ------------------------------------------------------------------------------


def test_nobody_guesses_how_many_copies(cassandra, keyspace):
    store = not_told_how_many(cassandra.url_for(keyspace))
    with pytest.raises(
        ConfigError, match=rf"the number of copies of keyspace {keyspace} is not known.*--store-config"
    ):
        store.prepare()
    assert not there(cassandra, keyspace)
    store.close()


@pytest.mark.parametrize(
    "change,column,words",
    [
        ("DROP leases_at", "leases_at", "missing, not uuid, static"),
        ("RENAME version TO ver", "version", "missing, not bigint, clustering 1 desc"),
    ],
)
def test_tables_of_another_shape(cassandra, keyspace, change, column, words):
    url = cassandra.url_for(keyspace)
    store = CassandraStore(url, "flights")
    store.prepare()
    cassandra.ask(f"ALTER TABLE {keyspace}.tidegate_pointers {change}", timeout_s=60)
    refusal = rf"table tidegate_pointers of keyspace {keyspace}.*its column {column} is {words}"
    for asked in (store.prepare, store.identity):
        with pytest.raises(ConfigError, match=refusal):
            asked()
    store.close()


def test_a_table_whose_rows_lie_the_other_way_round(cassandra, keyspace):
    """LIMIT 1 would give the oldest version."""
    store = CassandraStore(cassandra.url_for(keyspace), "flights")
    store.prepare()
    cassandra.ask(f"DROP TABLE {keyspace}.tidegate_rows", timeout_s=60)
    made = tables()["tidegate_rows"].replace(" tidegate_rows ", f" {keyspace}.tidegate_rows ")
    cassandra.ask(made.replace("version DESC", "version ASC"), timeout_s=60)
    with pytest.raises(ConfigError, match=r"its column version is bigint, clustering 2, not .* desc"):
        store.identity()
    store.close()


def test_more_columns_do_no_harm(cassandra, keyspace):
    store = CassandraStore(cassandra.url_for(keyspace), "flights")
    store.prepare()
    cassandra.ask(f"ALTER TABLE {keyspace}.tidegate_namespaces ADD comment text", timeout_s=60)
    assert store.identity() is None
    store.close()


def test_the_shapes_are_those_of_the_schema():
    assert shapes().keys() == tables().keys()
    assert shapes()["tidegate_rows"]["kg"] == "int, partition_key 3"
    assert shapes()["tidegate_rows"]["version"] == "bigint, clustering 2 desc"
    assert shapes()["tidegate_namespaces"]["name"] == "text, partition_key 1"
    assert all("value" not in columns for table, columns in shapes().items() if table != "tidegate_rows")


# -- at the same time ---------------------------------------------------------------------------------


def several_inits(url, wal, *options):
    """What each of some processes says that make the same namespace at the same time."""
    where = (f"--store={url}", f"--wal={wal}", "--namespace=flights")
    arguments = ["tidegate", "init", "--json", *where, *options]
    running = [
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(AT_ONCE)
    ]
    try:
        said = [process.communicate(timeout=INIT_S) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0] * AT_ONCE, said
    return [json.loads(out) for out, _ in said]


@pytest.mark.slow
def test_several_at_the_same_time(cassandra, keyspace, tmp_path):
    config = tmp_path / "store.properties"
    config.write_text("timeout_s=60\n")
    url, wal = cassandra.url_for(keyspace), f"file://{tmp_path}/wal"
    facts = several_inits(url, wal, f"--store-config={config}")
    assert len({each["uuid"] for each in facts}) == 1
    assert there(cassandra, keyspace) == set(tables())


@pytest.mark.slow
@pytest.mark.timeout(INIT_S)
def test_several_at_the_same_time_through_several_nodes(cassandra_cluster: CassandraCluster, tmp_path):
    keyspace = f"k{uuid.uuid4().hex[:12]}"
    url, wal = cassandra_cluster.url_for(keyspace), f"file://{tmp_path}/wal"
    config = tmp_path / "store.properties"
    config.write_text("replication=3\ntimeout_s=60\n")
    try:
        facts = several_inits(url, wal, f"--store-config={config}")
        assert len({each["uuid"] for each in facts}) == 1
        asked = "SELECT table_name, id FROM system_schema.tables WHERE keyspace_name = %s"
        seen = {frozenset(node.ask(asked, keyspace)) for node in cassandra_cluster.nodes}
        assert len(seen) == 1
        assert not any("ID mismatch" in node.log_text() for node in cassandra_cluster.nodes)
    finally:
        cassandra_cluster.nodes[0].ask(f"DROP KEYSPACE IF EXISTS {keyspace}", timeout_s=60)
