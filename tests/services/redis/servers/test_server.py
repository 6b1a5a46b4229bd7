"""The servers that other tests rely on: they keep what they acknowledged or lose what they are told to."""

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from redis.exceptions import (
    AuthenticationError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import Sentinel

from services.support.redis import config as redis_config
from services.support.redis import server as redis_server
from services.support.redis.cluster import RedisCluster
from services.support.redis.sentinel import MASTER, RedisSentinel
from services.support.redis.server import RedisServer
from services.support.servers import PortTakenError
from support.wait import wait_until

HERE = Path(__file__).parents[2]
WAIT_S = 30


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# -- one server -----------------------------------------------------------------------------------------


def test_a_namespace_goes_with_its_test(redis, namespace):
    with redis.client() as client:
        client.mset({f"a:{{{namespace}}}:{n}": n for n in range(2500)} | {"other": 1})
        assert redis.forget(namespace) == 2500
        assert redis.forget(namespace) == 0
        assert client.delete("other") == 1


@pytest.mark.parametrize("appendonly, kept", [("yes", "1"), ("no", None)])
def test_killed_and_started_again(private_redis, appendonly, kept):
    server = private_redis(settings={"appendonly": appendonly})
    server.ask("SET", "key", 1)
    first, port = server.pid, server.port
    server.kill()
    assert gone(first)
    server.restart()
    assert (server.port, server.ask("GET", "key")) == (port, kept)
    server.ask("SET", "key", 2)
    server.kill()
    server.restart(empty=True)
    assert (server.port, server.ask("GET", "key")) == (port, None)
    server.ask("SET", "key", 3)
    server.stop()
    assert not server.alive()
    server.settings["maxmemory"] = "77mb"
    server.start()
    assert server.ask("GET", "key") == ("3" if kept else None)
    assert server.info("memory")["maxmemory"] == 77 * 2**20


def test_paused(private_redis):
    server = private_redis()
    with server.client(socket_timeout=0.2) as client:
        client.set("key", 1)
        server.pause()
        with pytest.raises(RedisTimeoutError):
            client.get("key")
        server.resume()
    assert server.ask("GET", "key") == "1"
    server.pause()
    server.stop()  # a paused one ends too
    assert gone(server.pid)


# -- Sentinel -------------------------------------------------------------------------------------------


def as_told(sentinel, **settings):
    """A client as users have it: it asks the Sentinels where the primary is."""
    at = [("127.0.0.1", server.port) for server in sentinel.sentinels]
    return Sentinel(at, socket_timeout=1).master_for(MASTER, decode_responses=True, **settings)


@pytest.mark.xdist_group("redis_sentinel")
@pytest.mark.slow
def test_a_primary_is_lost_with_its_last_writes(redis_sentinel):
    old = redis_sentinel.primary
    old.ask("SET", "early", 1)
    redis_sentinel.wait_ready()
    try:
        new = redis_sentinel.lose_last_writes(lambda primary: primary.ask("SET", "last", 1))
        assert new is not old
        assert (new.ask("GET", "early"), new.ask("GET", "last")) == ("1", None)
    finally:
        redis_sentinel.heal()
    assert old.ask("GET", "last") is None
    assert redis_sentinel.failover() is old  # replication works again, both ways


@pytest.mark.slow
def test_sentinels_with_a_password(tmp_path):
    with RedisSentinel(tmp_path / "sentinel", password="secret") as servers:
        assert as_told(servers, password="secret").set("key", 1)
        assert servers.url.startswith("redis+sentinel://:secret@127.0.0.1:")
        with pytest.raises(AuthenticationError):
            as_told(servers).get("key")
        servers.stop()
        servers.start()
        assert servers.primary.ask("GET", "key") == "1"


# -- they start, and they end ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", [RedisServer, RedisSentinel, RedisCluster])
def test_a_port_that_was_taken_meanwhile(tmp_path, monkeypatch, make):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        free_ports, asked = redis_server.free_ports, []

        def first_taken(count):
            asked.append(count)
            return [*free_ports(count - 1), taken] if len(asked) == 1 else free_ports(count)

        for module in ("server", "group"):
            monkeypatch.setattr(f"services.support.redis.{module}.free_ports", first_taken)
        with make(tmp_path / "redis") as made:
            assert len(asked) >= 2  # whoever else is on this machine may take one, too
            assert str(taken) not in made.url


def test_another_server_at_the_port_is_not_taken_for_ours(redis, tmp_path):
    ours = RedisServer(tmp_path / "redis")
    ours.take_port(redis.port)
    ours.launch()
    with pytest.raises(PortTakenError):
        wait_until(ours.answers, "it never does", WAIT_S)
    ours.stop()


STARTS = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from services.support.redis.sentinel import RedisSentinel
with RedisSentinel(Path(sys.argv[2])) as servers:
    print(*[server.pid for server in servers.servers], flush=True)
    time.sleep(600)
"""


def test_no_server_outlives_the_process_that_started_it(tmp_path):
    command = [sys.executable, "-c", STARTS, HERE.parent, tmp_path / "redis"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        pids = list(map(int, starter.stdout.readline().split()))
        assert len(pids) == 5
        assert not any(map(gone, pids))
        starter.kill()
    wait_until(lambda: all(map(gone, pids)), "the servers end", WAIT_S)


@pytest.mark.parametrize(
    "kind, prefix",
    [
        ("redis", "redis://127.0.0.1:"),
        ("sentinel", "redis+sentinel://127.0.0.1:"),
        ("cluster", "redis+cluster://127.0.0.1:"),
    ],
)
def test_run_gives_the_url(kind, prefix):
    code = "import sys; print(sys.argv[1]); sys.exit(7)"
    command = [sys.executable, HERE / "run.py", kind, "--", sys.executable, "-c", code, "{redis}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 7
    assert done.stdout.startswith(prefix)


@pytest.mark.parametrize(
    "wrong", [["redis", "sentinel", "--", "true"], ["redis", "--"], ["redis", "true"], ["--"]]
)
def test_run_says_how_it_is_used(wrong):
    done = subprocess.run(
        [sys.executable, HERE / "run.py", *wrong], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "run.py kafka redis --" in done.stderr


# -- where the program comes from -----------------------------------------------------------------------


def test_without_redis_it_is_said_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TIDEGATE_REDIS_SERVER", raising=False)
    with pytest.raises(RuntimeError, match="apt-get install -y redis-server"):
        RedisServer(tmp_path / "redis").start()


def test_another_program_or_one_that_is_too_old(monkeypatch, tmp_path):
    monkeypatch.setenv("TIDEGATE_REDIS_SERVER", str(tmp_path / "missing"))
    with pytest.raises(RuntimeError, match=f"{tmp_path}/missing was not found"):
        redis_config.redis_program()
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\necho "Redis server v=6.2.7 sha=00000000:0"\n')
    old.chmod(0o755)
    monkeypatch.setenv("TIDEGATE_REDIS_SERVER", str(old))
    with pytest.raises(RuntimeError, match=r"old is 6\.2\.7"):
        redis_config.redis_program()


def test_what_a_server_said_that_did_not_start(tmp_path):
    with pytest.raises(RuntimeError, match="no-such-setting"):
        RedisServer(tmp_path / "redis", settings={"no-such-setting": "1"}).start()
