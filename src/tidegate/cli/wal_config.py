"""The log's options from a file, in the form that Kafka's own tools take: ``name=value`` lines.

What a file of passwords says never comes into a message: at most a name and a line number (T48).
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.cli.common import say
from tidegate.errors import ConfigError
from tidegate.options import Endpoints

WalConfig = Annotated[
    Path | None,
    typer.Option(
        "--wal-config",
        envvar="TIDEGATE_WAL_CONFIG",
        metavar="FILE",
        help="The log's options: a file of name=value lines, as Kafka's tools take them.",
    ),
]

NAME = re.compile(r"[A-Za-z0-9_.-]+")
"""Anything else before the ``=`` is no name, and may be a piece of a password or of a key."""
SECRET = re.compile(r"(?i)pass|secret|token|jaas|oauthbearer\.config|key\.pem|private\.key")
WHOLE, DECIMAL = re.compile(r"-?\d{1,18}", re.ASCII), re.compile(r"-?\d{1,18}\.\d{1,18}", re.ASCII)
TEXT = ("topic_prefix",)
"""Options of ours that are text, whatever they look like."""
BYTES_MAX = 1024 * 1024


def endpoints(store: str, wal: str, namespace: str, config: Path | None) -> Endpoints:
    """Where a command works: URLs, name, and the log's options from its file."""
    return Endpoints(namespace, wal, store, wal_options(config))


def wal_options(path: Path | None) -> dict[str, Any]:
    """The options in the file; none without one.

    ConfigError: it cannot be read, or a line does not fit. A warning on standard error: others
    can read it too, and it holds a password.
    """
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            content, mode = file.read(BYTES_MAX + 1), os.fstat(file.fileno())
    except OSError as error:
        raise ConfigError(f"--wal-config {path}: {error.strerror or 'it cannot be read'}") from None
    if len(content) > BYTES_MAX:
        raise ConfigError(f"--wal-config {path}: it is larger than {BYTES_MAX:,} bytes")
    try:
        lines = content.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError:
        raise ConfigError(f"--wal-config {path}: it is not text in UTF-8") from None
    options = _parse(path, lines)
    if _others_can_read(mode) and any(map(SECRET.search, options)):
        say(f"warning: {path} holds a password, and others can read it: chmod 600 {path}")
    return options


def _parse(path: Path, lines: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        text = line.lstrip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        name = name.rstrip()
        if not equals or NAME.fullmatch(name) is None:
            raise ConfigError(f"--wal-config {path}, line {number}: it must be name=value, or a # comment")
        if name in options:
            raise ConfigError(f"--wal-config {path}, line {number}: {name} stands there for the second time")
        options[name] = _typed(name, value.lstrip())
    return options


def _typed(name: str, value: str) -> str | int | float:
    """Ours, which have no dot, are numbers where they look like it; a client's are text to its library."""
    if "." in name or name in TEXT:
        return value
    bare = value.rstrip()
    if WHOLE.fullmatch(bare):
        return int(bare)
    return float(bare) if DECIMAL.fullmatch(bare) else bare


def _others_can_read(mode: os.stat_result) -> bool:
    """Also its group, unless the file is somebody else's (root's, say) who lets this user in by it."""
    group = 0 if mode.st_uid != os.geteuid() else stat.S_IRGRP
    return bool(stat.S_IMODE(mode.st_mode) & (stat.S_IROTH | group))
