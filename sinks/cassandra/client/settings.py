"""Settings from a Cassandra URL and its options: the cluster's address, and how to write to it.

``cassandra://[user:password@]host1,host2[:port]/keyspace``

A version is read whole only where every read meets a replica that every write reached. So a
namespace is written at one consistency for life, and read at one that overlaps with it:

    written at     read at                          by readers of
    LOCAL_QUORUM   LOCAL_QUORUM                     the writer's data centre
    QUORUM         QUORUM                           any
    EACH_QUORUM    LOCAL_QUORUM (or QUORUM)         any

One replica alone (ONE, LOCAL_ONE) may have missed any write, and its replies do not show that: it
would mix versions. It is refused.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from typing import Any
from urllib.parse import unquote

from tidegate.base.urls import Url, addresses, redact, servers_at, user_and_password
from tidegate.errors import ConfigError
from tidegate.options.client_options import (
    ANYTHING,
    FILE,
    PASSPHRASE,
    SECONDS,
    SECONDS_OR_0,
    SWITCH,
    TEXT,
    Form,
    check_tls,
    checked,
    is_text,
    one_of,
    whole,
)
from tidegate.options.logins import Provider, provider_of

PORT = 9042
TIMEOUT_S = 10.0
READ_AT = {
    "LOCAL_QUORUM": ("LOCAL_QUORUM",),
    "QUORUM": ("QUORUM",),
    "EACH_QUORUM": ("LOCAL_QUORUM", "QUORUM"),
}
"""Written at: read at, the default first."""
CONSISTENCY = "LOCAL_QUORUM"
TOO_FEW = ("ONE", "TWO", "THREE", "LOCAL_ONE", "ANY")

TLS = {
    "ssl_ca_certs": FILE,
    "ssl_certfile": FILE,
    "ssl_keyfile": FILE,
    "ssl_password": PASSPHRASE,
    "ssl_check_hostname": SWITCH,
}
PASSED = {
    "connect_timeout": SECONDS,
    "protocol_version": whole(3, 66),
    "idle_heartbeat_interval": SECONDS_OR_0,
}
FORMS: dict[str, Form] = {
    "create": SWITCH,
    "replication": ANYTHING,
    "consistency": one_of(*READ_AT),
    "read_consistency": TEXT,
    "local_dc": TEXT,
    "timeout_s": SECONDS,
    "tls": SWITCH,
    "leases": SWITCH,
    **TLS,
    "username": TEXT,
    "password": TEXT,
    "credential_provider": ANYTHING,
    **PASSED,
}
"""tidegate's own options, then those of the driver under its own names."""
COPIES = whole(1, 99)
KEYSPACE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")


@dataclasses.dataclass(frozen=True, slots=True)
class CassandraSettings:
    """The settings of one store.

    ``replication``: copies per data centre; ``""`` is the local one. ``leases`` False: a reader
    without the right to write, whose snapshots pin no version.
    """

    url: str = dataclasses.field(repr=False)
    hosts: tuple[str, ...]
    port: int
    keyspace: str
    username: str = dataclasses.field(default="", repr=False)
    password: str = dataclasses.field(default="", repr=False)
    credential_provider: str = ""
    tls: dict[str, Any] | None = dataclasses.field(default=None, repr=False)
    create: bool = False
    replication: dict[str, int] = dataclasses.field(default_factory=dict)
    consistency: str = ""
    read_consistency: str = ""
    local_dc: str = ""
    timeout_s: float = TIMEOUT_S
    leases: bool = True
    passed: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def shown(self) -> str:
        return redact(self.url)

    @property
    def provider(self) -> Provider | None:
        """The function that gives the login, if it was given by its name."""
        name = self.credential_provider
        return provider_of(name, f"store {self.shown}") if name else None


def settings_of(url: str, options: dict[str, Any]) -> CassandraSettings:
    """Return the settings. Raises: ConfigError that names what does not fit, and never shows a password."""
    shown, parts = f"store {redact(url)}", servers_at(url)
    if parts.rest:
        raise ConfigError(f"{shown}: give options as store_options (--store-config), not after '?' or '#'")
    hosts, port = _hosts(parts, shown)
    keyspace = unquote(parts.path.strip("/")).lower()  # the form in which CQL takes a name
    if not KEYSPACE.fullmatch(keyspace):
        raise ConfigError(
            f"{shown}: the text after its hosts is no keyspace: write cassandra://host1,host2/keyspace, a"
            " name of at most 48 letters, digits and _"
        )
    username, password = user_and_password(parts.login)
    if username and password is None and "password" not in options:
        raise ConfigError(
            f"{shown}: it has either a user or a password, which is ambiguous: write user:password@"
        )
    settings = CassandraSettings(url, hosts, port, keyspace, username, password or "")
    return _with_options(settings, options, shown)


def _hosts(parts: Url, shown: str) -> tuple[tuple[str, ...], int]:
    nodes = addresses(parts, 0, shown)
    ports = sorted({each.port for each in nodes if each.port})
    if len(ports) > 1:
        raise ConfigError(f"{shown}: the nodes of a cluster listen on one port, not on {ports}")
    return tuple(each.host for each in nodes), ports[0] if ports else PORT


def _with_options(settings: CassandraSettings, options: dict[str, Any], shown: str) -> CassandraSettings:
    if options.get("tls") is False and (names := [name for name in TLS if name in options]):
        raise ConfigError(
            f"{shown}: ssl_ options need TLS ({', '.join(names)}): leave tls out, or set it to True"
        )
    options = checked(options, FORMS, shown)
    tls = {name: options[name] for name in TLS if name in options}
    check_tls(tls, shown)
    return dataclasses.replace(
        settings,
        username=options.get("username", settings.username),
        password=options.get("password", settings.password),
        credential_provider=_provider_name(settings, options, shown),
        tls=tls if tls or options.get("tls") else None,
        create=options.get("create", False),
        replication=_replication(options.get("replication"), settings.hosts, shown),
        consistency=options.get("consistency", ""),
        read_consistency=_read_level(options, shown),
        local_dc=options.get("local_dc", ""),
        timeout_s=float(options.get("timeout_s", TIMEOUT_S)),
        leases=options.get("leases", True),
        passed={n: options[n] for n in PASSED if n in options},
    )


def _provider_name(settings: CassandraSettings, options: dict[str, Any], shown: str) -> str:
    name = options.get("credential_provider")
    if name is None:
        return ""
    if settings.username or options.keys() & {"username", "password"}:
        raise ConfigError(f"{shown}: it has a login and a credential_provider: leave one of them out")
    return provider_of(name, shown).name


def _read_level(options: dict[str, Any], shown: str) -> str:
    level = str(options.get("read_consistency", ""))
    if level in TOO_FEW:
        raise ConfigError(
            f"{shown}: read_consistency {level}: a replica that missed a write would answer with an older"
            " value among newer ones, unnoticed; leave it out, and reads overlap with writes"
        )
    if level and level not in ("LOCAL_QUORUM", "QUORUM"):
        raise ConfigError(f"{shown}: read_consistency must be one of LOCAL_QUORUM, QUORUM")
    return level


def _replication(option: Any, hosts: tuple[str, ...], shown: str) -> dict[str, int]:
    """Return the copies per data centre. Empty: not given, and not on one machine, where only one
    is possible.
    """
    if option is None:
        return {"": 1} if all(is_loopback(host) for host in hosts) else {}
    copies = (
        _copies(option) if isinstance(option, str) else {"": option} if isinstance(option, int) else option
    )
    fits = isinstance(copies, dict) and copies and not isinstance(option, bool)
    if not fits or not all(is_text(dc) and COPIES.fits(count) for dc, count in copies.items()):
        raise ConfigError(
            f"{shown}: replication must be the copies per data centre, as {{'dc1': 3}}, or a number for the"
            " local one"
        )
    return dict(copies)


def _copies(option: str) -> dict[str, int]:
    """Parse ``3``, or ``dc1:3,dc2:2``, as a file has it; empty if it is neither."""
    number = re.fullmatch(r"\d{1,9}", option.strip())
    if number:
        return {"": int(option)}
    pairs = [re.fullmatch(r"\s*([^:,]+?)\s*:\s*(\d{1,9})\s*", part) for part in option.split(",")]
    return {pair[1]: int(pair[2]) for pair in pairs if pair} if all(pairs) else {}


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_level(written_at: str, level: str, shown: str) -> str:
    """Return the read consistency. Raises: ConfigError: the requested one does not overlap with the
    writes.
    """
    allowed = READ_AT[written_at]
    if level and level not in allowed:
        raise ConfigError(
            f"{shown}: read_consistency {level} may miss what was written at {written_at}; read at"
            f" {' or '.join(allowed)}"
        )
    return level or allowed[0]
