"""The checks of a server's bad days: what passes is waited for, and a server that was left is left."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tidegate.errors import StoreUnavailableError
from tidegate.testing.conformance.program import ReaderFailedError, ReaderRaisedError
from tidegate.testing.conformance.refusals import changes_in
from tidegate.testing.conformance.session import (
    FailedError,
    Session,
    SkippedError,
    check_equal,
    check_rows,
    check_version,
    history_of,
    live_of,
    until,
    write_live,
)
from tidegate.testing.conformance.vectors import NO_LEASE, OTHER_SERVER, READ_POINTER, SEND_AGAIN
from tidegate.testing.conformance.vectors.redis_faults import FaultyServer, server_of
from tidegate.testing.conformance.writer import Writer

UNAVAILABLE = StoreUnavailableError.__name__
CALL_S = 10.0
PASSING_CALLS = 6
"""The calls with a reply that passes: more than a reader makes that does not wait for it."""
CALLS_MAX = 10
"""The most calls after which a reader refuses "at once": it may look at the pointer between them."""
LEFT = (
    "READONLY You can't write against a read only replica.",
    "TGSERVER replica",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
)
"""The replies of a server that another one has replaced."""
LOGINS = ("NOAUTH Authentication required.", "WRONGPASS invalid username-password pair or user is disabled.")
BUSY = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
OTHER_FORMS = (
    *(b":5\r\n", b"+OK\r\n", b"$-1\r\n", b"$0\r\n\r\n", b"*-1\r\n", b"*1\r\n*0\r\n", b"*1\r\n-ERR x\r\n"),
    b"*11\r\n" + 11 * b"+x\r\n",
    *(b"-TGSERVER \r\n", b"-MOVED \r\n", b"?\r\n", b":x\r\n", b"$x\r\n", b"$-7\r\n", b"*-7\r\n"),
    *(b"$99999999999\r\n", b"$2000000000\r\n", b"*9999999\r\n", b"*99999999999\r\n"),
    20_000 * b"*1\r\n" + b"+x\r\n",
)
"""Bytes that are no reply to any function of a reader."""
OWN_FORMS = {
    "pointer": (b"*0\r\n", b"-TGSERVER 8e5b4a1d0c9f3e7a6b2d5c8f1e4a7b0d3c6f9e2a\r\n"),
    "read": (b"*0\r\n", b"*2\r\n$-1\r\n$-1\r\n"),
    "scan": (b"*0\r\n", b"*4\r\n$1\r\nx\r\n$1\r\n0\r\n:1\r\n*1\r\n$1\r\nk\r\n"),
    "lease": (b"*0\r\n",),
}
"""Likewise, by function."""
SHORT_S = 2.0
"""The time-out of a reader that is to give up."""
AGE_S = 20.0
"""The time within which a reader uses another connection, which its URL's name may lead elsewhere."""
LOOK_S = 0.5
ROW = {"table": "marker", "key": ["id1"]}
EXPIRED = "SnapshotExpiredError"
LAPSE_S = 1.0
"""The lease of a snapshot that cannot be renewed."""


def refusals(call: str) -> list[dict[str, Any]]:
    """List the vectors of ``refusals.json`` for this function."""
    from tidegate.testing.conformance.vectors.redis_refusals import refusal_vectors

    return [vector for vector in refusal_vectors() if vector["call"] == call]


def passing() -> list[str]:
    """List the error replies after which the same call may succeed."""
    fields = {"does": SEND_AGAIN, "error": StoreUnavailableError.__name__}
    return [vector["reply"] for vector in refusals("read") if fields.items() <= vector.items()]


@dataclasses.dataclass
class Injected:
    """A function whose calls get error replies, and the requests of the reader that make such calls."""

    session: Session
    server: FaultyServer
    writer: Writer
    call: str
    lasted: set[str] = dataclasses.field(default_factory=set)
    """The errors that a reply has led to at a deadline."""

    def connect(self, timeout_s: float = CALL_S) -> None:
        """Connect the reader again: it has no snapshots and remembers nothing."""
        self.server.clear()
        options = {"timeout_s": timeout_s}
        self.session.reader.ask(
            "connect", url=self.server.url, namespace=self.writer.namespace, options=options
        )
        self.ask()

    def refuse(self, reply: str, times: int = 1 << 30, after: int = 0) -> None:
        """Answer the next calls with this error."""
        self.server.refuse(reply, times, function=self.call, after=after)

    def ask(self, **of: Any) -> None:
        """Make the request, and check its answer; ``of``: in a snapshot, or of a version."""
        session, writer = self.session, self.writer
        if self.call == "lease":
            with session.snapshot(**of) as (snapshot, version):
                check_equal("the version of the snapshot", writer.visible, version)
                session.check_table(writer, version, "marker", snapshot)
        elif self.call == "scan":
            scanned = session.reader.ask("scan", table="marker", **of)
            check_version("scan", scanned, writer.visible)
            rows = writer.expected.rows(writer.visible, "marker")
            check_rows("scan", writer.schemas["marker"], rows, scanned.get("rows"))
        else:
            check_row(session, writer, **of)

    def refused(self, errors: str | set[str], **of: Any) -> None:
        """Check that the request is refused with this error, or one of them."""
        do = {"lease": "snapshot", "scan": "scan"}.get(self.call, "get")
        row = {"snapshot": {}, "scan": {"table": "marker"}}.get(do, ROW)
        self.session.refused(errors if isinstance(errors, str) else sorted(errors), do, **row, **of)

    # -- by what the reader has to do -----------------------------------------------------------------

    def check(self, vector: dict[str, Any]) -> None:
        """Check what the reader does after this reply."""
        reply, does, error = vector["reply"], vector["does"], vector.get("error", "")
        self.connect()
        if does == NO_LEASE:
            self.refuse(reply)
            self.ask()
        elif does == SEND_AGAIN:
            self.refuse(reply, times=PASSING_CALLS)
            self.ask()
            if error not in self.lasted:  # one reply of each error: it takes the whole time-out
                self.lasted.add(error)
                self._lasts(reply, error)
        elif does == READ_POINTER:
            self.refuse(reply, times=2)
            self.ask()
            self._expired(reply)
        elif does == OTHER_SERVER:
            self.refuse(f"TGSERVER {listed_server(self.writer)}", times=1)
            self.ask()
            self.refuse(reply)
            self.refused(error)
        else:
            self.refuse(reply)
            self.refused(error)
            if self.server.answered > CALLS_MAX:
                raise FailedError(f"the reader has sent the call {self.server.answered} times")
        if not self.server.answered:
            raise SkippedError(f"the reader does not call the function {self.call}")

    def _lasts(self, reply: str, error: str) -> None:
        """Check the error at the deadline; a reader may load missing functions in vain."""
        self.connect(SHORT_S)
        self.refuse(reply)
        self.refused({error, UNAVAILABLE})

    def _expired(self, reply: str) -> None:
        self.refuse(reply)
        self.refused(EXPIRED)
        if self.call == "lease":
            self.refused(EXPIRED, version=self.writer.visible)
            return
        self.connect()
        with self.session.snapshot() as (snapshot, _):
            self.ask(snapshot=snapshot)
            self.refuse(reply)
            self.refused(EXPIRED, snapshot=snapshot)
            self.server.clear()
            self.refused(EXPIRED, snapshot=snapshot)  # also though the server would answer


def listed_server(writer: Writer) -> str:
    """Return the id of the server that the pointer lists, and that answers."""
    changes: Any = changes_in(writer)
    return str(changes.listed_servers()[0])


def injected(session: Session, call: str) -> None:
    """Check what the reader does after each error reply of ``refusals.json`` to this function."""
    with faulty(session) as (server, writer):
        of = Injected(session, server, writer, call)
        for vector in refusals(call):
            try:
                of.check(vector)
            except FailedError as error:
                raise FailedError(f"{call} answered {vector['reply']!r}: {error}") from None
            except ReaderRaisedError as error:
                raise FailedError(f"{call} answered {vector['reply']!r}, and it is {error}") from None
            finally:
                server.clear()


def pages(session: Session) -> None:
    """Check a scan whose second page is refused: it begins the key group again, or sends the call again."""
    with faulty(session) as (server, _):
        writer = session.writer("history", history_of)
        session.reader.ask("connect", url=server.url, namespace=writer.namespace, options={})
        rows = writer.expected.rows(writer.visible, "large")
        for reply in (f"TGSERVER {listed_server(writer)}", BUSY):
            server.refuse(reply, times=1, function="scan", after=1)
            scanned = session.reader.ask("scan", table="large")
            check_rows(f"scan after {reply!r}", writer.schemas["large"], rows, scanned.get("rows"))
        server.clear()


def lapses(session: Session) -> None:
    """Check that a snapshot whose lease could not be renewed in time refuses its reads."""
    with faulty(session, timeout_s=SHORT_S) as (server, writer):
        taken = session.reader.ask("snapshot", lease_s=LAPSE_S)
        server.refuse(BUSY, function="lease")
        is_over = until(AGE_S)
        while not is_over():
            try:
                check_row(session, writer, snapshot=taken["snapshot"])
            except ReaderRaisedError as error:
                check_equal("the error of a read after the lease", EXPIRED, error.name)
                return
            time.sleep(LOOK_S / 10)
        raise FailedError(
            f"a snapshot whose lease of {LAPSE_S:g} s was not renewed is read after {AGE_S:g} s"
        )


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


def check_row(session: Session, writer: Writer, **of: Any) -> None:
    """Check one row at the newest version."""
    got = session.reader.ask("get", **ROW, **of)
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


def forms(session: Session) -> None:
    """Check that bytes of another form than replies to the call are no answer: the call is sent again."""
    with faulty(session) as (server, writer):
        for call, own in OWN_FORMS.items():
            of = Injected(session, server, writer, call)
            for reply in (*OTHER_FORMS, *own):
                server.replace(reply, call)
                shown = reply[:40]
                try:
                    of.ask()
                except (FailedError, ReaderRaisedError, ReaderFailedError) as error:
                    raise FailedError(f"{call} answered {shown!r}: {error}") from None
                check_equal(f"the calls of {call} that got {shown!r}", 1, server.answered)


def surplus(session: Session) -> None:
    """Check that a reply which no call waits for does not become the answer to the next call."""
    with faulty(session) as (server, writer):
        for call in OWN_FORMS:
            of = Injected(session, server, writer, call)
            for _ in range(2):
                server.double()
                of.ask()
                write_live(writer)
                of.ask()


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
    **{f"refusals-of-{call}": partial(injected, call=call) for call in ("pointer", "read", "scan", "lease")},
    "faults-scan": pages,
    "lease-lapses": lapses,
    "faults-pass": passes,
    "faults-last": lasts,
    "faults-forms": forms,
    "faults-surplus": surplus,
    "faults-full": full,
    "faults-other-primary": leaves,
    "faults-login": login_late,
    "faults-age": ages,
}
