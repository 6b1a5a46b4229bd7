"""The part of ``tidegate doctor`` that connects without a login: whether a server is open to anybody.

The rights of roles count for nothing where a default user may do the same. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.base.checks import Check, Outcome
from tidegate.base.urls import HOST, parts_of, place_of, redact, scheme_of, with_login_of
from tidegate.errors import TidegateError
from tidegate.sinks.open_store import open_store
from tidegate.wal.open_log import open_log

LOGINS = ("username", "password", "credential_provider", "ssl_certfile", "ssl_keyfile", "ssl_password")
OF_CASSANDRA = "cassandra"
"""User and password of the superuser that Cassandra makes with its first start."""
WITHIN_S = 3.0
PROMISE, PRIVATE = "the rights of roles count", "password and rows go to this server alone"
UNVERIFIED = {
    "ssl_check_hostname": ("false",),
    "ssl.endpoint.identification.algorithm": ("none", ""),
    "enable.ssl.certificate.verification": ("false",),
}
"""Options that switch the check of a server's certificate or name off, with the values that do."""


def check_open_store(url: str, namespace: str, options: Mapping[str, Any]) -> list[Check]:
    """Check that a store on servers answers nobody without a login, nor Cassandra's first one."""
    scheme = scheme_of(url)
    if scheme.partition("+")[0] not in ("redis", "rediss", "cassandra"):
        return []
    place, parts = place_of(url), parts_of(url)
    has_login = bool(parts and parts.login)
    bare = {name: value for name, value in options.items() if name not in LOGINS} | {"timeout_s": WITHIN_S}
    has_login |= bool({*options} & {*LOGINS})
    tried = {"anybody without a login": (place, bare)}
    if scheme == "cassandra":
        login = with_login_of(f"cassandra://{OF_CASSANDRA}:{OF_CASSANDRA}@host/k", place)
        tried["the login cassandra with the password cassandra"] = (login, bare)
    open_to = [who for who, target in tried.items() if _answers(namespace, *target)]
    return [_verdict("store", redact(url), open_to, has_login=has_login)]


def _answers(namespace: str, url: str, options: dict[str, Any]) -> bool:
    """Return whether a store answers this login."""
    try:
        store = open_store(url, namespace, options)
        try:
            store.identity()
        finally:
            store.close()
    except (TidegateError, OSError):
        return False
    return True


def check_open_log(url: str, namespace: str, options: Mapping[str, Any]) -> list[Check]:
    """Check that the brokers do not let anybody without a login read the log."""
    if scheme_of(url) != "kafka":
        return []
    identified = ("sasl.", "ssl.certificate.", "ssl.key.", "ssl.keystore.")
    bare = {name: value for name, value in options.items() if not name.startswith(identified)}
    has_login = len(bare) < len(options)
    protocol = str(options.get("security.protocol", "plaintext")).lower().removeprefix("sasl_")
    bare |= {"security.protocol": protocol, "timeout_s": WITHIN_S}
    try:
        log = open_log(url, namespace, bare)
        try:
            next(iter(log.decisions()), None)
        finally:
            log.close()
    except (TidegateError, OSError):
        return [_verdict("log", url, [], has_login=has_login)]
    return [_verdict("log", url, ["anybody without a login"], has_login=has_login)]


def check_private(what: str, url: str, options: Mapping[str, Any]) -> list[Check]:
    """Check that a login goes to a verified server alone: TLS, with certificate and name, or this machine."""
    scheme, parts = scheme_of(url), parts_of(url)
    kind = scheme.partition("+")[0]
    if kind not in ("redis", "rediss", "cassandra", "kafka") or parts is None:
        return []
    protocol = str(options.get("security.protocol", "")).lower()
    has_password = bool(parts.login) or bool({*options} & {*LOGINS[:3], "sasl.username", "sasl.password"})
    off = [
        name
        for name, values in UNVERIFIED.items()
        if name in options and str(options[name]).lower() in values and kind != "rediss"  # it has a check
    ]
    is_tls = kind == "rediss" or protocol.endswith("ssl") or bool(options.get("tls"))
    is_tls |= kind == "cassandra" and any(name.startswith("ssl_") for name in options)
    hosts = [match[1] for match in map(HOST.fullmatch, parts.hosts) if match]
    is_here = all(host in ("", "localhost", "[::1]") or host.startswith("127.") for host in hosts)
    if off:
        why = f"{', '.join(off)}: another server may take the login and the rows: leave it out"
    elif has_password and not is_tls and not is_here:
        why = "the password is sent without TLS: use rediss://, tls=true (Cassandra) or SASL_SSL (Kafka)"
    else:
        return []
    return [Check(f"{what}: TLS", "warn", f"{redact(url)}: {why}", PRIVATE)]


def _verdict(what: str, shown: str, who: list[str], *, has_login: bool) -> Check:
    if not who:
        return Check(f"{what}: login", "pass", f"{shown} refuses who has none", PROMISE)
    outcome: Outcome = "fail" if has_login else "warn"
    does = "reads this namespace, and may do all that the server's default rights allow"
    way = {"store": "switch the default user off", "log": "set an authorizer and close such listeners"}[what]
    return Check(
        f"{what}: login", outcome, f"{shown}: {' and '.join(who)} {does}: {way} (deploy/rights)", PROMISE
    )
