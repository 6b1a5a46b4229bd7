"""The part of ``tidegate doctor`` that connects without a login: whether a server is open to anybody.

The rights of roles count for nothing where a default user may do the same. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.base.checks import Check, Outcome
from tidegate.base.urls import parts_of, place_of, redact, scheme_of, with_login_of
from tidegate.errors import TidegateError
from tidegate.sinks.open_store import open_store
from tidegate.wal.open_log import open_log

LOGINS = ("username", "password", "credential_provider", "ssl_certfile", "ssl_keyfile", "ssl_password")
OF_CASSANDRA = "cassandra"
"""User and password of the superuser that Cassandra makes with its first start."""
WITHIN_S = 3.0
PROMISE = "the rights of roles count"


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
    open_to = [who for who, at in tried.items() if _answers(namespace, *at)]
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


def _verdict(what: str, shown: str, who: list[str], *, has_login: bool) -> Check:
    if not who:
        return Check(f"{what}: login", "pass", f"{shown} refuses who has none", PROMISE)
    outcome: Outcome = "fail" if has_login else "warn"
    does = "reads this namespace, and may do all that the server's default rights allow"
    way = {"store": "switch the default user off", "log": "set an authorizer and close such listeners"}[what]
    return Check(
        f"{what}: login", outcome, f"{shown}: {' and '.join(who)} {does}: {way} (deploy/rights)", PROMISE
    )
