"""docker-compose.yml is a valid compose file and keeps the promises that its comments make."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCHEMA_FILE = ROOT / "tests/data/compose-spec/compose-spec.json"


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def schema_errors(document):
    schema = json.loads(SCHEMA_FILE.read_text())
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    return [f"{error.json_path}: {error.message}" for error in validator(schema).iter_errors(document)]


def command_option(service, name):
    command = service["command"]
    return command[command.index(name) + 1]


def test_fits_the_compose_specification(compose):
    assert schema_errors(compose) == []


def test_the_schema_refuses_a_wrong_file(compose):
    wrong = {**compose, "services": {"redis": {"image": "redis:7.4", "portz": []}}}
    assert any("portz" in error for error in schema_errors(wrong))


def test_every_service_has_a_health_check_loopback_ports_and_a_named_volume(compose):
    by_default = {name for name, service in compose["services"].items() if "profiles" not in service}
    assert by_default == {"kafka", "redis", "cassandra"}
    assert set(compose["services"]) - by_default == {"prometheus", "grafana"}
    for name, service in compose["services"].items():
        assert service["healthcheck"]["test"], name
        assert ":" in service["image"], f"{name}: an image without a version changes by itself"
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        sources = {volume.split(":")[0] for volume in service["volumes"]}
        files = {source for source in sources if source.startswith("./")}
        assert sources - files
        assert sources - files <= set(compose["volumes"]), name
        assert all((ROOT / source).is_dir() for source in files), name


def test_a_single_kafka_broker_asks_for_one_copy_and_takes_large_frames(compose):
    settings = compose["services"]["kafka"]["environment"]
    copies = {
        key: value for key, value in settings.items() if key.endswith(("REPLICATION_FACTOR", "MIN_ISR"))
    }
    assert copies
    assert set(copies.values()) == {"1"}
    assert int(settings["KAFKA_MESSAGE_MAX_BYTES"]) > 16 * 1024 * 1024
    advertised = {listener.split(":")[0] for listener in settings["KAFKA_ADVERTISED_LISTENERS"].split(",")}
    protocols = {entry.split(":")[0] for entry in settings["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")}
    listeners = {listener.split(":")[0] for listener in settings["KAFKA_LISTENERS"].split(",")}
    assert advertised < listeners == protocols


def test_redis_keeps_what_it_acknowledged_and_evicts_nothing(compose):
    redis = compose["services"]["redis"]
    assert command_option(redis, "--appendonly") == "yes"
    assert command_option(redis, "--maxmemory-policy") == "noeviction"
