"""Every option of every client, with values of other types and forms: a ConfigError names it, or it works.

No error, its cause or its context holds the value or shows it.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tidegate
import tidegate.aio
from support.secret_urls import told_of
from tidegate.cli import app
from tidegate.errors import ConfigError, TidegateError
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.cassandra.client import settings as cassandra
from tidegate.sinks.open_store import OWN, open_store
from tidegate.sinks.redis.client import settings as redis
from tidegate.wal.kafka import settings as kafka
from tidegate.wal.open_log import OWN as OWN_OF_LOGS
from tidegate.wal.open_log import open_log

SECRET = "s3cret-" + "x9" * 8


class Shown:
    """An object whose ``repr`` is secret."""

    def __repr__(self):
        return SECRET


VALUES = {
    "text": SECRET,
    "a lone surrogate": SECRET + "\udce9",
    "NUL": SECRET + "\0x",
    "bytes": SECRET.encode(),
    "a list": [SECRET],
    "a tuple": (SECRET, SECRET),
    "a dict": {SECRET: SECRET},
    "a dict of numbers": {1 << 40: 1},
    "a dict of no numbers": {4: SECRET},
    "an object": Shown(),
    "a class": Shown,
    "None": None,
    "True": True,
    "0": 0,
    "a number": 5,
    "below 0": -1,
    "a fraction": 0.5,
    "a huge number": 10**5000,
    "NaN": float("nan"),
    "infinite": float("inf"),
    "a long text": SECRET * 200,
    "an absent file": f"/{SECRET}/x.pem",
    "a folder": "/",
    "no certificate": b"\xff" + SECRET.encode(),
}
CLIENT = (
    *("security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
    *("socket.timeout.ms", "ssl.ca.location", "ssl.key.pem", "ssl.key.password", "ssl.cipher.suites"),
    *("client.id", "client.rack", "debug", "log_level", "compression.type", "linger.ms", "retries"),
    *("queue.buffering.max.kbytes", "receive.message.max.bytes", "sasl.kerberos.principal"),
    *("broker.address.family", "enable.ssl.certificate.verification", "sasl.oauthbearer.config"),
)
"""Options of librdkafka, of each type."""
PLACES = {
    "redis://127.0.0.1:1/0": (*redis.FORMS,),
    "rediss://127.0.0.1:1/0": (*redis.FORMS,),
    "redis+sentinel://127.0.0.1:1/m": (*redis.FORMS, *redis.OF_SENTINEL),
    "cassandra://127.0.0.1:1/k": (*cassandra.FORMS,),
    "memory://nothing": (*OWN["memory"], "other"),
    "sqlite:///nowhere/here": (*OWN["sqlite"],),
    "kafka://127.0.0.1:1": (*kafka.FORMS, *kafka.FIXED, *CLIENT),
    "file:///nowhere/here": (*OWN_OF_LOGS["file"],),
}
EACH = [(place, option) for place, options in PLACES.items() for option in options]


def held(error, seen=None):
    """Yield each object of an error and of its causes."""
    seen = set() if seen is None else seen
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield from error.args
    yield from vars(error).values()
    yield getattr(error, "object", None)
    yield from held(error.__cause__, seen)
    yield from held(error.__context__, seen)


def opened(place, options):
    """Use it: a store or log at a port where nobody listens."""
    if place.startswith(("kafka", "file")):
        log = open_log(place, "n", options)
        if place.startswith("kafka"):
            log._clients._new_consumer("t").close()
        log.close()
        return
    if place.startswith("cassandra"):
        open_store(place, "n", options).close()
        return
    tidegate.connect(place, "n", options).close()


def opened_async(place, options):
    async def connected():
        await (await tidegate.aio.connect(place, "n", options)).close()

    asyncio.run(connected())


def refusal_of(way, *arguments):
    try:
        way(*arguments)
    except TidegateError as error:
        return error
    return None


def check(error):
    told = told_of(error)
    assert SECRET not in told, told
    assert SECRET not in repr(list(held(error)))


@pytest.mark.parametrize("place, option", EACH, ids=[f"{place} {option}" for place, option in EACH])
def test_a_value_of_another_form_is_a_config_error_that_names_the_option_t48(place, option):
    for kind, value in VALUES.items():
        ways = [opened, opened_async] if place.startswith("redis://") else [opened]
        for way in ways:
            options = {"timeout_s": 0.05} if place.startswith("redis") and option != "timeout_s" else {}
            error = refusal_of(way, place, {**options, option: value})
            if error is None:
                assert not isinstance(value, Shown), kind
                continue
            check(error)
            absent = "there is no namespace" in str(error) or not isinstance(error, ConfigError)  # it fits
            assert absent or option in str(error) or value in (None, True, 5, 0.5), (kind, error)


def of_login(place):
    yield {"username": SECRET + "\udce9", "password": "x"}
    yield {"username": "x", "password": SECRET + "\udce9"}
    yield {"username": [SECRET], "password": "x"}
    if place.startswith("kafka"):
        yield {"sasl.password": SECRET + "\udce9", "sasl.username": "x", "sasl.mechanism": "PLAIN"}


URLS = (
    "redis://127.0.0.1:1/0",
    "redis+cluster://127.0.0.1:1",
    "cassandra://127.0.0.1:1/k",
    "kafka://127.0.0.1:1",
)


@pytest.mark.parametrize("url", URLS)
def test_a_login_that_has_no_bytes_is_refused_everywhere_t48(url):
    for options in of_login(url):
        if url.startswith("kafka"):
            tries = [lambda o=options: open_log(url, "n", o)]
        else:
            tries = [lambda o=options: tidegate.connect(url, "n", o)]
        for attempt in tries:
            with pytest.raises(ConfigError) as caught:
                attempt()
            check(caught.value)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "cassandra"])
@pytest.mark.parametrize("password", ["pw%ff", "pw%ED%B3%A9", "pw\udce9", "pw%00x"])
def test_a_login_in_a_url_that_is_no_text_is_refused(scheme, password):
    with pytest.raises(ConfigError, match="its user or password is not text in UTF-8") as caught:
        open_store(
            f"{scheme}://ann:{SECRET}{password}@127.0.0.1:1/k".removesuffix("/k" * (scheme != "cassandra")),
            "n",
        )
    check(caught.value)


@pytest.mark.parametrize(
    "options", [5, "password=" + SECRET, [SECRET], {SECRET, 1}, {5: 1}, {b"x": 1}, {"a b": 1}, {None: SECRET}]
)
@pytest.mark.parametrize("place", PLACES)
def test_options_that_are_none_by_name_are_refused(place, options):
    with pytest.raises(ConfigError) as caught:
        (open_log if place.startswith(("kafka", "file")) else open_store)(place, "n", options)
    check(caught.value)
    if not isinstance(options, dict):
        with pytest.raises(ConfigError):
            Endpoints.of("n", "memory://w", "memory://s", options, options)


@pytest.mark.parametrize(
    "line",
    [
        "timeout_s=" + SECRET,
        "functions=" + SECRET,
        "socket_keepalive_options=" + SECRET,
        "password=" + SECRET + "\udce9",
    ],
)
def test_a_file_of_options_shows_no_value(tmp_path: Path, line, monkeypatch):
    file = tmp_path / "store.properties"
    file.write_bytes(line.encode("utf-8", "surrogateescape") + b"\n")
    file.chmod(0o600)
    words = ["status", "--store", "redis://127.0.0.1:1/0", "--namespace", "n", "--wal", "memory://w"]
    done = CliRunner().invoke(app, [*words, "--store-config", str(file)], prog_name="tidegate")
    assert done.exit_code == ConfigError.exit_code
    assert SECRET not in done.output
    check(done.exception)


@pytest.mark.parametrize(
    "options, named",
    [
        ({"ssl_keyfile": __file__}, "ssl_certfile"),
        ({"ssl_password": SECRET}, "ssl_certfile"),
        ({"ssl_cert_reqs": "none", "ssl_check_hostname": True}, "ssl_check_hostname"),
        ({"ssl_cert_reqs": ssl.CERT_NONE, "ssl_check_hostname": True}, "ssl_check_hostname"),
        ({"ssl_ciphers": SECRET}, "ssl_ciphers"),
        ({"ssl_ca_data": SECRET}, "ssl_ca_data"),
    ],
)
def test_options_of_tls_that_do_not_fit_together_are_refused(options, named):
    with pytest.raises(ConfigError, match=named) as caught:
        open_store("rediss://127.0.0.1:1/0", "n", options)
    check(caught.value)


class Provider:
    def __init__(self, login):
        self.login = login

    def get_credentials(self):
        if isinstance(self.login, Exception):
            raise self.login
        return self.login


@pytest.mark.parametrize(
    "login",
    [SECRET, (SECRET + "\udce9",), (SECRET, 5), (), (SECRET, SECRET, SECRET), None, 5, ValueError(SECRET)],
    ids=range(8),
)
def test_an_object_that_gives_no_login_shows_nothing_of_it_t48(login):
    provider = redis.LoginByObject(Provider(login))
    with pytest.raises((ConfigError, redis.redis.ConnectionError)) as caught:
        provider.get_credentials()
    check(caught.value)
