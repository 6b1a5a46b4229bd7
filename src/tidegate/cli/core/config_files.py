"""Client options of the log and the stores from files of ``name=value`` lines, as Kafka's own tools take.

The content of a password file never appears in a message: at most a name and a line number (T48).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from tidegate.base.urls import scheme_of
from tidegate.cli.core.app import print_message
from tidegate.cli.core.settings_file import FILE, is_from_found_file, others_can_read, read_file, text_in
from tidegate.errors import ConfigError
from tidegate.options.endpoints import StoreRef, parse_stores
from tidegate.options.logins import OPTION as PROVIDER

WalConfig = Annotated[
    Path | None,
    typer.Option(
        "--wal-config",
        envvar="TIDEGATE_WAL_CONFIG",
        metavar="FILE",
        help="The log's options: a file of name=value lines, as Kafka's tools take them.",
    ),
]
StoreConfig = Annotated[
    Path | None,
    typer.Option(
        "--store-config",
        envvar="TIDEGATE_STORE_CONFIG",
        metavar="FILE",
        help="The store's options: a file of name=value lines.",
    ),
]

StoreConfigs = Annotated[
    list[str],
    typer.Option(
        "--store-config",
        default_factory=lambda: os.environ.get("TIDEGATE_STORE_CONFIG", "").split(),
        show_default=False,
        metavar="FILE",
        help="The store's options: a file of name=value lines. Several: --store-config NAME=FILE."
        " [env var: TIDEGATE_STORE_CONFIG]",
    ),
]
_NAMED_FILE = re.compile(r"([a-z0-9][a-z0-9_-]*)=(.+)", re.DOTALL)

NAME = re.compile(r"[A-Za-z0-9_.-]+")
"""Any other text before the ``=`` is no name, and may be a piece of a password or of a key."""
SECRET = re.compile(r"(?i)pass|secret|token|jaas|oauthbearer\.config|key\.pem|private\.key")
WHOLE, DECIMAL = re.compile(r"-?\d{1,18}", re.ASCII), re.compile(r"-?\d{1,18}\.\d{1,18}", re.ASCII)
TEXT = ("topic_prefix",)
"""Options of the log, tidegate's own, that are text, whatever their form."""
NUMBERS = (
    *("timeout_s", "socket_timeout", "socket_connect_timeout"),
    *("connect_timeout", "protocol_version", "idle_heartbeat_interval"),
)
SWITCHES = ("functions", "socket_keepalive", "ssl_check_hostname", "create", "tls", "leases")
"""Options of a store that are numbers, or true or false; all others are text: a password may be digits."""


def stores_given(
    store: Sequence[str] | Sequence[StoreRef], store_config: Sequence[str]
) -> tuple[StoreRef, ...]:
    """Return the stores that a command was given, with their options. Raises: as ``parse_stores``."""
    if not store:
        raise ConfigError("--store is missing: give a URL, or set TIDEGATE_STORE")
    ats = parse_stores(list(store))
    files = named_files(ats[0].name, store_config)
    return parse_stores(list(ats), {name: store_options(path) for name, path in files.items()})


def named_files(primary: str, store_config: Sequence[str]) -> dict[str, Path]:
    """Return the stores' option files by name; one without a name is the primary's."""
    paths: dict[str, Path] = {}
    for text in store_config:
        named = _NAMED_FILE.fullmatch(text)
        name, path = (named[1], named[2]) if named else (primary, text)
        if name in paths:
            raise ConfigError(f"--store-config: store {name} has two; write NAME=FILE for each store's own")
        paths[name] = Path(path)
    return paths


def wal_options(path: Path | None) -> dict[str, Any]:
    """Return the log's options in the file; none without a file.

    Raises: ConfigError, it cannot be read, or a line does not fit. Warns on standard error when
    other users can read it and it contains a password.
    """
    return _options("--wal-config", path, _of_log)


def store_options(path: Path | None) -> dict[str, Any]:
    """Return the store's options in the file; otherwise as ``wal_options``."""
    return _options("--store-config", path, _of_store)


Typed = Callable[[str, str], Any]


def _options(given_as: str, path: Path | None, typed: Typed) -> dict[str, Any]:
    if path is None:
        return {}
    if scheme_of(str(path).replace(":/", "://", 1)):  # not shown: it may have a login, and a path one slash
        raise ConfigError(f"{given_as}: it is a URL; give the path of a file of options")
    content, mode = read_file(path, given_as)
    lines = text_in(content, f"{given_as} {path}").replace("\r\n", "\n").split("\n")
    options = _parse(f"{given_as} {path}", lines, typed)
    if PROVIDER in options and is_from_found_file(given_as):
        raise ConfigError(
            f"{given_as} {path}: {PROVIDER} names code to run, and a {FILE} that was found chose this file:"
            f" if you trust both, give {given_as} yourself"
        )
    if others_can_read(mode) and any(map(SECRET.search, options)):
        print_message(
            f"warning: {path} holds a password, and others can read it: chmod 600 {quote(str(path))}"
        )
    return options


def _parse(where: str, lines: list[str], typed: Typed) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        text = line.lstrip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        name = name.rstrip()
        if not equals or NAME.fullmatch(name) is None:
            raise ConfigError(f"{where}, line {number}: it must be name=value, or a # comment")
        if name in options:
            raise ConfigError(f"{where}, line {number}: {name} is in the file twice")
        options[name] = typed(name, value.lstrip())
    return options


def _of_log(name: str, value: str) -> str | int | float:
    """Parse a value. tidegate's own options, without a dot, may be numbers; a client's are text."""
    return value if "." in name or name in TEXT else _number(value)


def _of_store(name: str, value: str) -> str | int | float | bool:
    if name in NUMBERS:
        return _number(value)
    if name in SWITCHES:
        return {"true": True, "false": False}.get(value.rstrip().lower(), value)
    return value


def _number(value: str) -> str | int | float:
    bare = value.rstrip()
    if WHOLE.fullmatch(bare):
        return int(bare)
    return float(bare) if DECIMAL.fullmatch(bare) else bare
