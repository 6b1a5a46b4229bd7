"""What the doctor says of Cassandra, what a writer refuses, and that what is barred is told."""

import json
import logging
import types
import uuid

import pytest
from typer.testing import CliRunner

from tidegate.base.checks import Check
from tidegate.cli import app
from tidegate.cli.inspect import doctor
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import ConfigError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.cassandra import checks as cassandra_checks
from tidegate.sinks.cassandra import node_checks
from tidegate.sinks.cassandra.checks import Keyspace, Node
from tidegate.sinks.cassandra.node_checks import MIB, Clock
from tidegate.sinks.cassandra.store import CassandraStore
from tidegate.wal.memory_log import MemoryLog

AT_OPEN = {
    *("version", "replication", "durable writes", "nodes", "consistency"),
    *("gc_grace", "time to live", "compaction", "read repair"),
}
THOROUGH = AT_OPEN | {"schema", "clocks", "guardrails", "value size", "commit log", "partitions"}
ALTER_S = 60


@pytest.fixture(autouse=True)
def here(monkeypatch):
    for name in ("STORE", "WAL", "NAMESPACE", "WAL_CONFIG", "STORE_CONFIG"):
        monkeypatch.delenv(f"TIDEGATE_{name}", raising=False)
    monkeypatch.setattr(doctor, "check_java", lambda **_: Check("Java", "pass", "", ""))


@pytest.fixture(scope="module")
def keyspace(cassandra):
    """With all tables. Whoever alters it puts it back."""
    name = f"k{uuid.uuid4().hex[:12]}"
    store = CassandraStore(cassandra.url_for(name), "any")
    store.prepare()
    store.close()
    yield name
    cassandra.ask(f"DROP KEYSPACE IF EXISTS {name}", timeout_s=ALTER_S)


@pytest.fixture
def altered(cassandra, keyspace):
    """Alters a table or the keyspace for one test; given: how, and back."""
    backwards = []

    def alter(what, to, back):
        backwards.append(f"ALTER {what} WITH {back}")
        cassandra.ask(f"ALTER {what} WITH {to}", timeout_s=ALTER_S)

    yield alter
    for cql in backwards:
        cassandra.ask(cql, timeout_s=ALTER_S)


def checks(url, *, thorough=False, **options):
    store = CassandraStore(url, f"n{uuid.uuid4().hex[:12]}", **options)
    try:
        return {check.check: check for check in store.checks(thorough=thorough)}
    finally:
        store.close()


def driver_on(url, *, store_options=None, **options):
    place = f"n{uuid.uuid4().hex[:12]}"
    store = CassandraStore(url, place, **(store_options or {}))
    where = Endpoints(place, f"memory://{place}", url)
    return Coordinator(where, MemoryLog(place, place), store, Options(key_groups=4, **options))


def outcomes(found):
    return {check: line.outcome for check, line in found.items()}


# -- the tests' node ----------------------------------------------------------------------------------


def test_a_node_that_is_set_up_well(cassandra, keyspace):
    url = cassandra.url_for(keyspace)
    assert outcomes(checks(url)) == dict.fromkeys(AT_OPEN, "pass")
    found = checks(url, thorough=True)
    assert outcomes(found) == dict.fromkeys(THOROUGH, "pass")
    assert found["version"].found == "Cassandra 5.0.6"
    assert found["commit log"].found.startswith("batch")
    assert all(check.promise for check in found.values())


def test_a_writer_does_not_open_without_a_keyspace(cassandra):
    missing = f"k{uuid.uuid4().hex[:12]}"
    driver = driver_on(cassandra.url_for(missing), allow_unsafe=True)
    with pytest.raises(
        ConfigError, match=rf"keyspace {missing} or a table in it does not exist.*`tidegate init`"
    ):
        open_namespace(driver, "q")
    assert driver.decisions.catch_up() is None  # nothing was appended
    assert not cassandra.ask("SELECT * FROM system_schema.keyspaces WHERE keyspace_name = %s", missing)
    driver.store.close()


def test_with_create_a_writer_makes_the_keyspace(cassandra):
    missing = f"k{uuid.uuid4().hex[:12]}"
    driver = driver_on(cassandra.url_for(missing), store_options={"create": True})
    assert "the first batch creates them" in checks(cassandra.url_for(missing), create=True)["tables"].found
    open_namespace(driver, "q")
    driver.store.close()
    cassandra.ask(f"DROP KEYSPACE {missing}", timeout_s=ALTER_S)


@pytest.mark.parametrize(
    "table,to,back,check",
    [
        ("rows", "gc_grace_seconds = 863999", "gc_grace_seconds = 864000", "gc_grace"),
        ("rows", "default_time_to_live = 60", "default_time_to_live = 0", "time to live"),
        ("schemas", "default_time_to_live = 60", "default_time_to_live = 0", "time to live"),
        (
            "rows",
            "compaction = {'class': 'TimeWindowCompactionStrategy'}",
            "compaction = {'class': 'LeveledCompactionStrategy'}",
            "compaction",
        ),
        ("pointers", "read_repair = 'NONE'", "read_repair = 'BLOCKING'", "read repair"),
    ],
)
def test_tables_that_cannot_keep_a_promise(cassandra, keyspace, altered, table, to, back, check):
    altered(f"TABLE {keyspace}.tidegate_{table}", to, back)
    found = checks(cassandra.url_for(keyspace))
    assert {name for name, line in found.items() if line.outcome != "pass"} == {check}
    assert (found[check].outcome, found[check].may_be_allowed) == ("fail", True)
    assert "ALTER TABLE" in found[check].found or "LeveledCompactionStrategy" in found[check].found


def test_a_writer_does_not_open_on_a_keyspace_that_forgets(cassandra, keyspace, altered, caplog):
    altered(f"KEYSPACE {keyspace}", "durable_writes = false", "durable_writes = true")
    url = cassandra.url_for(keyspace)
    driver = driver_on(url)
    with pytest.raises(ConfigError, match=r"durable writes: off.*I3.*allow_unsafe"):
        open_namespace(driver, "q")
    assert driver.store.identity() is None
    driver.store.close()
    driver = driver_on(url, allow_unsafe=True)
    with caplog.at_level(logging.WARNING, "tidegate"):
        open_namespace(driver, "q")
    assert any("durable writes: off" in record.getMessage() for record in caplog.records)
    driver.store.close()


@pytest.mark.slow
def test_more_copies_than_nodes(cassandra, keyspace, altered):
    replication = "replication = {{'class': 'NetworkTopologyStrategy', 'datacenter1': {}}}".format
    altered(f"KEYSPACE {keyspace}", replication(2), replication(1))
    found = checks(cassandra.url_for(keyspace))
    assert (found["nodes"].outcome, found["replication"].outcome) == ("warn", "warn")
    assert "2 copies do not fit on 1 node of" in found["nodes"].found


def test_where_system_views_is_barred(cassandra, keyspace, monkeypatch):
    """A managed service."""
    for name in ("SETTINGS", "LARGEST"):
        cql = getattr(node_checks, name)
        monkeypatch.setattr(node_checks, name, cql.replace("system_views", "system_viewless"))
    found = checks(cassandra.url_for(keyspace), thorough=True)
    untold = {check for check, line in found.items() if "system_views is barred" in line.found}
    assert untold == {"guardrails", "value size", "commit log"}
    assert {check for check, line in found.items() if line.outcome != "pass"} == untold
    assert "fail" not in outcomes(found).values()


@pytest.mark.slow
def test_settings_that_refuse_us(private_cassandra):
    server = private_cassandra(
        settings={
            "allow_filtering_enabled": False,
            "in_select_cartesian_product_fail_threshold": 50,
            "read_consistency_levels_disallowed": ["SERIAL"],
            "max_mutation_size": "1MiB",
            "commitlog_sync": "periodic",
            "commitlog_sync_period": "10s",
        }
    )
    found = checks(server.url, thorough=True, create=True)
    refused = found["guardrails"]
    assert (refused.outcome, refused.may_be_allowed) == ("fail", False)
    for words in ("allow_filtering_enabled false", "product_fail_threshold 50", "disallowed has SERIAL"):
        assert words in refused.found
    assert (found["value size"].outcome, found["commit log"].outcome) == ("warn", "warn")
    assert (
        "max_mutation_size is 1,048,576 bytes at 127.0.0.1: a larger value than 1,011,712 bytes is refused"
        in (found["value size"].found)
    )
    assert "writes of 10s" in found["commit log"].found


# -- several nodes, without them -------------------------------------------------------------------------


def nodes(*ups, dc="dc1", version="5.0.6"):
    return [Node(f"10.0.0.{n}", dc, up, version) for n, up in enumerate(ups, 1)]


@pytest.mark.parametrize(
    "versions,outcome,words",
    [
        (["5.0.6", "5.0.6"], "pass", "Cassandra 5.0.6"),
        (["4.1.3"], "pass", "Cassandra 4.1.3"),
        (["4.1.3", "5.0.6"], "warn", "an upgrade is in progress"),
        (["4.0.11"], "warn", "supports 4.1 and 5.0"),
        (["6.0-alpha1"], "warn", "supports 4.1 and 5.0"),
        (["3.11.9"], "fail", "4.1 or later is needed"),
        ([""], "warn", "not known"),
    ],
)
def test_versions(versions, outcome, words):
    given = [Node("10.0.0.1", "dc1", True, each) for each in versions]
    found = cassandra_checks.version(given, scylla=False)
    assert (found.outcome, words in found.found) == (outcome, True)


def test_scylla_is_known_and_untested():
    system = types.SimpleNamespace(tables={"local": None, "scylla_local": None})
    assert cassandra_checks.is_scylla({"system": system})
    assert not cassandra_checks.is_scylla({"system": types.SimpleNamespace(tables={"local": None})})
    found = cassandra_checks.version(nodes(True, version="3.0.8"), scylla=True)
    assert found.outcome == "warn"
    assert "not tested" in found.found


@pytest.mark.parametrize(
    "keyspace,given,outcome,words",
    [
        (Keyspace("k", {"dc1": 3}), nodes(True, True, True), "pass", "written at LOCAL_QUORUM"),
        (Keyspace("k", {"dc1": 1}), nodes(True, True, True), "fail", "one copy"),
        (Keyspace("k", {"dc1": 1}), nodes(True), "fail", "one copy"),
        (Keyspace("k", {"dc1": 1}), [Node("127.0.0.1", "dc1", True, "5.0.6")], "pass", "this machine"),
        (Keyspace("k", {"dc1": 3, "dc2": 1}), nodes(True, True, True), "fail", "one copy"),
        (Keyspace("k", {"dc1": 2}), nodes(True, True, True), "warn", "a quorum of two is both"),
        (Keyspace("k", {"dc2": 3}), nodes(True, True, True), "fail", "no copy in data centre dc1"),
        (Keyspace("k", {"": 3}, simple=True), nodes(True, True, True), "warn", "SimpleStrategy"),
        (Keyspace("k", {"": 3}, simple=True), [*nodes(True), *nodes(True, dc="dc2")], "fail", "dc1, dc2"),
        (Keyspace("k", {"dc1": 3}, transient=True), nodes(True, True, True), "fail", "transient"),
    ],
)
def test_replication(keyspace, given, outcome, words):
    found = cassandra_checks.replication(keyspace, given, "LOCAL_QUORUM", "dc1")
    assert (found.outcome, words in found.found) == (outcome, True), found
    assert outcome == "pass" or "ALTER KEYSPACE k" in found.found


def test_a_keyspace_as_the_server_tells_it():
    row = {"keyspace_name": "k", "durable_writes": True}
    network = {"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", "dc1": "3", "dc2": "3/1"}
    assert cassandra_checks.keyspace_of({**row, "replication": network}) == Keyspace(
        "k", {"dc1": 3, "dc2": 3}, transient=True
    )
    simple = {"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": "3"}
    assert cassandra_checks.keyspace_of({**row, "replication": simple}) == Keyspace("k", {"": 3}, simple=True)


@pytest.mark.parametrize(
    "ups,level,outcome,words",
    [
        ((True, True, True), "LOCAL_QUORUM", "pass", "3 nodes, 3 up"),
        ((True, None, True), "LOCAL_QUORUM", "pass", "3 nodes, 3 up"),
        ((True, False, True), "LOCAL_QUORUM", "warn", "10.0.0.2 down; `nodetool repair`"),
        ((True, False, False), "QUORUM", "warn", "only 1 may be: writes wait"),
        ((True, True), "LOCAL_QUORUM", "warn", "3 copies do not fit on 2 nodes"),
    ],
)
def test_nodes_that_are_down(ups, level, outcome, words):
    found = cassandra_checks.quorum(Keyspace("k", {"dc1": 3}), nodes(*ups), level, "dc1")
    assert (found.outcome, words in found.found) == (outcome, True), found


def test_who_can_read_it():
    both = Keyspace("k", {"dc1": 3, "dc2": 3})
    assert "readers in dc2 are refused" in cassandra_checks.consistency(both, "LOCAL_QUORUM", "dc1").found
    assert "LOCAL_QUORUM or QUORUM" in cassandra_checks.consistency(both, "EACH_QUORUM", "dc1").found


# -- clocks, settings, partitions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ahead_s,outcome",
    [((0, 0), "pass"), ((0.3, -0.1), "pass"), ((0.4, -0.4), "warn"), ((0, 0.7), "warn"), ((-6, 0), "fail")],
)
def test_clocks(ahead_s, outcome):
    clocks = [Clock(f"10.0.0.{n}", s - 0.01, s + 0.01) for n, s in enumerate(ahead_s, 1)]
    found = node_checks.clocks(clocks)
    assert found.outcome == outcome
    assert outcome == "pass" or "run NTP" in found.found


def test_a_slow_reply_proves_nothing_of_a_clock():
    assert node_checks.clocks([Clock("10.0.0.1", -20.0, 0.1)]).outcome == "pass"


@pytest.mark.parametrize(
    "name,value,words",
    [
        ("group_by_enabled", "false", "group by key"),
        ("user_timestamps_enabled", "false", "timestamp"),
        ("page_size_fail_threshold", "500", "1,000 rows"),
        ("batch_size_fail_threshold", "8KiB", "raise it to 10,240"),
        ("write_consistency_levels_disallowed", "[LOCAL_QUORUM, ANY]", "has LOCAL_QUORUM: take it out"),
        ("maximum_timestamp_fail_threshold", "1d", "tidegate drop"),
        ("minimum_timestamp_fail_threshold", "1d", "time of its decision"),
    ],
)
def test_guardrails(name, value, words):
    found = node_checks.refusals({name: value})
    assert (found.outcome, found.may_be_allowed) == ("fail", False)
    assert words in found.found
    assert node_checks.refusals({name: "-1"}).outcome == "pass" or "_timestamp_" in name


MOST = 15 * MIB


@pytest.mark.parametrize(
    "settings, fits, named",
    [
        ({}, MOST, ""),
        ({"max_mutation_size": "16MiB", "native_transport_max_frame_size": "16MiB"}, MOST, ""),
        ({"max_mutation_size": "2MiB"}, 2 * MIB - 36_864, "max_mutation_size is 2,097,152 bytes"),
        ({"native_transport_max_message_size": "1MiB"}, MOST, ""),  # of protocol 5
        ({"native_transport_max_frame_size": "4MiB"}, 4 * MIB - 36_864, "frame_size is 4,194,304"),
        ({"column_value_size_fail_threshold": "1MiB"}, MIB - 36_864, "column_value_size_fail_threshold is"),
        ({"local_read_size_fail_threshold": "64MiB"}, MOST, ""),
        (
            {"local_read_size_fail_threshold": "64MiB", "read_thresholds_enabled": "true"},
            (64 * MIB - 36_864) // 32,
            "local_read_size_fail_threshold is",
        ),
    ],
)
def test_the_smallest_limit_of_any_node_counts(settings, fits, named):
    large = {"max_mutation_size": "16MiB"}
    found = node_checks.limits({"10.0.0.1": large, "10.0.0.2": settings}, MOST)
    assert (found.value_bytes, named in found.why, bool(found.why)) == (fits, True, bool(named))
    assert named == "" or ("10.0.0.2" in found.why and "restart the query" in found.why)
    assert found.check.outcome == ("warn" if named or not settings else "pass")
    assert settings or "system_views is barred at 10.0.0.2" in found.check.found


@pytest.mark.parametrize(
    "settings",
    [{"tombstone_failure_threshold": "1000"}, {"read_thresholds_enabled": "true"}],
)
def test_settings_that_may_refuse_us(settings):
    assert node_checks.refusals(settings).outcome == "warn"


def test_nodes_that_differ_are_named():
    told = {"a": {"group_by_enabled": "true"}, "b": {"group_by_enabled": "false"}, "c": None}
    first, second, third = node_checks._by_server(told, node_checks.refusals)
    assert (first.outcome, second.outcome, third.outcome) == ("pass", "fail", "warn")
    assert second.found.startswith("b: group_by_enabled false")
    assert third.found == "c: not known: system_views is barred"


@pytest.mark.parametrize(
    "largest,groups,outcome,words",
    [
        (None, 128, "pass", "none yet"),
        (80 * MIB, 128, "pass", "80 MiB"),
        (400 * MIB, 128, "warn", "with 1,024 key groups, not 128"),
        (400 * MIB, 32_768, "warn", "with 32,768 key groups"),
        (400 * MIB, None, "warn", "with more key groups"),
    ],
)
def test_partitions(largest, groups, outcome, words):
    found = node_checks.partitions(largest, groups)
    assert (found.outcome, words in found.found) == (outcome, True), found


# -- the command --------------------------------------------------------------------------------------


def doctor_lines(*arguments):
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments], prog_name="tidegate")
    return result.exit_code, {line["check"]: line for line in json.loads(result.stdout)}


def test_the_doctor_with_a_store_and_nothing_else(cassandra, keyspace):
    code, lines = doctor_lines("--store", cassandra.url_for(keyspace))
    assert code == 0
    assert {f"store: {check}" for check in THOROUGH} <= lines.keys()


def test_the_doctor_of_a_node_that_is_not_there(tmp_path):
    config = tmp_path / "store.properties"
    config.write_text("timeout_s=0.5\n")
    code, lines = doctor_lines("--store=cassandra://127.0.0.1:1/k", f"--store-config={config}")
    assert code == 1
    assert lines["store: set-up"]["outcome"] == "fail"
    assert "Connection refused" in lines["store: set-up"]["found"]
