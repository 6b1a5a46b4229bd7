"""docker-compose.yml is a valid compose file and keeps the promises that its comments make."""

from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TEXT, TEXTS, DURATION = (
    {"type": "string"},
    {"type": "array", "items": {"type": "string"}},
    {"type": "string", "pattern": "^[0-9]+s$"},
)


def closed(required=(), **properties):
    """An object with these keys and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def named(value):
    """An object with names as keys."""
    return {
        "type": "object",
        "patternProperties": {"^[a-zA-Z0-9._-]+$": value},
        "additionalProperties": False,
    }


HEALTH = closed(
    ["test"],
    test=TEXTS,
    interval=DURATION,
    timeout=DURATION,
    start_period=DURATION,
    retries={"type": "integer", "minimum": 1},
)
SERVICE = closed(
    ["image"],
    image=TEXT,
    command=TEXTS,
    environment={"type": "object", "additionalProperties": TEXT},
    extra_hosts=TEXTS,
    healthcheck=HEALTH,
    ports=TEXTS,
    profiles=TEXTS,
    restart={"enum": ["no", "always", "on-failure", "unless-stopped"]},
    volumes=TEXTS,
)
SCHEMA = closed(["name", "services"], name=TEXT, services=named(SERVICE), volumes=named({"type": "null"}))
"""The part of the Compose Specification that the file uses: a new key of the file is added here, too."""


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def schema_errors(document):
    validator = jsonschema.Draft7Validator
    validator.check_schema(SCHEMA)
    return [f"{error.json_path}: {error.message}" for error in validator(SCHEMA).iter_errors(document)]


def command_option(service, name):
    command = service["command"]
    return command[command.index(name) + 1]


def test_fits_the_compose_specification(compose):
    assert schema_errors(compose) == []


def test_the_schema_refuses_a_wrong_file(compose):
    for name, wrong in {"portz": [], "ports": [6379], "restart": "sometimes", "healthcheck": {}}.items():
        service = {"image": "redis:7.4", name: wrong}
        assert any(name in error for error in schema_errors({**compose, "services": {"redis": service}}))


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
