"""What the doctor says of Redis, what a writer refuses, and that barred commands are told, never an error."""

import contextlib
import json
import logging
import uuid

import pytest
from typer.testing import CliRunner

from services.support.redis.cluster import RedisCluster
from services.support.redis.sentinel import RedisSentinel
from tidegate.base.checks import Check
from tidegate.cli import app
from tidegate.cli.inspect import doctor
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import ConfigError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.sinks.redis import checks as redis_checks
from tidegate.sinks.redis.store import RedisStore
from tidegate.sinks.redis.upkeep.limits import SETTINGS
from tidegate.testing.example import BATCHES, Example
from tidegate.wal.memory_log import MemoryLog

MEMORY = "64mb"


@pytest.fixture(autouse=True)
def here(monkeypatch):
    for name in ("STORE", "WAL", "NAMESPACE", "WAL_CONFIG", "STORE_CONFIG"):
        monkeypatch.delenv(f"TIDEGATE_{name}", raising=False)
    monkeypatch.setattr(doctor, "check_java", lambda **_: Check("Java", "pass", "", ""))


def name():
    return f"n{uuid.uuid4().hex[:12]}"


def checks(url, *, thorough=True, namespace=None, **options):
    store = RedisStore(url, namespace or name(), **options)
    try:
        return {check.check: check for check in store.checks(thorough=thorough)}
    finally:
        store.close()


def driver_on(url, **options):
    place = name()
    where = Endpoints(place, f"memory://{place}", url)
    return Coordinator(
        where, MemoryLog(place, place), RedisStore(url, place), Options(key_groups=4, **options)
    )


def doctor_lines(*arguments):
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments], prog_name="tidegate")
    return result.exit_code, {line["check"]: line for line in json.loads(result.stdout)}


def outcomes(found):
    return {check: line.outcome for check, line in found.items()}


# -- one server -------------------------------------------------------------------------------------


def test_a_server_that_is_set_up_well(redis):
    found = checks(redis.url)
    assert set(outcomes(found).values()) == {"pass"}
    assert set(found) == {
        "version",
        "functions",
        "eviction",
        "persistence",
        "replicas",
        "memory",
        "value size",
    }
    assert found["persistence"].found == "appendonly, appendfsync always"
    assert found["version"].found.startswith("Redis ")
    assert all(check.promise for check in found.values())


def test_at_open_two_round_trips_and_only_limits_of_config(private_redis):
    server = private_redis()
    before = server.info("commandstats")
    found = checks(server.url, thorough=False)
    after = server.info("commandstats")
    calls = {
        command: stats["calls"] - before.get(command, {"calls": 0})["calls"]
        for command, stats in after.items()
        if command.startswith("cmdstat_")
    }
    of_config = sum(count for command, count in calls.items() if "config" in command)
    assert of_config == len(SETTINGS)
    assert sum(calls.values()) - of_config <= 7  # and the test's own
    assert set(outcomes(found).values()) == {"pass"}


@pytest.mark.parametrize(
    "policy,limit,outcome",
    [
        ("allkeys-lru", MEMORY, "fail"),
        ("allkeys-random", "0", "warn"),
        ("volatile-lru", MEMORY, "warn"),
        ("volatile-ttl", "0", "pass"),
        ("noeviction", MEMORY, "pass"),
    ],
)
def test_eviction(private_redis, policy, limit, outcome):
    server = private_redis(settings={"maxmemory-policy": policy, "maxmemory": limit})
    found = checks(server.url, thorough=False)["eviction"]
    assert (found.outcome, "set noeviction" in found.found) == (outcome, policy != "noeviction")


def test_a_writer_does_not_open_where_rows_may_vanish(private_redis, caplog):
    server = private_redis(settings={"maxmemory-policy": "allkeys-lru", "maxmemory": MEMORY})
    driver = driver_on(server.url)
    with pytest.raises(ConfigError, match=r"eviction: maxmemory-policy allkeys-lru.*I3, I10.*allow_unsafe"):
        open_namespace(driver, "q")
    assert driver.store.identity() is None
    driver = driver_on(server.url, allow_unsafe=True)
    with caplog.at_level(logging.WARNING, "tidegate"):
        open_namespace(driver, "q")
    assert any("allkeys-lru" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    "settings,outcome,words",
    [
        ({"appendonly": "no"}, "warn", "loses everything"),
        ({"appendonly": "no", "save": "3600 1"}, "warn", "snapshots alone (save 3600 1)"),
        ({"appendfsync": "everysec"}, "pass", "its last second"),
        ({"appendfsync": "no"}, "warn", "not flushed yet"),
    ],
)
def test_persistence(private_redis, settings, outcome, words):
    server = private_redis(settings=settings)
    found = checks(server.url)["persistence"]
    assert found.outcome == outcome
    assert words in found.found
    assert "tidegate repair" in found.found
    assert checks(server.url, thorough=False)["persistence"].outcome in (outcome, "pass")


def test_without_persistence_a_writer_opens(private_redis):
    open_namespace(driver_on(private_redis(settings={"appendonly": "no"}).url), "q")


@pytest.mark.parametrize("settings", [{}, {"appendonly": "no"}])
def test_where_config_is_barred(private_redis, settings):
    server = private_redis(barred=("CONFIG",), settings=settings)
    found = checks(server.url)
    assert found["persistence"].outcome == "warn"
    assert "not known: CONFIG is barred" in found["persistence"].found
    assert set(outcomes(found).values()) == {"pass", "warn"}
    open_namespace(driver_on(server.url), "q")


def test_where_an_acl_bars_much(private_redis):
    """A managed service: what is not told is a warning; the store works all the same."""
    rules = "on >secret ~* &* +@all -config -memory -cluster -function -fcall -fcall_ro"
    server = private_redis(users={"app": rules})
    place = name()
    example = Example(f"memory://{place}", server.url_for("app", "secret"), place)
    example.write(BATCHES[0])
    found = checks(server.url_for("app", "secret"), namespace=place)
    assert (found["functions"].outcome, found["functions"].found) == ("pass", "EVAL: Functions are barred")
    assert "MEMORY is barred" in found["memory"].found
    assert set(outcomes(found).values()) == {"pass", "warn"}
    example.close()


def test_where_info_is_barred(private_redis):
    server = private_redis(users={"app": "on >secret ~* &* +@all -info"})
    found = checks(server.url_for("app", "secret"))
    assert {check for check, line in found.items() if "is barred" in line.found} == {
        *("version", "eviction", "persistence", "replicas", "memory")
    }
    assert "fail" not in outcomes(found).values()


def test_neither_functions_nor_eval_never_works(private_redis):
    server = private_redis(users={"app": "on >secret ~* &* +@all -@scripting"})
    found = checks(server.url_for("app", "secret"), thorough=False)["functions"]
    assert (found.outcome, found.may_be_allowed) == ("fail", False)


def test_functions_that_an_option_switches_off(redis):
    assert (
        checks(redis.url, functions=False)["functions"].found
        == "EVAL: Functions are switched off by an option"
    )


@pytest.mark.parametrize(
    "info,outcome,named",
    [
        ({"redis_version": "6.2.14"}, "fail", "7.0 or later"),
        ({"redis_version": "7.0.15"}, "pass", "wait_aof needs 7.2"),
        ({"redis_version": "7.4.1"}, "pass", "Redis 7.4.1"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.0"}, "pass", "Valkey 8.1.0, as Redis 7.2.4"),
        ({}, "warn", "INFO server is barred"),
    ],
)
def test_versions(info, outcome, named):
    found = redis_checks._version(redis_checks.ServerInfo("a:1", info, {}, {}, False, 1, 1))
    assert found.outcome == outcome
    assert named in found.found


# -- the next version ---------------------------------------------------------------------------------


def test_whether_the_next_version_fits(private_redis):
    server = private_redis(settings={"maxmemory": "3gb"})
    place = name()
    example = Example(f"memory://{place}", server.url, place)
    example.write({"airports": {f"key-{n}": {"departures": n, "delay": 0.0} for n in range(20_000)}})
    found = checks(server.url, namespace=place)["memory"]
    assert found.outcome == "pass"
    assert "20,000 changes take about" in found.found
    assert "(maxmemory)" in found.found
    used = server.info("memory")["used_memory"]
    server.ask("CONFIG", "SET", "maxmemory", used + 200_000)
    found = checks(server.url, namespace=place)["memory"]
    assert found.outcome == "warn"
    assert "may not fit" in found.found
    example.close()


# -- several servers ----------------------------------------------------------------------------------


@pytest.mark.xdist_group("redis_sentinel")
def test_behind_sentinels(redis_sentinel: RedisSentinel):
    found = checks(redis_sentinel.url)
    assert set(outcomes(found).values()) == {"pass"}
    assert found["replicas"].found == "1, none lags"


@pytest.mark.xdist_group("redis_cluster")
def test_on_a_cluster(redis_cluster: RedisCluster):
    found = checks(redis_cluster.url)
    assert found["cluster"].found == "every slot has its server"
    assert set(outcomes(found).values()) == {"pass"}
    one = redis_cluster.servers[0]
    found = checks(one.url, timeout_s=1)
    assert found["cluster"].outcome == "fail"
    assert "redis+cluster://" in found["cluster"].found


def test_the_used_share_of_memory_is_of_maxmemory_and_not_known_without_info(private_redis):
    server = private_redis(settings={"maxmemory": "100mb"})
    with contextlib.closing(open_store(server.url, "n", {})) as store:
        used = server.info("memory")["used_memory"] / (100 * 1024**2)
        assert store.used_shares() == {server.address: pytest.approx(used, rel=0.5)}
    assert redis_checks._memory("a:1", redis_checks.fields(RuntimeError("no permission"))) is None


def test_servers_that_differ_are_named():
    told = [
        redis_checks.ServerInfo(f"a:{n}", {"maxmemory_policy": policy, "maxmemory": "1"}, {}, {}, False, 1, 1)
        for n, policy in enumerate(["noeviction", "allkeys-lru", "noeviction"])
    ]
    first, second = redis_checks._by_server(told, redis_checks._eviction)
    assert first.found == "a:0, a:2: noeviction"
    assert second.found.startswith("a:1: maxmemory-policy allkeys-lru")


@pytest.mark.parametrize(
    "cluster,outcome",
    [
        ({"cluster_state": "ok", "cluster_slots_assigned": "16384", "cluster_slots_ok": "16384"}, "pass"),
        ({"cluster_state": "fail", "cluster_slots_assigned": "16384", "cluster_slots_ok": "9000"}, "warn"),
        ({"cluster_state": "fail", "cluster_slots_assigned": "9000", "cluster_slots_ok": "9000"}, "fail"),
        ({}, "warn"),
    ],
)
def test_slots(cluster, outcome):
    server = redis_checks.ServerInfo("a:1", {}, cluster, {}, False, 1, 1)
    assert redis_checks._slots(server).outcome == outcome


# -- the command --------------------------------------------------------------------------------------


def test_the_doctor_with_a_store_and_nothing_else(private_redis):
    server = private_redis(settings={"appendonly": "no"})
    code, lines = doctor_lines("--store", server.url)
    assert code == 0
    assert lines["store: persistence"]["outcome"] == "warn"
    assert "I3" in lines["store: persistence"]["promise"]
    server.ask("CONFIG", "SET", "maxmemory", "1gb")
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    code, lines = doctor_lines("--store", server.url)
    assert (code, lines["store: eviction"]["outcome"]) == (1, "fail")


def test_the_doctor_of_a_server_that_is_not_there(tmp_path):
    config = tmp_path / "store.properties"
    config.write_text("timeout_s=0.3\n")
    code, lines = doctor_lines("--store", "redis://127.0.0.1:1", f"--store-config={config}")
    assert code == 1
    assert lines["store: set-up"]["outcome"] == "fail"


def test_every_command_finds_the_password_in_the_file(private_redis, tmp_path):
    server = private_redis(password="12345", tls=True)
    config = tmp_path / "store.properties"
    config.touch(0o600)
    tls = "".join(f"{name}={value}\n" for name, value in server.tls_settings.items())
    config.write_text(f"# how to get in\npassword=12345\ntimeout_s=5\nssl_check_hostname=false\n{tls}")
    options = [f"--store=rediss://{server.address}", f"--wal=file://{tmp_path}/wal", "--namespace=flights"]
    run = CliRunner()
    for command in (["init"], ["status"], ["history"], ["vacuum"], ["verify"], ["repair"], ["drop", "--yes"]):
        given = options if command[0] not in ("history", "vacuum") else [options[0], options[2]]
        result = run.invoke(app, [*command, *given, f"--store-config={config}"], prog_name="tidegate")
        assert result.exit_code == 0, (command, result.output)
        assert "12345" not in result.output
    code, lines = doctor_lines(*options, f"--store-config={config}")
    assert (code, lines["store: version"]["outcome"]) == (0, "pass")
