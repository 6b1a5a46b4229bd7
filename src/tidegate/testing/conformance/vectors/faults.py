"""The checks of a server's bad days: what passes is waited for, and a server that was left is left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.errors import StoreUnavailableError
from tidegate.testing.conformance.session import (
    FailedError,
    Session,
    SkippedError,
    check_equal,
    live_of,
    until,
    write_live,
)
from tidegate.testing.conformance.vectors.redis_faults import FaultyServer, server_of
from tidegate.testing.conformance.writer import Writer

LEFT = (
    "READONLY You can't write against a read only replica.",
    "TGSERVER replica",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
)
"""The replies of a server that another one has replaced."""
LOGINS = ("NOAUTH Authentication required.", "WRONGPASS invalid username-password pair or user is disabled.")
BUSY = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
SHORT_S = 1.0
"""The time-out of a reader that is to give up."""
AGE_S = 20.0
"""The time within which a reader uses another connection, which its URL's name may lead elsewhere."""
LOOK_S = 0.5
ROW = {"table": "marker", "key": ["id1"]}


def passing() -> list[str]:
    """List the error replies after which the same call may succeed, from ``refusals.json``."""
    from tidegate.testing.conformance.vectors.redis_refusals import SEND_AGAIN, refusal_vectors

    wanted = {"call": "read", "does": SEND_AGAIN, "error": StoreUnavailableError.__name__}
    return [vector["reply"] for vector in refusal_vectors() if wanted.items() <= vector.items()]


@contextlib.contextmanager
def faulty(session: Session, **options: Any) -> Iterator[tuple[FaultyServer, Writer]]:
    """Connect the reader through a proxy, which is closed after the block; it has read a row."""
    if session.kind != "redis" or server_of(session.place.store) is None:
        raise SkippedError("its proxy needs one Redis server, without TLS, password and number of a database")
    writer = session.writer("live", live_of)
    with FaultyServer(session.place.store) as server:
        session.reader.ask("connect", url=server.url, namespace=writer.namespace, options=options)
        check_row(session, writer)
        yield server, writer


def check_row(session: Session, writer: Writer) -> None:
    """Check one row at the newest version."""
    got = session.reader.ask("get", **ROW)
    check_equal("get", [writer.visible, {"n": str(writer.visible)}], [got.get("version"), got.get("value")])


def passes(session: Session) -> None:
    """Check that each reply that passes by itself is waited for, within the call."""
    with faulty(session) as (server, writer):
        for reply in passing():
            server.refuse(reply, times=3)
            check_row(session, writer)
            check_equal(f"the calls that got {reply!r}", 3, server.answered)


def lasts(session: Session) -> None:
    """Check that each of them ends a call at its deadline, if it lasts, and that the next call succeeds."""
    with faulty(session, timeout_s=SHORT_S) as (server, writer):
        for reply in (BUSY, *LEFT, "ERR an error of a later release"):
            server.refuse(reply)
            session.refused("StoreUnavailableError", "get", **ROW)
            server.clear()
            check_row(session, writer)


def full(session: Session) -> None:
    """Check a server that takes no further connection."""
    with faulty(session, timeout_s=SHORT_S) as (server, writer):
        server.is_full = True
        server.cut()
        session.refused("StoreUnavailableError", "get", **ROW)
        server.clear()
        check_row(session, writer)


def leaves(session: Session) -> None:
    """Check that a server that says it is not the primary costs its connections: its name leads elsewhere."""
    with faulty(session) as (server, writer):
        for reply in LEFT:
            before = server.opened
            server.refuse(reply, only_open=True)
            check_row(session, writer)
            if server.opened == before:
                raise FailedError(f"after {reply!r} the reader opened no connection")
        server.clear()


def ages(session: Session) -> None:
    """Check that a reader opens another connection in time, though the one it has answers."""
    with faulty(session) as (server, writer):
        before, is_over = server.opened, until(AGE_S)
        while server.opened == before:
            if is_over():
                raise FailedError(f"the reader used the same connection for {AGE_S:g} s")
            check_row(session, writer)
            time.sleep(LOOK_S)


def login_late(session: Session) -> None:
    """Check a login that is refused for a while: a call fails at once, a wait continues."""
    with faulty(session) as (server, writer):
        for reply in LOGINS:
            server.refuse(reply)
            session.refused(("ConfigError", "StoreUnavailableError"), "get", **ROW)
            before = server.answered
            session.reader.send("wait_for", version=writer.visible + 1, timeout_s=AGE_S)
            wait_for(lambda: server.answered > before + 2, "the wait does not ask again")  # noqa: B023 - in turn
            server.clear()
            version = write_live(writer)
            check_equal("wait_for", version, session.reader.receive(AGE_S))
            check_row(session, writer)


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    """Wait for a state of the proxy."""
    is_over = until(AGE_S)
    while not is_so():
        if is_over():
            raise FailedError(what)
        time.sleep(LOOK_S / 10)


FAULTS: dict[str, Callable[[Session], None]] = {
    "faults-pass": passes,
    "faults-last": lasts,
    "faults-full": full,
    "faults-other-primary": leaves,
    "faults-login": login_late,
    "faults-age": ages,
}
