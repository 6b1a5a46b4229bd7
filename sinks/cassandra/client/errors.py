"""The errors of the Cassandra driver: which may pass, and tidegate's error for each."""

from __future__ import annotations

from typing import Any

import cassandra
from cassandra import cluster
from cassandra.connection import ConnectionException
from cassandra.protocol import (
    ErrorMessage,
    ErrorMessageSub,
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    ServerError,
)

from tidegate.base.urls import over_its_time
from tidegate.errors import ConfigError, StoreUnavailableError, refused_to_write


class CasWriteUnknown(ErrorMessageSub):  # type: ignore[misc]
    """The outcome of a conditional write is unknown, in protocol 5; protocol 4 reports a time-out.

    The driver has no class for it.
    """

    summary = "Unknown outcome of a conditional write"
    error_code = 0x1700


NO_ANSWER = (
    cluster.NoHostAvailable,
    cassandra.Unavailable,
    cassandra.Timeout,
    cassandra.CoordinationFailure,
    cassandra.OperationTimedOut,
    ConnectionException,
    cassandra.UnresolvableContactPoints,
    OverloadedErrorMessage,
    IsBootstrappingErrorMessage,
    ServerError,
    CasWriteUnknown,
)
"""Errors that prove nothing. ``CoordinationFailure``: a replica failed, e.g. by a full disk.
``ServerError``: a node failed at an unknown point.
"""
GRANT = "grant it (docs/cassandra.md lists the rights of each role)"
NO_LEASES = ", or, for a reader that may not write, set store_options={'leases': False}"
OF_READERS = ("tidegate_leases", "tidegate_pointers")
"""The tables that a reader writes, too."""
LOGIN = "check username and password of the store's URL or options"
UNCHECKED = "Unable to perform authentication"
"""A node could not read its users, as while others start: it proves nothing about the login."""
DISK_GUARDRAIL = "disk usage exceeds failure threshold"
"""The guardrail data_disk_usage_percentage_fail_threshold: nodes take no writes, and can be read."""
NOT_LEFT_THERE = ("unconfigured table", "does not exist", "Keyspace")


def refused_login(error: BaseException) -> Exception | None:
    """Return the refusal of a login in the driver's error; None: there is none, or it may pass."""
    return next(
        (
            each
            for each in _each(error)
            if isinstance(each, cassandra.AuthenticationFailed) and UNCHECKED not in str(each)
        ),
        None,
    )


def no_login(error: BaseException) -> ConfigError | None:
    """Return the error of the function that gives the login, if it can give none; None: another error."""
    return next((each for each in _each(error) if isinstance(each, ConfigError)), None)


def _each(error: BaseException) -> tuple[BaseException, ...]:
    errors = getattr(error, "errors", None) or {}
    return (error, *errors.values()) if isinstance(error, cluster.NoHostAvailable) else (error,)


def may_pass(error: BaseException) -> bool:
    """Return whether the request may be sent again."""
    if no_login(error) is not None:
        return False
    return isinstance(error, NO_ANSWER) and refused_login(error) is None


def as_ours(error: Exception, where: str, tls: dict[str, Any] | None = None) -> Exception:
    """Translate the driver's error; other errors are bugs and are returned unchanged.

    ``tls``: the TLS options, where it is used.
    """
    if refused := refused_login(error):
        return ConfigError(f"{where}: {refused}; {LOGIN}")
    if not_given := no_login(error):
        return ConfigError(f"{where}: {not_given}")
    if isinstance(error, NO_ANSWER):
        renew = "" if tls is None else over_its_time(_in_short(error), tls.get("ssl_certfile"))
        if renew:
            return ConfigError(f"{where}: {_in_short(error)}; {renew}")
        return StoreUnavailableError(f"{where}: {_in_short(error)}")
    if isinstance(error, cassandra.AuthenticationFailed):
        return StoreUnavailableError(f"{where}: {error}")
    if isinstance(error, cassandra.Unauthorized):
        reads = NO_LEASES if any(table in str(error) for table in OF_READERS) else ""
        return refused_to_write(ConfigError(f"{where}: {error}; {GRANT}{reads}"))
    if isinstance(error, cassandra.InvalidRequest) and any(words in str(error) for words in NOT_LEFT_THERE):
        return ConfigError(f"{where}: {error}; create the tables with `tidegate init`")
    if DISK_GUARDRAIL in str(error):
        full = f"{where}: {error}; give the nodes larger disks, or more nodes"
        return refused_to_write(StoreUnavailableError(full))
    if isinstance(error, cassandra.InvalidRequest | ErrorMessage):
        return ConfigError(f"{where}: the cluster refuses: {error}")
    return error


def _in_short(error: Exception) -> str:
    if isinstance(error, cassandra.UnresolvableContactPoints):
        return "none of the hosts' names can be resolved here"
    if isinstance(error, cluster.NoHostAvailable):
        errors = getattr(error, "errors", None) or {"every node": "it is down for the driver"}
        return f"{error.args[0]}: " + "; ".join(f"{host}: {each}" for host, each in errors.items())
    return str(error)
