"""The forms of the values of clients' options, for every store and log.

Any option may be a login, or get one by mistake. So no error shows a value, and no error has a cause or a
context that holds one.
"""

from __future__ import annotations

import math
import os
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard

from tidegate.errors import ConfigError

NAME = re.compile(r"[A-Za-z_][\w.-]{0,79}", re.ASCII)
"""The form of an option's name. Any other text may be a piece of a login."""
SECONDS_MAX = 3_600
WHOLE_MAX = 2**31 - 1
PASSPHRASE_BYTES_MAX = 1_000
"""OpenSSL takes no longer one."""
KEEPALIVE = {
    getattr(socket, name): most
    for name, most in (
        ("TCP_KEEPIDLE", 32_767),
        ("TCP_KEEPALIVE", 32_767),
        ("TCP_KEEPINTVL", 32_767),
        ("TCP_KEEPCNT", 127),
        ("TCP_USER_TIMEOUT", WHOLE_MAX),
    )
    if hasattr(socket, name)
}
"""The options of a connection's keepalive, each with its largest value on Linux."""


class Form(NamedTuple):
    """The form of a value in words, and the test whether a value has it."""

    words: str
    fits: Callable[[Any], bool]


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is text that servers take: in UTF-8, and without NUL, which ends a text in C."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_number(value: object) -> bool:
    """Return whether a value is a number that ``float`` takes."""
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= WHOLE_MAX
    return whole or isinstance(value, float)


def whole(least: int, most: int) -> Form:
    """Return the form of a whole number between two."""
    return Form(
        f"a whole number from {least:,} to {most:,}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most,
    )


def one_of(*known: str) -> Form:
    """Return the form of a text out of some."""
    return Form(f"one of {', '.join(known)}", lambda value: isinstance(value, str) and value in known)


def seconds(least: float = 0, most: float = SECONDS_MAX) -> Form:
    """Return the form of a time. ``least`` itself fits unless it is 0."""
    words = f"a number of seconds, {f'from {least:g}' if least else 'above 0'} to {most:,}"
    return Form(words, lambda value: is_number(value) and least <= value <= most and value > 0)


def _is_path(value: object, exists: Callable[[str], bool]) -> bool:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    return isinstance(path, str) and "\0" not in path and exists(path) and os.access(path, os.R_OK)


def _is_keepalive(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(
        type(name) is int and type(number) is int and 1 <= number <= KEEPALIVE.get(name, 0)
        for name, number in value.items()
    )


ANYTHING = Form("an object", lambda _: True)
SWITCH = Form("True or False", lambda value: isinstance(value, bool))
SECONDS = seconds()
SECONDS_OR_0 = Form(
    f"a number of seconds, from 0 to {SECONDS_MAX:,}",
    lambda value: is_number(value) and 0 <= value <= SECONDS_MAX,
)
NUMBER_OR_TEXT = Form(
    "text in UTF-8 without NUL, a number or a truth value",
    lambda value: is_text(value) or isinstance(value, bool) or (is_number(value) and math.isfinite(value)),
)
TEXT = Form("text in UTF-8 without NUL", is_text)
CLIENT_NAME = Form(
    "text of the characters from ! to ~",
    lambda value: isinstance(value, str) and re.fullmatch(r"[!-~]*", value) is not None,
)
FILE = Form("the path of a file that this user can read", lambda value: _is_path(value, os.path.isfile))
FOLDER = Form("the path of a folder that this user can read", lambda value: _is_path(value, os.path.isdir))
CA_DATA = Form("certificates, as text in PEM or bytes in DER", lambda value: isinstance(value, str | bytes))
PASSPHRASE = Form(
    f"text in UTF-8 without NUL, {PASSPHRASE_BYTES_MAX:,} bytes at most",
    lambda value: is_text(value) and len(value.encode()) <= PASSPHRASE_BYTES_MAX,
)
VERIFIES = Form(
    "required, optional or none",
    lambda value: isinstance(value, ssl.VerifyMode) or value in ("required", "optional", "none"),
)
TLS_VERSION = Form("a member of ssl.TLSVersion", lambda value: isinstance(value, ssl.TLSVersion))
KEEPALIVE_OPTIONS = Form(
    "a dict of socket.TCP_KEEPIDLE, TCP_KEEPINTVL or TCP_KEEPCNT to whole numbers", _is_keepalive
)
NONE_COUNTS = ("functions", "ssl_cert_reqs", "timeout_s", "socket_timeout", "socket_connect_timeout")
"""Options that mean something else if they are None: no limit, no verification."""


def named(options: Mapping[Any, Any] | None, where: str) -> dict[str, Any]:
    """Return a copy of the options. Raises: ConfigError: they are no options by name."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"{where}: its options are {type(options).__name__}; they must be a dict of options"
        )
    if not all(isinstance(name, str) and NAME.fullmatch(name) for name in options):
        raise ConfigError(f"{where}: the name of an option has another form than names of options")
    return dict(options)


def checked(options: Mapping[str, Any], forms: Mapping[str, Form], where: str) -> dict[str, Any]:
    """Return the options that are not None. Raises: ConfigError: one is unknown, or has another form."""
    if unknown := sorted(options.keys() - forms.keys()):
        there_are = f"there are {', '.join(forms)}" if forms else "it has none"
        raise ConfigError(f"{where}: unknown option {', '.join(unknown)}; {there_are}")
    left = {name: value for name, value in options.items() if value is not None or name in NONE_COUNTS}
    for name, value in left.items():
        if not forms[name].fits(value):
            kind = "" if isinstance(value, str) else f" is {type(value).__name__}; it"
            raise ConfigError(f"{where}: {name}{kind} must be {forms[name].words}")
    return left


def check_tls(options: Mapping[str, Any], where: str) -> None:
    """Refuse options of TLS, of the right forms, that do not fit together, or that OpenSSL does not take.

    Reads no file. Raises: ConfigError.
    """
    for name in ("ssl_keyfile", "ssl_password"):
        if name in options and "ssl_certfile" not in options:
            raise ConfigError(f"{where}: {name} needs ssl_certfile, the file of the client's certificate")
    unverified = options.get("ssl_cert_reqs") in ("none", ssl.CERT_NONE)
    if unverified and options.get("ssl_check_hostname"):
        raise ConfigError(f"{where}: ssl_check_hostname needs a certificate that is verified (ssl_cert_reqs)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    takes: dict[str, Callable[[Any], None]] = {
        "ssl_ca_data": lambda value: context.load_verify_locations(cadata=value),
        "ssl_ciphers": context.set_ciphers,
    }
    for name, take in takes.items():
        fits = True
        try:
            take(options[name]) if name in options else None
        except (OSError, ValueError, TypeError):
            fits = False
        if not fits:  # raised here, so that it has no context
            raise ConfigError(f"{where}: {name} has a value that OpenSSL does not take")
