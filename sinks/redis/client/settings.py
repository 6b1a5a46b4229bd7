"""Settings from a Redis URL and its options: the servers' addresses, and how to connect to them.

- ``redis://[user:password@]host:port/db``: one server (``rediss://``: TLS)
- ``redis+sentinel://h1:p1,h2:p2/master/db``: the server that the Sentinels name as the primary
- ``redis+cluster://h1:p1,h2:p2``: a Cluster, found through any of these

With ``rediss+...`` the last two use TLS.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import ssl
from typing import Any, Literal
from urllib.parse import unquote

import redis

from tidegate.base.deadline import left_of
from tidegate.base.urls import Address, addresses, hide_forms, redact, servers_at, user_and_password
from tidegate.errors import ConfigError
from tidegate.options.client_options import (
    ANYTHING,
    CA_DATA,
    CLIENT_NAME,
    FILE,
    FOLDER,
    KEEPALIVE_OPTIONS,
    PASSPHRASE,
    SECONDS,
    SWITCH,
    TEXT,
    TLS_VERSION,
    VERIFIES,
    Form,
    check_tls,
    checked,
    is_text,
)
from tidegate.options.logins import NoLoginError, Provider, place_of, provider_of

Kind = Literal["one", "sentinel", "cluster"]
PORT, SENTINEL_PORT = 6379, 26379
TIMEOUT_S = 10.0
REQUEST_S = 3.0

FORMS: dict[str, Form] = {
    "functions": SWITCH,
    "timeout_s": SECONDS,
    "username": TEXT,
    "password": TEXT,
    "client_name": CLIENT_NAME,
    "credential_provider": ANYTHING,
    "socket_timeout": SECONDS,
    "socket_connect_timeout": SECONDS,
    "socket_keepalive": SWITCH,
    "socket_keepalive_options": KEEPALIVE_OPTIONS,
    "ssl_keyfile": FILE,
    "ssl_certfile": FILE,
    "ssl_cert_reqs": VERIFIES,
    "ssl_ca_certs": FILE,
    "ssl_ca_path": FOLDER,
    "ssl_ca_data": CA_DATA,
    "ssl_password": PASSPHRASE,
    "ssl_check_hostname": SWITCH,
    "ssl_min_version": TLS_VERSION,
    "ssl_ciphers": TEXT,
}
"""tidegate's own options, then those of redis-py under its own names."""
OURS = ("functions", "timeout_s")
OF_SENTINEL = ("sentinel_username", "sentinel_password")


@dataclasses.dataclass(frozen=True, slots=True)
class LoginByName:
    """redis-py's ``CredentialProvider``, by the name of a function.

    ``limit_s``: of one try. ``timeout_s``: of a reader's call.
    """

    provider: Provider
    limit_s: float
    timeout_s: float

    def get_credentials(self) -> tuple[str, ...]:
        """Return user and token, or the token alone.

        Raises: redis.ConnectionError: there is no login now. ConfigError: the function does not fit.
        """
        try:
            login = self.provider.get(min(self.limit_s, left_of(self.timeout_s)))
        except NoLoginError as error:
            raise redis.ConnectionError(str(error)) from None
        return (login.user, login.token) if login.user else (login.token,)

    async def get_credentials_async(self) -> tuple[str, ...]:
        """As ``get_credentials``; the event loop is not blocked."""
        return await asyncio.to_thread(self.get_credentials)


class LoginByObject:
    """A user's ``CredentialProvider`` of redis-py: its logins and errors are checked, which may be secret."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def get_credentials(self) -> tuple[str, ...]:
        """Return user and token, or the token alone.

        Raises: redis.ConnectionError: the object raised. ConfigError: it returned something else.
        """
        login, why = None, ""
        try:
            login = self._provider.get_credentials()
        except Exception as error:  # noqa: BLE001 - of the user's object; its text may have the token
            why = place_of(error)
        if why:  # raised here, so that it has no context
            raise redis.ConnectionError(f"the credential_provider raised {why}; call it by itself")
        if not isinstance(login, tuple | list) or len(login) not in (1, 2) or not all(map(is_text, login)):
            raise ConfigError(
                "the credential_provider must return (user, token) or (token,), as texts in UTF-8"
            )
        return tuple(login)

    async def get_credentials_async(self) -> tuple[str, ...]:
        """As ``get_credentials``, in a thread, so that the event loop is not blocked."""
        return await asyncio.to_thread(self.get_credentials)


@dataclasses.dataclass(frozen=True, slots=True)
class RedisSettings:
    """The settings of one store. ``connection``: the arguments of a connection to a server that
    holds data.
    """

    url: str = dataclasses.field(repr=False)
    kind: Kind
    seeds: tuple[Address, ...]
    master: str
    tls: bool
    connection: dict[str, Any] = dataclasses.field(repr=False)
    sentinel: dict[str, Any] = dataclasses.field(repr=False)
    timeout_s: float = TIMEOUT_S
    functions: bool = True

    @property
    def secrets(self) -> list[str]:
        """The passwords that are sent to servers."""
        arguments = (*self.connection.items(), *self.sentinel.items())
        passwords = [str(value) for name, value in arguments if name.endswith("password")]
        return passwords + (self.provider.secrets if self.provider else [])

    @property
    def provider(self) -> Provider | None:
        """The function that gives the login, if it was given by its name."""
        login = self.connection.get("credential_provider")
        return login.provider if isinstance(login, LoginByName) else None

    @property
    def trusts_any_server(self) -> bool:
        """Whether TLS accepts an unsigned certificate, or one of another host."""
        return self.tls and not (_is_verified(self.connection) and self.connection["ssl_check_hostname"])


def settings_of(url: str, options: dict[str, Any]) -> RedisSettings:
    """Return the settings. Raises: ConfigError that names what does not fit, and never shows a password."""
    shown, parts = redact(url), servers_at(url)
    secure, kind = _kind_of(parts.scheme)
    if parts.rest:
        raise ConfigError(
            f"store {shown}: give options as store_options (--store-config), not after '?' or '#'"
        )
    connection = _login(parts.login, options, shown)
    seeds = addresses(parts, SENTINEL_PORT if kind == "sentinel" else PORT, f"store {shown}")
    if kind == "one" and len(seeds) > 1:
        raise ConfigError(f"store {shown}: several servers are redis+cluster:// or redis+sentinel://")
    path = [unquote(part) for part in parts.path.split("/") if part]
    master = path.pop(0) if kind == "sentinel" and path else ""
    if kind == "sentinel" and not master:
        raise ConfigError(f"store {shown}: write redis+sentinel://host:port,host:port/<name of the primary>")
    if path and (kind == "cluster" or len(path) > 1 or re.fullmatch(r"[0-9]{1,9}", path[0]) is None):
        raise ConfigError(
            f"store {shown}: the text after its servers is not the number of a database, as in redis://host:6379/0"
            + "; a Cluster has only database 0, and its URL has no number" * (kind == "cluster")
        )
    if path:
        connection["db"] = int(path[0])
    return _with_options(
        RedisSettings(url, kind, seeds, master, secure, connection, {}), options, shown, secure=secure
    )


def _kind_of(scheme: str) -> tuple[bool, Kind]:
    base, _, kind = scheme.partition("+")
    kinds: dict[str, Kind] = {"": "one", "sentinel": "sentinel", "cluster": "cluster"}
    return base == "rediss", kinds[kind]


def _login(login: str | None, options: dict[str, Any], shown: str) -> dict[str, Any]:
    username, password = user_and_password(login)
    if login and password is None and not options.keys() & {"password", "credential_provider"}:
        raise ConfigError(
            f"store {shown}: it has either a user or a password, which is ambiguous: write user:password@"
            " or :password@; user:@ for a user without a password"
        )
    return {name: value for name, value in (("username", username), ("password", password)) if value}


def _with_options(
    settings: RedisSettings, options: dict[str, Any], shown: str, *, secure: bool
) -> RedisSettings:
    where = f"store {shown}"
    of_sentinel = dict.fromkeys(OF_SENTINEL if settings.kind == "sentinel" else (), TEXT)
    if not secure and (names := [name for name in options if name.startswith("ssl_")]):
        raise ConfigError(
            f"{where}: ssl_ options need TLS ({', '.join(names)}): write rediss:// or rediss+...://"
        )
    options = checked(options, FORMS | of_sentinel, where)
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    check_tls(tls, where)
    timeout_s = float(options.get("timeout_s", TIMEOUT_S))
    passed = {name: value for name, value in options.items() if name not in (*OURS, *OF_SENTINEL)}
    provider = passed.get("credential_provider")
    if provider is not None and (settings.connection.keys() | passed.keys()) & {"username", "password"}:
        raise ConfigError(f"{where}: it has a login and a credential_provider: leave one of them out")
    if secure:  # redis-py checks the name by default from release 6 on only
        passed.setdefault("ssl_check_hostname", _is_verified(passed))
        tls["ssl_check_hostname"] = passed["ssl_check_hostname"]
    request_s = min(REQUEST_S, timeout_s)
    if provider is not None and not callable(getattr(provider, "get_credentials", None)):
        named = provider_of(provider, where)
        passed["credential_provider"] = LoginByName(named, request_s, timeout_s)
    elif provider is not None:
        passed["credential_provider"] = LoginByObject(provider)
    limits = {
        name: float(options.get(name, request_s)) for name in ("socket_timeout", "socket_connect_timeout")
    }
    login = {name.removeprefix("sentinel_"): value for name, value in options.items() if name in OF_SENTINEL}
    # A silent Sentinel leaves time for the others, and for the server that they name.
    ask_s = min(REQUEST_S, timeout_s / (len(settings.seeds) + 1))
    login = {"socket_timeout": ask_s, "socket_connect_timeout": ask_s, **login}
    return dataclasses.replace(
        settings,
        connection={**settings.connection, **passed, **limits},
        sentinel={**tls, **({"ssl": True} if secure else {}), **login},
        timeout_s=timeout_s,
        functions=options.get("functions", True),
    )


def _is_verified(options: dict[str, Any]) -> bool:
    """Return whether TLS verifies the server's certificate at all."""
    return options.get("ssl_cert_reqs", "required") not in ("none", ssl.CERT_NONE)


def without_words(error: redis.RedisError, settings: RedisSettings) -> redis.RedisError:
    """Return the error of a refused login, without the words that it quotes: the password is one.

    Redis quotes them in one way. A proxy, or a server that is no Redis at all, may repeat them in
    any other.
    """
    said, _, _ = str(error).partition(", with args beginning with")
    said = hide_forms(said, settings.secrets)
    return error if said == str(error) else type(error)(said)
