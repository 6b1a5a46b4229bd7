"""``tidegate.toml``: store, log and namespace for the commands that run in its folder.

An option comes first, then a variable, then the file: it only sets the variables that are not set.
The content of the file never appears in a message: at most a key and a line number (T48).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tidegate.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

logger = logging.getLogger("tidegate")

FILE = "tidegate.toml"
VARIABLE = "TIDEGATE_CONFIG"
KEYS = ("store", "store_config", "wal", "wal_config", "namespace")
URLS = ("store", "wal")
HERE = "HERE"
"""The reference to the folder of the file."""
REFERENCE = re.compile(r"\$\{(\w+)\}", re.ASCII)
PASSWORD = re.compile(r"://[^/@\s]*:(?!\$\{)[^@\s]+@")
"""A password that is no reference to the environment."""

BYTES_MAX = 1024 * 1024

_from_file: dict[str, str] = {}
"""The variables that the file has set, with file and line."""


@contextlib.contextmanager
def from_settings_file() -> Iterator[None]:
    """Set the variables that are not set from the file, within the context.

    The file is the one that ``TIDEGATE_CONFIG`` names, or ``tidegate.toml`` in the working folder, if there
    is one. Raises: ConfigError, with file and line: it cannot be read, has another key or value, or is in
    the working folder and another user's, whose references would send this user's variables away.
    """
    named = os.environ.get(VARIABLE)
    path = Path(named or FILE)
    before = dict(_from_file)
    try:
        if named or path.exists():
            for key, (value, line) in _settings_in(path, is_named=bool(named)).items():
                if not os.environ.get(variable_of(key)):
                    os.environ[variable_of(key)] = value
                    _from_file[variable_of(key)] = f"{path}, line {line}"
        yield
    finally:
        for variable in _from_file.keys() - before.keys():
            os.environ.pop(variable, None)
            del _from_file[variable]


def variable_of(key: str) -> str:
    """Return the variable of an option."""
    return f"TIDEGATE_{key.upper()}"


def sources(ctx: Any) -> dict[str, str]:
    """Return the origin of each value of a command that no option gave: file and line, or the variable."""
    origins = {}
    for key in KEYS:
        source = ctx.get_parameter_source(key)
        variable = variable_of(key)
        if source is not None and source.name != "COMMANDLINE" and os.environ.get(variable):
            origins[key] = _from_file.get(variable, variable)
    return origins


def shown_sources(ctx: Any) -> str:
    """Show ``sources`` on one line.

    >>> shown_sources(type("Context", (), {"get_parameter_source": lambda *_: None})())
    ''
    """
    return "; ".join(f"--{key.replace('_', '-')} by {origin}" for key, origin in sources(ctx).items())


def _settings_in(path: Path, *, is_named: bool) -> dict[str, tuple[str, int]]:
    """Return the values and their lines."""
    try:
        with path.open("rb") as file:
            content, mode = file.read(BYTES_MAX + 1), os.fstat(file.fileno())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or 'it cannot be read'}") from None
    if not is_named and mode.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{path}: it belongs to another user (uid {mode.st_uid}), who would choose the servers that get"
            f" your logins: if you trust it, name it by {VARIABLE}"
        )
    try:
        text = content.decode("utf-8-sig")
        values = tomllib.loads(text)
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: it is not text in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        # Its message may quote the text: only the place is shown.
        at = re.search(r"at line (\d+)", str(error))
        where = f", line {at[1]}" if at else ""
        raise ConfigError(f'{path}{where}: it is not TOML, which is lines such as namespace = "x"') from None
    settings = {}
    for key, value in values.items():
        line = _line_of(text, key)
        where = f"{path}, line {line}"
        if key not in KEYS:
            raise ConfigError(f"{where}: {key!r:.60} is not a setting; there are {', '.join(KEYS)}")
        parts = value if isinstance(value, list) and key.startswith("store") else [value]
        if not parts or not all(isinstance(part, str) and part.strip() for part in parts):
            raise ConfigError(f"{where}: {key} must be a text in quotes; several stores are a list of texts")
        if any(map(PASSWORD.search, parts)) and others_can_read(mode):
            logger.warning(
                "%s: it holds a password, and others can read it: chmod 600 %s, or write ${NAME} for a"
                " variable that holds it",
                where,
                path,
            )
        settings[key] = " ".join(_resolved(where, key, part, path) for part in parts), line
    return settings


def _line_of(text: str, key: str) -> int:
    starts = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}\b")
    return next((number for number, line in enumerate(text.splitlines(), 1) if starts.match(line)), 1)


def _resolved(where: str, key: str, value: str, path: Path) -> str:
    """Replace references to the environment and to the file's folder."""

    def text_of(reference: re.Match[str]) -> str:
        name = reference[1]
        if name == HERE:
            folder = str(path.resolve().parent)
            return quote(folder) if key in URLS else folder
        if name not in os.environ:
            raise ConfigError(f"{where}: {key} refers to the variable {name}, which is not set")
        return os.environ[name]

    return REFERENCE.sub(text_of, value)


def others_can_read(mode: os.stat_result) -> bool:
    """Return whether others can read it; its group counts, unless another user (root, say) owns the file."""
    group = 0 if mode.st_uid != os.geteuid() else stat.S_IRGRP
    return bool(stat.S_IMODE(mode.st_mode) & (stat.S_IROTH | group))
