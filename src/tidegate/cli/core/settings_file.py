"""``tidegate.toml``: store, log and namespace for the commands that run in its folder.

An option comes first, then a variable, then the file: it only sets the variables that are not set.
The content of the file never appears in a message: at most a key and a line number (T48).

A file that was found, not named, may be from anybody: a clone or an unpacked archive belongs to the user
who made the copy. Nothing in it is used until the user has trusted it on a terminal. The digest of the
file and of the option files that it names is then kept in the user's state folder, so a changed file is
asked for again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import io
import logging
import os
import re
import select
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote as quoted
from typing import Any

import typer

from tidegate.base.files import open_regular, read_regular
from tidegate.base.text import cell
from tidegate.base.urls import SERVERS, SURROGATE, parts_of, quoted_path, redact
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
OPTION_FILES = ("store_config", "wal_config")
HERE = "HERE"
"""The reference to the folder of the file. Any other reference may only be in a URL's login."""
REFERENCE = re.compile(r"\$\{(\w+)\}", re.ASCII)
STORE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*=")
"""The name before a store's URL or option file."""

BYTES_MAX = 1024 * 1024
SETTINGS_BYTES_MAX, DOTS_MAX = 64 * 1024, 500
"""The time that a line takes grows with the square of its dots, before the file is trusted."""
PIPE_WAIT_S = 60.0

_from_file: dict[str, str] = {}
"""The variables that the file has set, with file and line."""


_options: set[str] = set()
"""The options whose values are from a file that was found, and that the command was not given itself."""


@contextlib.contextmanager
def from_settings_file(words: Sequence[str] = ()) -> Iterator[None]:
    """Set the variables that are not set from the file, within the context. ``words``: the command's own.

    The file is the one that ``TIDEGATE_CONFIG`` names, or ``tidegate.toml`` in the working folder, if there
    is one. Raises: ConfigError, with file and line: it cannot be read, has another key or value, or others
    may write it; it is in the working folder and another user's, or not trusted yet and nobody can be asked.
    """
    named = os.environ.get(VARIABLE)
    path = Path(named or FILE)
    before = dict(_from_file)
    try:
        if named or path.exists():
            settings = _settings_in(path, is_named=bool(named))
            if not named:
                _require_trust(path, settings)
            for key, setting in settings.items():
                if not os.environ.get(variable_of(key)):
                    os.environ[variable_of(key)] = setting.resolved(path)
                    _from_file[variable_of(key)] = f"{path}, line {setting.line}"
                    option = f"--{key.replace('_', '-')}"
                    if not named and not any(word.partition("=")[0] == option for word in words):
                        _options.add(option)
        yield
    finally:
        _options.clear()
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


def is_from_found_file(option: str) -> bool:
    """Whether the command has this option's value from a file that was found, and not named."""
    return option in _options


def shown_sources(ctx: Any) -> str:
    """Show ``sources`` on one line.

    >>> shown_sources(type("Context", (), {"get_parameter_source": lambda *_: None})())
    ''
    """
    return "; ".join(f"--{key.replace('_', '-')} by {origin}" for key, origin in sources(ctx).items())


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """The texts of one key, as they are in the file. ``repr`` shows none of them (T48)."""

    key: str
    line: int
    texts: tuple[str, ...] = dataclasses.field(repr=False)

    def resolved(self, path: Path) -> str:
        """Return the value. Raises: ConfigError: a reference is not allowed there, or not set."""
        return " ".join(_resolved(f"{path}, line {self.line}", self.key, text, path) for text in self.texts)


def _settings_in(path: Path, *, is_named: bool) -> dict[str, Setting]:
    """Return the settings by key. No variable is read."""
    content, mode = read_file(path, "", is_found=not is_named)
    if not is_named and mode.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{path}: it belongs to another user (uid {mode.st_uid}), who would choose the servers that get"
            f" your logins: if you trust it, name it by {VARIABLE}"
        )
    if len(content) > SETTINGS_BYTES_MAX:
        raise ConfigError(f"{path}: it is larger than {SETTINGS_BYTES_MAX:,} bytes")
    text, values, where = text_in(content, str(path)), None, ""
    for number, of_file in enumerate(text.splitlines(), 1):
        if of_file.count(".") > DOTS_MAX:
            raise ConfigError(f"{path}, line {number}: it is not a setting; there are {', '.join(KEYS)}")
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of a number with thousands of digits
        # Its message may quote the text: only the place is shown.
        match = re.search(r"at line (\d+)", str(error))
        where = f", line {match[1]}" if match else ""
    if values is None:  # raised here, so that it has no context, which may hold the text
        raise ConfigError(f'{path}{where}: it is not TOML, which is lines such as namespace = "x"')
    settings = {}
    for key, value in values.items():
        line = _line_of(text, key)
        where = f"{path}, line {line}"
        if key not in KEYS:
            raise ConfigError(f"{where}: {key!r:.60} is not a setting; there are {', '.join(KEYS)}")
        parts = value if isinstance(value, list) and key.startswith("store") else [value]
        texts = [part for part in parts if isinstance(part, str) and part.strip() and "\0" not in part]
        if not parts or texts != parts:
            raise ConfigError(f"{where}: {key} must be a text in quotes; several stores are a list of texts")
        if any(map(_has_password, parts)) and others_can_read(mode):
            logger.warning(
                "%s: it holds a password, and others can read it: chmod 600 %s, or write ${NAME} for a"
                " variable that holds it",
                where,
                quoted(str(path)),
            )
        settings[key] = Setting(key, line, tuple(parts))
    return settings


def read_file(path: Path, given_as: str, *, is_found: bool = False) -> tuple[bytes, os.stat_result]:
    """Return the content of a file of settings or options, and its status.

    Raises: ConfigError: it cannot be read or is too large, or others may write it and so choose servers.
    ``is_found``: it must be a regular file. A pipe that was named has ``PIPE_WAIT_S`` for its content.
    """
    where = f"{given_as} {path}".lstrip()
    try:
        fd = open_regular(path) if is_found else os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(fd, "rb", buffering=0) as file:
            content, mode = _content(file), os.fstat(fd)
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror or 'it cannot be read'}") from None
    if len(content) > BYTES_MAX:
        raise ConfigError(f"{where}: it is larger than {BYTES_MAX:,} bytes")
    if stat.S_ISREG(mode.st_mode) and mode.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"{where}: others may write it, and would choose the servers that get your logins: look at it,"
            f" then chmod go-w {quoted(str(path))}"
        )
    if given_as and stat.S_ISREG(mode.st_mode) and mode.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{where}: it belongs to another user (uid {mode.st_uid}), who would choose how your logins are"
            " sent: look at it, then give a copy of your own"
        )
    return content, mode


def _content(file: io.FileIO) -> bytes:
    """Return the content up to ``BYTES_MAX`` + 1. Raises: OSError, also: it did not end in time."""
    content, end, poll = b"", time.monotonic() + PIPE_WAIT_S, select.poll()
    poll.register(file, select.POLLIN)
    while len(content) <= BYTES_MAX:
        if not poll.poll(max(0.0, end - time.monotonic()) * 1e3):
            raise TimeoutError(errno.ETIMEDOUT, f"its content did not come within {PIPE_WAIT_S:g} s")
        piece = file.read(BYTES_MAX + 1 - len(content))
        if piece == b"":
            break
        content += piece or b""  # None: another process was faster
    return content


def text_in(content: bytes, where: str) -> str:
    """Return the text of a file. Raises: ConfigError, without a context, which would hold the content."""
    text = content.decode("utf-8-sig", errors="surrogateescape")
    if SURROGATE.search(text):
        raise ConfigError(f"{where}: it is not text in UTF-8")
    return text


def trust(path: Path) -> None:
    """Remember that this user trusts the file and the option files that it names, as they are now."""
    _remember(_digest(path, _settings_in(path, is_named=False)))


def _require_trust(path: Path, settings: dict[str, Setting]) -> None:
    """Ask whether to use a found file that the user has not trusted yet. Raises: ConfigError: no, or no
    terminal.
    """
    digest = _digest(path, settings)
    if _is_trusted(digest):
        return
    full = cell(str(path.resolve()))
    if not _is_terminal():
        raise ConfigError(
            f"{path}: this user has not trusted it yet, and its author chooses the servers that get your"
            " logins: look at it, then answer the question on a terminal, or name it:"
            f" {VARIABLE}={quoted(full)}"
        )
    typer.echo(f"{full} is new here, or has changed. It gives:", err=True)
    for key, setting in settings.items():
        for text in setting.texts:
            variables = ", ".join(name for name in REFERENCE.findall(text) if name != HERE)
            logs_in = f", with the variables {variables}" * bool(variables)
            typer.echo(f"  {key}: {_shown(key, text, path)}{logs_in}", err=True)
    if not typer.confirm("Trust it, until it changes?", err=True):
        raise ConfigError(f"{path}: it was not used; options and variables name places without it")
    _remember(digest)


def _shown(key: str, text: str, path: Path) -> str:
    """Show a text of the file: URLs without their logins, and nothing that controls a terminal."""
    if key not in URLS:
        return cell(text)
    pairs, folder = [_named(word) for word in text.split()], quoted_path(path.resolve().parent)
    return cell(" ".join(name + redact(url.replace(f"${{{HERE}}}", folder)) for name, url in pairs))


def _named(word: str) -> tuple[str, str]:
    """Split ``NAME=``, which may be missing, from a store's URL or option file."""
    name = STORE_NAME.match(word)
    return (name[0], word[name.end() :]) if name else ("", word)


def _has_password(text: str) -> bool:
    """Return whether a URL in it has a password that is no reference to the environment."""
    logins = [word.partition("://")[2].rpartition("@")[0] for word in text.split()]
    passwords = [login.partition(":")[2] for login in logins]
    return any(password and not password.startswith("${") for password in passwords)


def _digest(path: Path, settings: dict[str, Setting]) -> str:
    """Return the digest of the file's path, its settings, and the option files that it names."""
    folder = path.resolve().parent
    parts: list[object] = [str(folder / path.name)]
    for key, setting in sorted(settings.items()):
        parts += [key, setting.texts]
        for text in setting.texts if key in OPTION_FILES else ():
            for name in (text, *(_named(word)[1] for word in text.split())):
                file = (folder / name.replace(f"${{{HERE}}}", str(folder))).resolve()
                if file.is_file():  # also one outside, or behind a link
                    parts += [str(file), hashlib.blake2b(read_file(file, key)[0]).hexdigest()]
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _trusted_file() -> Path:
    """Return the file of the digests that this user trusts, one a line. Raises: RuntimeError: no home."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (state if state.is_absolute() else Path.home() / ".local" / "state") / "tidegate" / "trusted"


def _is_trusted(digest: str) -> bool:
    try:
        return digest.encode() in read_regular(_trusted_file(), BYTES_MAX).splitlines()
    except (OSError, ValueError, RuntimeError):
        return False


def _remember(digest: str) -> None:
    """Add a digest to the user's file. Where that is not possible, the question is asked again next time."""
    with contextlib.suppress(OSError, RuntimeError):
        file = _trusted_file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "a", encoding="ascii") as lines:
            lines.write(f"{digest}\n")


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _line_of(text: str, key: str) -> int:
    starts = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}\b")
    return next((number for number, line in enumerate(text.splitlines(), 1) if starts.match(line)), 1)


def _resolved(where: str, key: str, text: str, path: Path) -> str:
    """Replace references to the environment, which only a login may have, and to the file's folder."""
    folder = str(path.resolve().parent)

    def text_of(reference: re.Match[str]) -> str:
        name = reference[1]
        if name == HERE:
            return quoted_path(folder) if key in URLS else folder
        if name not in os.environ:
            raise ConfigError(f"{where}: {key} refers to the variable {name}, which is not set")
        return os.environ[name]

    if key not in URLS:
        _refuse_references(where, text)
        return REFERENCE.sub(text_of, text)
    words = []
    for word in text.split():
        parts = parts_of(_named(word)[1])
        login = parts.login or "" if parts and parts.scheme in SERVERS else ""
        before, _, after = word.partition(f"{login}@") if login else (word, "", "")
        _refuse_references(where, before + after)
        resolved = REFERENCE.sub(text_of, word)
        made = parts_of(_named(resolved)[1])
        if login and (resolved.split() != [resolved] or not made or not parts or made.hosts != parts.hosts):
            raise ConfigError(
                f"{where}: the value of a variable in the login of {key} has a character that ends a login:"
                " percent-encode it, as %2F for / and %40 for @"
            )
        words.append(resolved)
    return " ".join(words)


def _refuse_references(where: str, text: str) -> None:
    """Raises: ConfigError: a reference that would send a variable as a host, a path or a name."""
    for name in REFERENCE.findall(text):
        if name != HERE:
            raise ConfigError(
                f"{where}: ${{{name}}} is not in the login of a URL of servers, the only place of a variable:"
                " write the rest in the file, or give the option"
            )


def others_can_read(mode: os.stat_result) -> bool:
    """Return whether others can read it; its group counts, unless another user (root, say) owns the file."""
    group = 0 if mode.st_uid != os.geteuid() else stat.S_IRGRP
    return bool(stat.S_IMODE(mode.st_mode) & (stat.S_IROTH | group))
