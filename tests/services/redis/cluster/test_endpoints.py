"""A Cluster whose servers do not announce where they are: each reader reads, or names the setting."""

import contextlib
import shlex
import sys
import time

import pytest

from services.support import java_reader
from services.support.go import BUILD_S, built
from services.support.servers import ROOT
from support.wait import wait_until
from tidegate.testing.conformance.program import Reader, ReaderRaisedError
from tidegate.testing.example import BATCHES, Example

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("redis_cluster"),
    pytest.mark.timeout(BUILD_S + 200),
]
PYTHON = shlex.join([sys.executable, "-m", ""])[:-2]
ROW = {"table": "aircraft", "key": ["N14228"]}
ENDPOINT, NAME = "cluster-preferred-endpoint-type", "cluster-announce-hostname"


def command_of(language, folder):
    match language:
        case "go":
            return str(built(ROOT / "readers" / "go", "./cmd/conformance", folder))
        case "java":
            java_reader.built()
            return java_reader.command_of(java_reader.PROGRAM)
    return PYTHON + language


@pytest.fixture(params=["tidegate.testing.conformance.reader", "services.support.aio_reader", "go", "java"])
def reader(request, tmp_path):
    with Reader(command_of(request.param, tmp_path), tmp_path / "errors") as started:
        yield started


@pytest.fixture
def announced(redis_cluster):
    """Set what each server announces; undone at the end."""

    def set_to(endpoint, name):
        for server in redis_cluster.servers:
            server.ask("CONFIG", "SET", NAME, name)
            server.ask("CONFIG", "SET", ENDPOINT, endpoint)
        shown = {"ip": b"127.0.0.1", "unknown-endpoint": None, "hostname": name.encode() or b"?"}[endpoint]
        first = redis_cluster.servers[0]
        hosts = lambda: {  # noqa: E731
            primary[0] for _, _, primary, *_ in first.ask("CLUSTER", "SLOTS", decode_responses=False)
        }
        wait_until(lambda: hosts() <= {shown, shown and shown.decode()}, "all servers announce it")

    yield set_to
    set_to("ip", "")


ANNOUNCED = [("unknown-endpoint", ""), ("hostname", "localhost"), ("hostname", "")]


@pytest.mark.parametrize("endpoint, name", ANNOUNCED)
def test_each_reader_reads_or_names_the_setting(redis_cluster, announced, reader, tmp_path, endpoint, name):
    namespace = f"n{time.time_ns()}"
    with contextlib.closing(Example(f"file://{tmp_path}/wal", redis_cluster.url, namespace)) as example:
        example.write(BATCHES[0])
        announced(endpoint, name)
        given = {"url": redis_cluster.url, "namespace": namespace, "options": {"timeout_s": 2}}
        if endpoint == "hostname" and not name:
            with pytest.raises(ReaderRaisedError, match=NAME) as error:
                reader.ask("connect", **given)
            assert error.value.name == "StoreUnavailableError"
        else:
            reader.ask("connect", **given)
            assert reader.ask("get", **ROW)["value"] == {"carrier": "UA", "flights": "1"}
        announced("ip", "")
        example.driver.store.drop()
