"""Logins that reach a server (T48): those that work, those that are refused, and servers that repeat them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

import tidegate
import tidegate.aio
from support.secret_urls import pieces, secret_in, told_of
from tidegate.cli import app
from tidegate.errors import ConfigError, TidegateError
from tidegate.wal.open_log import open_log

NOBODY = "127.0.0.1:1"
AWAY = [
    ("redis://{}@" + NOBODY, {}),
    ("rediss://{}@" + NOBODY, {}),
    ("redis+cluster://{}@" + NOBODY, {}),
    (
        "redis+sentinel://{}@" + NOBODY + "/main",
        {"sentinel_username": "{user}", "sentinel_password": "{password}"},
    ),
    ("cassandra://{}@" + NOBODY + "/keyspace", {"connect_timeout": 0.2}),
]


@pytest.fixture
def login():
    rng = random.Random(48)
    return pieces(rng), pieces(rng)


def quoted(user, password):
    return f"{quote(user, safe='')}:{quote(password, safe='')}"


def asked(url, options):
    """What an exception of a reader, in a thread and in an event loop, can show."""
    with pytest.raises(TidegateError) as caught:
        tidegate.connect(url, "n", options)
    yield told_of(caught.value)
    with pytest.raises(TidegateError) as caught:
        asyncio.run(tidegate.aio.connect(url, "n", options))
    yield told_of(caught.value)


@pytest.mark.parametrize("url,options", AWAY, ids=[url.partition(":")[0] for url, _ in AWAY])
def test_a_server_that_is_away_t48(login, caplog, url, options):
    caplog.set_level(logging.DEBUG)
    user, password = login
    given = {
        name: value.format(user=user, password=password) if isinstance(value, str) else value
        for name, value in options.items()
    }
    for told in asked(url.format(quoted(*login)), {**given, "timeout_s": 0.3}):
        assert not secret_in(told + caplog.text, *login)


def test_a_log_that_is_away_t48(login, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "timeout_s": 1}
    options |= {"sasl.username": login[0], "sasl.password": login[1]}
    with contextlib.closing(open_log(f"kafka://{NOBODY}", "n", options)) as log:
        with pytest.raises(TidegateError) as caught:
            list(log.decisions())
        assert not secret_in(told_of(caught.value) + caplog.text + repr(log), login[1])
    assert not secret_in("".join(capfd.readouterr()), login[1])


def test_a_login_that_works_and_one_that_does_not_t48(private_redis, caplog, tmp_path):
    """By every command that one would run, at the level of DEBUG."""
    caplog.set_level(logging.DEBUG)
    right = "s3cret0a/s3cret0b@s3cret0c:s3cret0d?#%[1]éключ"
    server, where = private_redis(password=right), [f"--wal=file://{tmp_path}/wal", "--namespace=flights"]
    for password, code in ((right, 0), (f"{right}-s3cret0e", ConfigError.exit_code)):
        store = f"--store=redis://:{quote(password, safe='')}@{server.address}"
        for words in (["init"], ["status"], ["doctor"], ["verify"], ["repair"], ["drop", "--yes"]):
            result = CliRunner().invoke(app, [*words, store, *where], prog_name="tidegate")
            failed = 1 if code and words == ["doctor"] else code
            assert result.exit_code == failed, (words, result.output)
            assert not code or f"redis://***@{server.address}" in result.output
            assert not secret_in(result.output + caplog.text, password)


@pytest.mark.parametrize("kind", ["redis://{}@{}", "redis+cluster://{}@{}"])
def test_a_server_that_repeats_what_it_does_not_know_t48(private_redis, login, caplog, kind):
    """It does not know AUTH, and quotes its arguments."""
    caplog.set_level(logging.DEBUG)
    server = private_redis(barred=["AUTH"])
    for told in asked(kind.format(quoted(*login), server.address), {"timeout_s": 1}):
        assert "unknown command" in told
        assert not secret_in(told + caplog.text, *login)
