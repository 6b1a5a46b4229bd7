"""The connection to a Cassandra cluster: one per process and settings, its statements, its errors.

Everything but a conditional write is repeatable, and is repeated for up to ``timeout_s``. A
conditional write is sent once, unless its caller may repeat it: whether it took effect is unknown
after a time-out, and its caller reads back (``committers/steps/publish.py``).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import cassandra
import tenacity
from cassandra import ConsistencyLevel, cluster, policies, query
from cassandra.auth import PlainTextAuthProvider
from cassandra.connection import ConnectionException

from tidegate.base import forks
from tidegate.base.deadline import end_of, left_of, one_call, over_at
from tidegate.errors import ConfigError, TidegateError
from tidegate.sinks.cassandra.client import schema
from tidegate.sinks.cassandra.client.batch import Protocol
from tidegate.sinks.cassandra.client.errors import NO_ANSWER, as_ours, may_pass, refused_login
from tidegate.sinks.cassandra.client.login import LoginByName
from tidegate.sinks.cassandra.client.settings import CassandraSettings
from tidegate.sinks.cassandra.client.statements import statements, within

logger = logging.getLogger("tidegate")

IN_FLIGHT = 64
"""Concurrent requests. The server has 128 threads for requests; more would only queue there."""
IN_FLIGHT_BYTES = 2 * 1024 * 1024
"""More bytes would queue at the server until their time-out, and be sent again."""
FETCH_ROWS = 1_000
TRIES = 3
"""The tries of an unanswered request within ``timeout_s``. When half the time of a try has passed
it is also sent to another node, since a hung node is considered alive for a minute.
"""
AT_ONCE_S = 0.001
"""The driver's time-out for a try when no time is left: it does not accept zero."""
BACK_FIRST_S, BACK_MOST_S = 0.5, 5.0
"""The pauses between reconnections to a node that is down. The driver's own policy goes up to ten
minutes, and stops permanently after 64 tries.
"""
RENEW_EVERY_S = 5.0
"""The pause between new connections while no node is up: the driver never repeats a refused login."""


SIZES = "SELECT partitions_count, mean_partition_size FROM system.size_estimates WHERE keyspace_name = %s"

Found = TypeVar("Found")
Row = tuple[Any, ...]
Page = tuple[list[Row], bytes | None]
"""Rows, and the start of the next page, or None at the end."""
Fields = dict[str, Any]


class Session:
    """A connected cluster and keyspace. May be used by several threads, not after a fork."""

    def __init__(self, settings: CassandraSettings, where: str) -> None:
        self.settings, self.where = settings, where
        self._prepared: dict[str, Any] = {}
        self._lock = threading.RLock()  # a scan collected while this thread prepares sends requests, too
        self._tables_seen = False
        self._renewing = threading.Lock()  # of what follows; the other is held while a statement is prepared
        self._renewal: threading.Thread | None = None
        self._renew_after_s = 0.0  # of time.monotonic
        self._refused: Exception | None = None  # why the last new connection was refused
        self._closed = False
        self.cluster, self.driver = self._connect()

    # -- discovery -----------------------------------------------------------------------------

    @property
    def local_dc(self) -> str:
        """The data centre to which requests are sent."""
        if self.settings.local_dc:
            return self.settings.local_dc
        policy = self.cluster.profile_manager.default.load_balancing_policy
        return str(policy._child_policy.local_dc)  # noqa: SLF001 - the driver has no public way

    def has_tables(self) -> bool:
        """Return whether the keyspace and its tables exist; checked until they do.

        Raises: ConfigError: a table of tidegate's has another shape.
        """
        if not self._tables_seen and schema.is_made(self):
            self._tables_seen = self._ask(self._is_told_of_keyspace)
        return self._tables_seen

    def _is_told_of_keyspace(self) -> bool:
        try:
            self.cluster.refresh_keyspace_metadata(self.settings.keyspace)
        except KeyError:
            return False
        except NO_ANSWER:
            raise
        except cassandra.DriverException as error:  # the driver's only error when its node does not answer
            raise ConnectionException(str(error)) from error
        return True

    def hosts(self) -> list[Any]:
        """Return the nodes to which requests are sent, without those known to be down."""
        nodes = [host for host in self.cluster.metadata.all_hosts() if host.datacenter == self.local_dc]
        return sorted((host for host in nodes if host.is_up is not False), key=lambda host: str(host.host_id))

    # -- requests ------------------------------------------------------------------------------

    def rows(self, name: str, *values: Any, level: int) -> list[Row]:
        """Return all rows of a statement; each page is requested until it is answered."""
        return list(self.stream(name, *values, level=level))

    def stream(self, name: str, *values: Any, level: int) -> Iterator[Row]:
        """Yield the rows of a statement, ``FETCH_ROWS`` in memory at a time."""
        statement = self.bind(name, values, level)
        rows, following = self._ask(functools.partial(self._page, statement, None))
        yield from rows
        while following is not None:
            rows, following = self._ask(functools.partial(self._page, statement, following))
            yield from rows

    def _page(self, statement: Any, at: bytes | None) -> Page:
        """Return one page, as a request of its own.

        The driver's paging counts the time of all pages as one. It also takes a page that arrives
        twice, once from a second node because the first was slow, for the next page.
        """
        result = self.driver.execute(statement, timeout=self._try_s(), paging_state=at)
        return result.current_rows, result.paging_state

    def write(self, name: str, *values: Any, level: int) -> None:
        """Send a plain write until it is acknowledged."""
        statement = self.bind(name, values, level)
        self._ask(lambda: self._execute(statement))

    def decide(self, *steps: tuple[Any, ...], level: int, again: bool = False) -> Row:
        """Send conditional writes of one partition, each (name, values...), all or none; return the
        server's row.

        ``row[0]`` is whether they were applied. Sent once, or with ``again`` until there is a
        reply, where it does not matter which copy took effect. Raises: StoreUnavailableError: the
        outcome is unknown.
        """
        if len(steps) == 1:
            statement: Any = self.bind(steps[0][0], steps[0][1:], level)
        else:
            statement = query.BatchStatement(query.BatchType.UNLOGGED, consistency_level=level)
            for name, *values in steps:
                statement.add(self.prepared(name), values)
        statement.serial_consistency_level = ConsistencyLevel.SERIAL
        statement.is_idempotent = again  # else it might be sent to two nodes
        return tuple(self._ask(lambda: self._execute(statement).one(), once=not again))

    def each(self, requests: Iterable[tuple[Any, int]]) -> Iterator[list[Row]]:
        """Yield the rows of many requests (statement, bytes), in order, a bounded number of them at once.

        They must be repeatable, and are repeated. Raises: StoreUnavailableError: one had no reply
        within ``timeout_s``.
        """
        waiting: collections.deque[tuple[Any, Any, int]] = collections.deque()
        in_flight = 0
        for statement, weight in requests:
            while waiting and (len(waiting) >= IN_FLIGHT or in_flight + weight > IN_FLIGHT_BYTES):
                rows, landed = self._land(*waiting.popleft())
                in_flight -= landed
                yield rows
            waiting.append((self._send(statement), statement, weight))
            in_flight += weight
        while waiting:
            yield self._land(*waiting.popleft())[0]

    def _send(self, statement: Any) -> Any:
        try:
            return self.driver.execute_async(statement, timeout=self._try_s())
        except NO_ANSWER:
            return None

    def _land(self, future: Any, statement: Any, weight: int) -> tuple[list[Row], int]:
        try:
            if future is not None:
                return list(future.result()), weight
        except NO_ANSWER:
            pass
        except Exception as error:
            raise self._as_ours(error) from error
        return self._ask(lambda: list(self._execute(statement))), weight

    def plain(self, cql: str, *values: Any, host: Any = None, timeout_s: float | None = None) -> list[Fields]:
        """Return the rows of a statement, by column name; from ``host`` alone if given.

        For rare requests, and for changes of the schema. Repeated until there is a reply.
        """

        def ask() -> list[Fields]:
            rows: list[Fields] = []
            following, timeout = None, timeout_s or self.settings.timeout_s
            while True:  # one request per page: see ``_page``
                options = {"timeout": timeout, "host": host, "paging_state": following}
                result = self.driver.execute(cql, values or None, **options)
                rows += [dict(zip(result.column_names, row, strict=True)) for row in result.current_rows]
                if (following := result.paging_state) is None:
                    return rows

        return self._ask(ask)

    def agree(self) -> bool:
        """Wait until all nodes have the same schema; return whether they do within the driver's ten
        seconds.
        """
        return bool(self._ask(self.cluster.control_connection.wait_for_schema_agreement))

    def bind(self, name: str, values: Sequence[Any], level: int) -> Any:
        statement = self.prepared(name).bind(values)
        statement.consistency_level = level
        return statement

    def replicas(self, routing_key: bytes) -> frozenset[Any]:
        """Return the nodes that have a partition of this key, as the driver knows the ring; empty:
        not known.
        """
        return frozenset(self.cluster.metadata.get_replicas(self.settings.keyspace, routing_key))

    def prepared(self, name: str) -> Any:
        """Return a statement, prepared once per session; the driver prepares it on nodes that lack it."""
        statement = self._prepared.get(name)
        if statement is None:
            with self._lock:
                statement = self._prepared.get(name)
                if statement is None:
                    statement = self._ask(lambda: self.driver.prepare(self.cql(name)))
                    statement.is_idempotent = True
                    self._prepared[name] = statement
        return statement

    def cql(self, name: str) -> str:
        """Return a statement with its keyspace, so that it does not depend on a connection's keyspace."""
        return within(statements()[name], self.settings.keyspace)

    def _execute(self, statement: Any) -> Any:
        return self.driver.execute(statement, timeout=self._try_s())

    def _try_s(self) -> float:
        """Return the time-out of one try: its part of ``timeout_s``, or the rest of the call's time."""
        timeout_s = self.settings.timeout_s
        return max(AT_ONCE_S, min(timeout_s / TRIES, left_of(timeout_s)))

    def _ask(self, ask: Callable[[], Found], *, once: bool = False) -> Found:
        """Return the reply. Raises: tidegate's error if there is none within ``timeout_s``.

        The time counts from the start of the call (``deadline.py``).
        """
        with one_call():
            return self._answer(ask, once=once)

    def _answer(self, ask: Callable[[], Found], *, once: bool) -> Found:
        end = end_of(self.settings.timeout_s)
        if not once:
            try:
                return ask()  # the fast path
            except NO_ANSWER:
                pass  # sent again below
            except Exception as error:
                raise self._as_ours(error) from error
        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception(may_pass),
            before_sleep=self._renew_if_down,
            wait=tenacity.wait_random_exponential(multiplier=0.02, max=1.0),
            stop=tenacity.stop_after_attempt(1) if once else over_at(end),
            reraise=True,
        )
        try:
            return tries(ask)
        except TidegateError:
            raise
        except Exception as error:
            raise self._as_ours(error) from error

    def _as_ours(self, error: Exception) -> Exception:
        return as_ours(error, self.where, self.settings.tls)

    def size(self) -> int:
        """Estimate the bytes of all tables on the nodes of this data centre: all copies, all namespaces.

        The nodes estimate it every few minutes, from their flushed data.
        """
        return sum(
            of["partitions_count"] * of["mean_partition_size"]
            for host in self.hosts()
            for of in self.plain(SIZES, self.settings.keyspace, host=host)
        )

    # -- connection ----------------------------------------------------------------------------

    def _connect(self) -> tuple[Any, Any]:
        """Connect. A driver's cluster that failed to connect cannot be used again: each try creates
        its own.
        """
        return self._ask(self._connect_once)

    def _connect_once(self) -> tuple[Any, Any]:
        try:
            return self._connect_with_login()
        except cluster.NoHostAvailable as error:
            provider = self.settings.provider
            if provider is None or refused_login(error) is None or not provider.forget():
                raise
        return self._connect_with_login()

    def _connect_with_login(self) -> tuple[Any, Any]:
        connected = self._cluster()
        try:
            driver = connected.connect()
        except BaseException:
            connected.shutdown()
            raise
        driver.client_protocol_handler = Protocol
        driver.default_fetch_size = FETCH_ROWS
        return connected, driver

    def _renew_if_down(self, _: Any) -> None:
        """Connect again, in a thread, while every node is down for the driver. Raises: the login was refused.

        The driver marks a node as down that refuses the login, and never tries it again by itself. Nodes of
        other data centres do not count: it has no connections there, and considers them up. A refusal
        counts for all requests until the next new connection.
        """
        if getattr(self, "cluster", None) is None or self.hosts():
            return
        with self._renewing:
            if self._closed or self._renewal is not None:
                return
            if time.monotonic() >= self._renew_after_s:
                self._refused = None
                self._renewal = threading.Thread(target=self._renew, name="tidegate-cassandra", daemon=True)
                self._renewal.start()
            elif self._refused is not None:
                raise self._as_ours(self._refused)

    def _renew(self) -> None:
        try:
            renewed = self._connect_once()
        except (*NO_ANSWER, cassandra.DriverException, TidegateError) as error:
            logger.debug("connecting again to %s failed: %s", self.where, error)
            self._refused = error if isinstance(error, TidegateError) or refused_login(error) else None
        else:
            # Else a batch of them fails on a node that lacks one.
            for statement in list(self._prepared.values()):
                renewed[0].add_prepared(statement.query_id, statement)
            with self._renewing:
                unused = renewed[0] if self._closed else self.cluster
                if not self._closed:
                    self.cluster, self.driver = renewed
            unused.shutdown()
        finally:
            self._renew_after_s, self._renewal = time.monotonic() + RENEW_EVERY_S, None

    def _cluster(self) -> Any:
        settings = self.settings
        profile = cluster.ExecutionProfile(
            load_balancing_policy=policies.TokenAwarePolicy(
                policies.DCAwareRoundRobinPolicy(settings.local_dc or None), shuffle_replicas=True
            ),
            retry_policy=policies.FallthroughRetryPolicy(),
            request_timeout=settings.timeout_s / TRIES,
            speculative_execution_policy=policies.ConstantSpeculativeExecutionPolicy(
                settings.timeout_s / TRIES / 2, max_attempts=1
            ),
            row_factory=query.tuple_factory,
        )
        login: Any = None
        if settings.provider is not None:
            login = LoginByName(settings.provider, settings.timeout_s / TRIES)
        elif settings.username:
            login = PlainTextAuthProvider(settings.username, settings.password)
        options = {"protocol_version": 4, "connect_timeout": min(5.0, settings.timeout_s), **settings.passed}
        return cluster.Cluster(
            list(settings.hosts),
            port=settings.port,
            execution_profiles={cluster.EXEC_PROFILE_DEFAULT: profile},
            auth_provider=login,
            ssl_context=_tls(settings),
            compression=False,
            prepare_on_all_hosts=False,  # a hung node would delay every statement's first use
            reconnection_policy=policies.ExponentialReconnectionPolicy(
                BACK_FIRST_S, BACK_MOST_S, max_attempts=None
            ),
            **options,
        )

    def close(self) -> None:
        with self._renewing:
            self._closed = True  # no new connection takes the place of this one from now on
        self.cluster.shutdown()


def _tls(settings: CassandraSettings) -> ssl.SSLContext | None:
    if settings.tls is None:
        return None
    options = settings.tls
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
        context.check_hostname = bool(options.get("ssl_check_hostname", True))
        if "ssl_certfile" in options:
            context.load_cert_chain(
                options["ssl_certfile"], options.get("ssl_keyfile"), options.get("ssl_password")
            )
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"store {settings.shown}: TLS cannot be set up: {error}") from error
    return context


# -- one session per process and settings ----------------------------------------------------------


class _Shared:
    def __init__(self) -> None:
        self.lock = threading.RLock()  # a store garbage-collected while this thread connects is closed
        self.sessions: dict[str, tuple[Session, int]] = {}


_shared = _Shared()
_left_to_parent: list[Any] = []


def take(settings: CassandraSettings, where: str) -> Session:
    """Return this process's session for these settings; every ``take`` needs one ``give_back``."""
    forks.notice()
    with _shared.lock:
        name = repr(dataclasses.astuple(settings))  # of all fields; its own repr leaves the login out
        session, users = _shared.sessions.get(name, (None, 0))
        if session is None:
            session = Session(settings, where)
        _shared.sessions[name] = session, users + 1
        return session


def give_back(session: Session) -> None:
    """Release a session; the last user's release closes it."""
    with _shared.lock:
        for name, (each, users) in list(_shared.sessions.items()):
            if each is session:
                if users > 1:
                    _shared.sessions[name] = session, users - 1
                else:
                    del _shared.sessions[name]
                    session.close()


@forks.in_child
def _after_fork() -> None:
    """Abandon the parent's sessions in a child (T13): they are neither used nor closed there.

    The driver itself would close them: its next cluster starts with the connections of its event
    loop, and the end of the process with all clusters it knows. Either waits for locks that a
    thread of the parent may have held, permanently.
    """
    global _shared  # noqa: PLW0603
    reactor: Any = sys.modules[cluster.Cluster.connection_class.__module__]
    _left_to_parent.append((_shared, getattr(reactor, "_global_loop", None)))
    for session, _ in _shared.sessions.values():
        cluster._discard_cluster_shutdown(session.cluster)  # noqa: SLF001 - the driver has no public way
    if _shared.sessions and hasattr(reactor, "_global_loop"):
        reactor._global_loop = None  # noqa: SLF001 - likewise
    _shared = _Shared()
