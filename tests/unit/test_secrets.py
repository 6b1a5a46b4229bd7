"""A login in a URL is shown nowhere (T48): by no command, no constructor, no exception and no log line.

Commands and their parameters are found in the command line itself, so that a new one is not forgotten. What
each is called with is random; every URL has a login that nothing else could have printed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

import tidegate
import tidegate.aio
from support.secret_urls import URLS, pieces, secret_in, shapes, told_of
from tidegate.cli import app
from tidegate.cli.core.app import COMMANDS, command
from tidegate.errors import ConfigError, TidegateError
from tidegate.options.endpoints import Endpoints, StoreRef, parse_store, parse_stores
from tidegate.sinks.cassandra.client import settings as cassandra_settings
from tidegate.sinks.open_store import open_async_store, open_store
from tidegate.sinks.redis.client import settings as redis_settings
from tidegate.spark.source.options import SourceOptions
from tidegate.wal.open_log import open_log

SEED = os.environ.get("TIDEGATE_SECRETS", "")
"""Another one draws other logins and URLs."""
SHAPES = 80
"""URLs that each function is called with."""
OPENING = ("redis", "rediss", "cassandra", "kafka")
"""What connects: well-formed URLs of these are tried on real servers, in services/mixed/test_secrets.py."""


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("TIDEGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def leaves():
    for name in COMMANDS:
        found = command(name)
        below = getattr(found, "commands", None)
        if below is None:
            yield (name,), found
        else:
            yield from (((name, one), each) for one, each in below.items())


LEAVES = dict(leaves())
TEXTS = [
    (words, param.name)
    for words, leaf in LEAVES.items()
    for param in leaf.params
    if not getattr(param, "is_flag", False) and param.name != "help"
]


def refused_shapes(rng, user, password):
    """Those of a random kind that no server is asked for."""
    kind = rng.choice(URLS).partition(":")[0]
    found = [url for url in shapes(rng, user, password) if not opens(url)]
    return rng.choice([url for url in found if url.startswith(kind)])


def opens(url):
    """Whether the URL can be read as that of a server."""
    try:
        store_or_log = open_log if url.startswith("kafka") else open_store
        store_or_log(url, "n").close()
    except TidegateError:
        return False
    return url.partition(":")[0].partition("+")[0] in OPENING


def words_for(leaf, name, value):
    """Arguments of a command: this value for one parameter, something that fits for those it needs."""
    words = []
    for param in leaf.params:
        one = value if param.name == name else "1"
        if param.param_type_name == "argument":
            words += [one] if param.required or param.name == name else []
        elif param.name == name:
            words += [param.opts[0], one]
        elif param.name in ("store", "wal", "namespace"):
            words += [
                param.opts[0],
                {"store": "sqlite:///not/there", "wal": "nfs://none"}.get(param.name, "n"),
            ]
    return words


@pytest.mark.one_in(3)
@pytest.mark.parametrize("words", sorted(LEAVES), ids=" ".join)
def test_no_command_shows_a_login_t48(words, caplog):
    """In each of its parameters in turn, also where there is one too many."""
    rng, leaf = random.Random(f"{SEED}{words!r}"), LEAVES[words]
    caplog.set_level(logging.DEBUG)
    names = [name for of, name in TEXTS if of == words] + [None]
    for name in names:
        user, password = pieces(rng), pieces(rng)
        url = refused_shapes(rng, user, password)
        given = words_for(leaf, name, url) + ([url] if name is None else [])
        result = CliRunner().invoke(app, [*words, *given], prog_name="tidegate")
        assert isinstance(result.exception, SystemExit | None), result.exception
        texts = result.output + caplog.text
        assert not secret_in(texts, user, password), (given, texts)
        caplog.clear()


# -- Python's functions ---------------------------------------------------------------------------


def a_sink(url, **others):
    from tidegate.spark import VersionedSink

    return VersionedSink(**{"namespace": "n", "wal": "memory://w", "store": "memory://s", **others, **url})


def opened_async(url):
    async def opened():
        store = open_async_store(url, "n", None, None)
        await store.close()
        return store.where

    return asyncio.run(opened())


OF_A_URL = {
    "parse_store": parse_store,
    "parse_stores": parse_stores,
    "two stores": lambda url: parse_stores([url, f"copy={url}"]),
    "StoreRef": lambda url: StoreRef("x", url),
    "Endpoints": lambda url: Endpoints.of("n", url, url),
    "Endpoints of three": lambda url: Endpoints.of("n", url, [url, f"copy={url}", url]),
    "open_store": lambda url: open_store(url, "n"),
    "open_log": lambda url: open_log(url, "n"),
    "unknown option of a store": lambda url: open_store(url, "n", {"nonsense": 1}),
    "unknown option of a log": lambda url: open_log(url, "n", {"nonsense": 1}),
    "connect": lambda url: opens(url) or tidegate.connect(url, "n"),
    "aio.connect": lambda url: opens(url) or asyncio.run(tidegate.aio.connect(url, "n")),
    "open_async_store": opened_async,
    "SourceOptions": lambda url: SourceOptions.of(
        {"namespace": "n", "table": "t", "store": url, "wal": url, "storeOptions": "{}"}
    ),
    "sink by its log": lambda url: a_sink({"wal": url}),
    "sink by its store": lambda url: a_sink({"store": url}),
    "sink by its stores": lambda url: a_sink({"store": ["memory://s", f"copy={url}"]}),
    "bytes as a log": lambda url: Endpoints.of("n", url.encode(), url),
    "bytes as a store": lambda url: Endpoints.of("n", "memory://w", url.encode()),
    "a set": lambda url: parse_stores({url}),
    "a list in a list": lambda url: parse_stores([[url]]),
    "a path": lambda url: parse_stores(Path(url)),
    "not UTF-8": lambda url: open_store(url.replace("@", "\udc80@"), "n"),
}


@pytest.mark.parametrize("name", OF_A_URL)
def test_no_function_shows_a_login_t48(name, caplog):
    rng = random.Random(f"{SEED}{name}")
    caplog.set_level(logging.DEBUG)
    user, password = pieces(rng), pieces(rng)
    for url in rng.sample(list(shapes(rng, user, password)), SHAPES):
        try:
            made = OF_A_URL[name](url)
            told = f"{made} {made!r} {getattr(made, 'where', '')}"
        except TidegateError as error:
            told = told_of(error)
        assert not secret_in(told + caplog.text, user, password), (url, told)


def test_the_settings_of_clients_show_no_login_t48():
    rng = random.Random(48)
    user, password = pieces(rng), pieces(rng)
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@"
    for settings in (redis_settings.settings_of, cassandra_settings.settings_of):
        scheme = settings.__module__.split(".")[2]
        url = next(url for url in URLS if url.startswith(f"{scheme}://")).format(login=login)
        found = settings(url, {"password": password, "username": user})
        assert not secret_in(f"{found} {found!r}", user, password)


def test_a_command_line_shows_no_login_as_a_process_t48(tmp_path):
    """Also what is printed before or after the command itself, and by an interpreter that warns."""
    rng = random.Random(48)
    user, password = pieces(rng), pieces(rng)
    url = f"redis://{user}:{password}/x@127.0.0.1:1"
    words = ["status", "--store", url, "--namespace", "n"]
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-m", "tidegate", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == ConfigError.exit_code
    assert "redis://***" in done.stderr
    assert not secret_in(done.stdout + done.stderr, user, password)


@pytest.mark.parametrize(
    "words", [["changes", "1", "t", "--key-group"], ["torture", "--seed"], ["restore", "--to"]]
)
def test_a_long_login_that_a_message_cuts_is_hidden_too_t48(words):
    """Red before: a message repeats the first characters of a long value, and the login was in them."""
    url = f"postgresql://user:secret{'x' * 120}@host/db"
    result = CliRunner().invoke(app, [*words, url], prog_name="tidegate")
    assert result.exit_code
    assert "secret" not in result.output
