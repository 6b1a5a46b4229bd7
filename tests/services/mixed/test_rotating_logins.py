"""Logins by the name of a function, on real servers: tokens end and passwords change during the work."""

import contextlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

import tidegate
from services.support.in_loop import BOTH, InLoop
from services.support.kafka.query import Query
from services.support.kafka.server import KafkaCluster
from support.wait import wait_until
from tidegate.errors import WalUnavailableError
from tidegate.options.endpoints import StoreRef
from tidegate.options.logins import provider_of
from tidegate.testing.example import Example

MODULE = '''
import os, pathlib, time
def login():
    """What the folder says: user, token, and its time. Each call is a line of another file."""
    folder = os.path.dirname(__file__)
    with open(f"{folder}/calls", "a") as calls:
        calls.write(f"{os.getpid()}\\n")
    user, token, lives_s = pathlib.Path(f"{folder}/login").read_text().split("|")
    return user, token, None if lives_s == "None" else time.time() + float(lives_s)
'''
TOKENS = '''
import base64, json, os, time
def part(value): return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
def login():
    """A token that lives for seconds, in the form that brokers take without a signature."""
    with open(f"{os.path.dirname(__file__)}/calls", "a") as calls:
        calls.write(f"{os.getpid()}\\n")
    if os.path.exists(f"{os.path.dirname(__file__)}/fails"):
        raise ValueError("no token")
    now = time.time()
    end = now + 10
    token = part({"alg": "none"}) + "." + part({"sub": "ann", "iat": now, "exp": end}) + "."
    return "", token, end
'''
NAME = "logins_of_these_tests:login"
JAAS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
BROKER = {
    "listener.name.client.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    "listener.name.client.oauthbearer.sasl.jaas.config": f'{JAAS} unsecuredLoginStringClaim_sub="broker";',
    "connections.max.reauth.ms": "6000",
}


class Logins:
    """The folder of the module, whose functions this process and its children import."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))

    def become(self, user, token, lives_s):
        (self.folder / "login").write_text(f"{user}|{token}|{lives_s}")

    @property
    def calls(self):
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "calls").read_text().split()
        return []


@pytest.fixture
def logins(tmp_path, monkeypatch):
    def made(text):
        folder = tmp_path / "logins"
        folder.mkdir()
        (folder / "logins_of_these_tests.py").write_text(text)
        return Logins(folder, monkeypatch)

    yield made
    sys.modules.pop("logins_of_these_tests", None)
    provider_of(NAME, "a test").restart()


def command(*words):
    done = subprocess.run(["tidegate", *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def unavailable(log):
    """The log's error; None while it can be read."""
    try:
        list(log.decisions())
    except WalUnavailableError as error:
        return str(error)
    return None


# -- Kafka ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_writer_and_a_reader_of_a_log_outlive_their_tokens(tmp_path, logins):
    """Tokens of 10 s, and sessions of at most 6 s on each connection of the broker."""
    logins = logins(TOKENS)
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "timeout_s": 10}
    given["credential_provider"] = NAME
    with KafkaCluster(tmp_path / "kafka", sasl={"admin": "pw"}, settings=BROKER) as kafka:
        query = Query(kafka.bootstrap, tmp_path, **given)
        reading = query.log()
        until, batches = time.monotonic() + 120, 0
        while len(logins.calls) < 4:
            batches += 1
            query.run(batches)
            assert len(list(reading.decisions())) >= batches
            assert time.monotonic() < until, "the tokens were not renewed"
        query.check(batches)
        options = tmp_path / "wal.properties"
        options.write_text("".join(f"{name}={value}\n" for name, value in query._client.items()))
        options.chmod(0o600)
        where = ["--wal", query.wal, "--wal-config", str(options), "--store", query.store_url]
        said = command("status", *where, "--namespace", query.namespace, "--json")
        assert json.loads(said)["visible"] == batches
        assert len(set(logins.calls)) == 2  # this process, and the command's
        # A function that fails while a token is left, and later without one, ends nothing for good.
        (logins.folder / "fails").touch()
        error = wait_until(lambda: unavailable(reading), "the last token has ended")
        assert "no token" not in error
        assert "function logins_of_these_tests:login (credential_provider) raised ValueError" in error
        (logins.folder / "fails").unlink()
        query.run(batches + 1)
        assert len(list(reading.decisions())) >= batches + 1
        reading.close()
        query.close()


@pytest.mark.slow
def test_a_log_goes_on_when_its_password_is_changed(tmp_path, logins):
    """The clients that are idle have the old one, and lose their connections."""
    logins = logins(MODULE)
    logins.become("ann", "first-password", "3600")
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "timeout_s": 30}
    with KafkaCluster(tmp_path / "kafka", sasl={"admin": "pw", "ann": "first-password"}) as kafka:
        query = Query(kafka.bootstrap, tmp_path, **given, credential_provider=NAME)
        query.run(1)
        second = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        change = UserScramCredentialUpsertion("ann", second, b"second-password")
        admin = AdminClient(kafka.client_settings)
        (changed,) = admin.alter_user_scram_credentials([change]).values()
        changed.result(60)
        logins.become("ann", "second-password", "3600")
        kafka.kill(0)
        kafka.restart(0)
        query.run(3)
        query.check(3)
        query.close()


# -- Redis ------------------------------------------------------------------------------------------


def servers_of(found):
    return getattr(found, "servers", [found])


def become(found, password):
    """Change the password of the readers' user at each server, and end its connections."""
    rights = ("reset", "on", f">{password}", "allkeys", "allchannels", "+@all")
    for server in servers_of(found):
        server.ask("ACL", "SETUSER", "reader", *rights)
        with contextlib.suppress(Exception):  # none to end
            server.ask("CLIENT", "KILL", "USER", "reader")


def rows(flights):
    return {"aircraft": {"N1": {"carrier": "UA", "flights": flights}}}


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("redis_sentinel", "redis_cluster")]


@pytest.mark.parametrize("servers", ["redis", *SLOW])
@pytest.mark.parametrize("lives_s", ["3600", "None"])
def test_readers_go_on_when_their_password_is_changed(request, tmp_path, logins, servers, lives_s):
    found, logins = request.getfixturevalue(servers), logins(MODULE)
    name = f"rotating-{servers}-{lives_s}".lower().replace("_", "-")
    writer = Example(f"file://{tmp_path}/wal", found.url, name)
    writer.write(rows(1))
    become(found, "first")
    logins.become("reader", "first", lives_s)
    options = {"credential_provider": NAME, "timeout_s": 30}

    with (
        contextlib.closing(writer),
        ThreadPoolExecutor(2) as pool,
        tidegate.connect(found.url, name, options) as in_thread,
        InLoop(found.url, name, options) as in_loop,
        in_thread.snapshot(lease_s=600) as held,
        in_loop.snapshot(lease_s=600) as held_in_loop,
    ):
        gates, snapshots = (in_thread, in_loop), (held, held_in_loop)
        waiting = [pool.submit(gate.wait_for, version=2, timeout=60) for gate in gates]
        assert [one.table("aircraft").get("N1")["flights"] for one in snapshots] == [1, 1]
        become(found, "second")
        logins.become("reader", "second", lives_s)
        assert in_thread.table("aircraft").get("N1")["flights"] == 1
        writer.write(rows(2))
        for each in waiting:
            each.result(60)
        assert [one.table("aircraft").get("N1")["flights"] for one in snapshots] == [1, 1]
        assert [one.table("aircraft").get("N1")["flights"] for one in gates] == [2, 2]


@BOTH
def test_the_first_call_after_the_change_has_the_new_password(
    redis, namespace, tmp_path, logins, monkeypatch, connect
):
    monkeypatch.setattr("tidegate.options.logins.JUST_S", 0.0)
    logins, options = logins(MODULE), {"credential_provider": NAME, "timeout_s": 30}
    with contextlib.closing(Example(f"file://{tmp_path}/wal", redis.url, namespace)) as writer:
        writer.write(rows(1))
    become(redis, "first")
    logins.become("reader", "first", "3600")
    with connect(redis.url, namespace, options) as gate:
        gate.table("aircraft").get("N1")
        become(redis, "second")
        logins.become("reader", "second", "3600")
        assert gate.table("aircraft").get("N1")["flights"] == 1


def test_a_refused_login_shows_no_token(redis, namespace, tmp_path, logins):
    logins = logins(MODULE)
    Example(f"file://{tmp_path}/wal", redis.url, namespace).close()
    become(redis, "right")
    logins.become("reader", "wr0ng-t0ken", "3600")
    with pytest.raises(tidegate.ConfigError, match="refuses this user") as caught:
        tidegate.connect(redis.url, namespace, {"credential_provider": NAME, "timeout_s": 5})
    assert "wr0ng-t0ken" not in repr(caught.value)


# -- Cassandra --------------------------------------------------------------------------------------


@pytest.mark.slow  # a node of its own
def test_a_store_connects_again_when_its_password_is_changed(private_cassandra, tmp_path, logins):
    logins = logins(MODULE)
    server = private_cassandra(users={"admin": "a", "ann": "first"})
    logins.become("ann", "first", "3600")
    url = f"cassandra://{server.address}:{server.port}/tidegate"
    options = {"credential_provider": NAME, "create": True, "replication": 1, "timeout_s": 60}
    writer = Example(f"file://{tmp_path}/wal", [StoreRef("cassandra", url, options)])
    with contextlib.closing(writer):
        writer.write(rows(1))
        with tidegate.connect(url, "flights", options) as gate:
            server.ask("ALTER ROLE ann WITH PASSWORD = 'second'")
            logins.become("ann", "second", "3600")
            server.stop()
            server.restart()
            writer.write(rows(2))
            assert gate.table("aircraft").get("N1")["flights"] == 2
