"""A run of the conformance program: the reader under test, the namespaces, the comparison of rows."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tidegate.committers.operations.alias import set_alias
from tidegate.errors import TidegateError
from tidegate.options.endpoints import StoreRef, parse_store
from tidegate.sinks.aliases import Target
from tidegate.testing.conformance import rows
from tidegate.testing.conformance.canonical import comparable_key, comparable_value
from tidegate.testing.conformance.program import ReaderFailedError, ReaderRaisedError
from tidegate.testing.conformance.writer import Place, SteppedClock, Writer
from tidegate.wal.record import TableSchema

logger = logging.getLogger("tidegate")

WRITERS_ONLY = ("create", "replication")
"""Options of a store that only writers need."""
STARTS_MAX = 4
"""The number of times that a reader is started, again after it broke the protocol."""
KEYS_MAX = 250
"""The most keys of one table in one request."""


class FailedError(Exception):
    """A check has failed: what was expected, and what the reader answered."""


class SkippedError(Exception):
    """A check is not possible here; the message has the reason."""


class AskedReader(Protocol):
    """A reader under test, in a process or in this one."""

    def ask(self, do: str, **arguments: Any) -> Any:
        """Return the ``ok`` of the reply. Raises: as ``program.Reader.ask``."""
        ...

    def send(self, do: str, **arguments: Any) -> None:
        """Send a request, whose reply ``receive`` returns."""
        ...

    def receive(self, extra_s: float = 0.0) -> Any:
        """Return the ``ok`` of the reply to the last request."""
        ...

    def close(self) -> int:
        """Ask it to end; return its exit code."""
        ...

    def end(self) -> None:
        """End it in any case. Repeatable."""
        ...


@dataclasses.dataclass
class Session:
    """The reader and the namespaces of a run. ``prefix`` begins the names of all namespaces and aliases."""

    place: Place
    prefix: str
    start: Callable[[], AskedReader]
    starts: int = 0
    _reader: AskedReader | None = None
    _writers: dict[str, Writer] = dataclasses.field(default_factory=dict)
    _made: list[Writer] = dataclasses.field(default_factory=list)
    """All writers that were made: of one that was interrupted the namespace may be there."""
    _aliases: set[str] = dataclasses.field(default_factory=set)

    # -- the reader -----------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """The kind of the store: ``sqlite``, ``redis``, ``cassandra``."""
        return parse_store(self.place.store).name

    @property
    def reader(self) -> AskedReader:
        """The reader, started if it does not run. Raises: ReaderFailedError: it was started too often."""
        if self._reader is None:
            if self.starts >= STARTS_MAX:
                raise ReaderFailedError(f"not run: the reader broke the protocol {STARTS_MAX} times")
            self.starts += 1
            self._reader = self.start()
        return self._reader

    def restart(self) -> None:
        """End the reader; the next request starts it again."""
        if self._reader is not None:
            self._reader.end()
            self._reader = None

    def connect(self, namespace: str) -> Any:
        """Connect the reader to a namespace or an alias."""
        options = {
            name: value for name, value in self.place.store_options.items() if name not in WRITERS_ONLY
        }
        return self.reader.ask("connect", url=self.place.store, namespace=namespace, options=options)

    def refused(self, names: str | Sequence[str], do: str, **arguments: Any) -> None:
        """Check that the reader refuses the request with one of these errors."""
        self.raises(names, f"{do} {_shown(arguments)}", lambda: self.reader.ask(do, **arguments))

    def raises(self, names: str | Sequence[str], what: str, call: Callable[[], Any]) -> None:
        """Check that a call of the reader ends with one of these errors."""
        expected = (names,) if isinstance(names, str) else tuple(names)
        try:
            answer = call()
        except ReaderRaisedError as error:
            if error.name not in expected:
                raise FailedError(f"{what}: {' or '.join(expected)} is expected, and it is {error}") from None
        else:
            raise FailedError(
                f"{what}: {' or '.join(expected)} is expected, and the answer is {_shown(answer)}"
            )

    # -- the namespaces -------------------------------------------------------------------------------

    def writer(self, name: str, make: Callable[[Session, str], Writer]) -> Writer:
        """Return the writer of a namespace, which is made at the first call."""
        if name not in self._writers:
            self._writers[name] = make(self, f"{self.prefix}-{name}")
        return self._writers[name]

    def drop(self, name: str) -> None:
        """Remove a namespace from the store, with its log."""
        writer = self._writers.pop(name)
        writer.drop()
        writer.close()
        self._made.remove(writer)

    def new_writer(
        self, namespace: str, schemas: dict[str, TableSchema], ahead_us: int = 0, **options: Any
    ) -> Writer:
        """Make a namespace without versions."""
        writer = Writer(self.place, namespace, dict(schemas), SteppedClock(ahead_us), **options)
        self._made.append(writer)
        writer.open()
        return writer

    def set_alias(self, name: str, writer: Writer, uuid: str = "") -> str:
        """Point an alias at a namespace; ``uuid``: at another one of that name. Return the alias's name."""
        alias = f"{self.prefix}-{name}"
        self._aliases.add(alias)
        set_alias(self._at, alias, Target(writer.namespace, uuid or writer.uuid))
        return alias

    @property
    def _at(self) -> StoreRef:
        return parse_store(self.place.store, self.place.store_options)

    def clean_up(self) -> list[str]:
        """End the reader and remove the namespaces; return the names of those that could not be removed."""
        self.restart()
        left = []
        for writer in self._made:
            try:
                for alias in sorted(self._aliases):
                    writer.store.aliases().drop(alias)
                self._aliases.clear()
                writer.drop()
            except TidegateError as error:
                logger.warning("namespace %s could not be removed: %s", writer.namespace, error)
                left.append(writer.namespace)
            with contextlib.suppress(TidegateError):
                writer.close()
        self._made.clear()
        self._writers.clear()
        return left

    # -- comparing ------------------------------------------------------------------------------------

    def check_table(self, writer: Writer, version: int, table: str, snapshot: str) -> None:
        """Check a table at a snapshot's version: all rows by a scan, some and absent keys by look-ups."""
        schema, expected = writer.expected.schema(version, table), writer.expected.rows(version, table)
        where = f"table {table} at version {version}"
        scanned = self.reader.ask("scan", table=table, snapshot=snapshot)
        check_version(where, scanned, version)
        check_rows(f"scan of {where}", schema, expected, scanned.get("rows"))
        absent = writer.expected.absent(version, table)
        chosen = [*_some(expected), *((key, None) for key, _ in _some([(key, None) for key in absent]))]
        got = self.reader.ask("get_many", keys={table: [key for key, _ in chosen]}, snapshot=snapshot)
        check_version(where, got, version)
        check_values(f"get_many of {where}", schema, chosen, _of(got, "rows", table))

    def check_newest(self, writer: Writer, tables: Sequence[str]) -> None:
        """Check reads without a snapshot: one request for several tables, and a few rows of each alone."""
        version, expected = writer.visible, writer.expected
        samples = {table: _some(expected.rows(version, table), 20) for table in tables}
        keys = {table: [key for key, _ in pairs] for table, pairs in samples.items()}
        got = self.reader.ask("get_many", keys=keys)
        check_version("get_many", got, version)
        for table, pairs in samples.items():
            schema = expected.schema(version, table)
            check_values(f"get_many of table {table}", schema, pairs, _of(got, "rows", table))
            absent = [(key, None) for key in expected.absent(version, table)[:2]]
            for key, value in pairs[:2] + absent:
                one = self.reader.ask("get", table=table, key=key)
                check_version(f"get of table {table}", one, version)
                check_values(f"get of table {table}", schema, [(key, value)], [one.get("value")])

    @contextlib.contextmanager
    def snapshot(self, **arguments: Any) -> Any:
        """Open a snapshot of the reader while the block runs; gives its name and version."""
        taken = self.reader.ask("snapshot", **arguments)
        name = str(_of(taken, "snapshot"))
        try:
            yield name, _of(taken, "version")
        except FailedError:
            with contextlib.suppress(ReaderRaisedError, ReaderFailedError):
                self.reader.ask("release", snapshot=name)
            raise
        check_equal("release", True, self.reader.ask("release", snapshot=name))  # noqa: FBT003 - the reply


def history_of(session: Session, namespace: str) -> Writer:
    """Make the namespace of many tables and types, with all its versions; its first times are hours ago."""
    writer = session.new_writer(
        namespace,
        rows.TABLES,
        -3 * rows.TTL_S * 1_000_000,
        key_groups=rows.KEY_GROUPS,
        table_key_groups=rows.TABLE_KEY_GROUPS,
        ttl={"sessions": f"{rows.TTL_S}s"},
        keep_versions=rows.VERSIONS_KEPT,
        max_layers=50,
    )
    for step in rows.history():
        writer.clock.ahead_us += step.get("later_s", 0) * 1_000_000
        writer.schemas.update(step.get("schemas", {}))
        writer.write(
            step["rows"], starts=frozenset(step.get("starts", ())), drops=frozenset(step.get("drops", ()))
        )
    writer.clock.ahead_us = 0
    return writer


def live_of(session: Session, namespace: str) -> Writer:
    """Make a namespace that is written while it is read, with a version of own tables and two more."""
    schemas = {name: rows.TABLES[name] for name in ("marker", "notes")} | rows.OWN_TABLES
    writer = session.new_writer(namespace, schemas, key_groups=4, keep_versions=1, max_layers=100)
    writer.write({table: {"id1": {"n": 1}} for table in rows.OWN_TABLES})
    for _ in range(2):
        write_live(writer)
    return writer


def write_live(writer: Writer) -> int:
    """Write the next version, whose number is in every row of both tables."""
    number = writer.visible + 1
    return writer.write(
        {
            "marker": {f"id{place}": {"n": number} for place in range(20)},
            "notes": {bytes([place]): b"%d" % number for place in range(20)},
        }
    )


def refused_of(session: Session, namespace: str) -> Writer:
    """Make the namespace whose store is changed by hand: one key group, three versions, none retired.

    The table ``notes`` is new in version 3.
    """
    schemas = {name: rows.TABLES[name] for name in ("marker", "notes")}
    writer = session.new_writer(namespace, schemas, key_groups=1, keep_versions=50, max_layers=100)
    for number in (1, 2):
        writer.write({"marker": {f"id{place}": {"n": number} for place in range(20)}})
    write_live(writer)
    return writer


def until(seconds: float) -> Callable[[], bool]:
    """Return whether this time has passed, at each call."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


# -- comparing answers --------------------------------------------------------------------------------


def check_equal(what: str, expected: Any, answer: Any) -> None:
    """Check that two JSON values are equal, and of one type."""
    if answer != expected or type(answer) is not type(expected):
        raise FailedError(f"{what}: {_shown(expected)} is expected, and the answer is {_shown(answer)}")


def check_version(what: str, answer: Any, version: int) -> None:
    """Check the version of an answer."""
    check_equal(f"the version of {what}", version, _of(answer, "version"))


def check_rows(what: str, schema: TableSchema, expected: Sequence[tuple[Any, Any]], answer: Any) -> None:
    """Check the rows of a scan, in any order."""
    if not isinstance(answer, list) or not all(isinstance(row, list) and len(row) == 2 for row in answer):
        raise FailedError(f"{what}: an array of [key, value] is expected, and the answer is {_shown(answer)}")
    types = schema.key_types
    actual = {comparable_key(types, key): (key, value) for key, value in answer}
    if len(actual) != len(answer):
        raise FailedError(f"{what}: {len(answer)} rows have {len(actual)} different keys")
    by_key = {comparable_key(types, key): (key, value) for key, value in expected}
    for name, (key, value) in by_key.items():
        if name not in actual:
            raise FailedError(
                f"{what}: {len(by_key)} rows are expected, and the row {_shown(key)} is missing"
            )
        check_values(what, schema, [(key, value)], [actual[name][1]])
    for name, (key, _) in actual.items():
        if name not in by_key:
            raise FailedError(
                f"{what}: {len(by_key)} rows are expected, and {_shown(key)} is not one of them"
            )


def check_values(what: str, schema: TableSchema, expected: Sequence[tuple[Any, Any]], answer: Any) -> None:
    """Check the values of these keys, in their order."""
    if not isinstance(answer, list) or len(answer) != len(expected):
        raise FailedError(f"{what}: {len(expected)} values are expected, and the answer is {_shown(answer)}")
    for (key, value), actual in zip(expected, answer, strict=True):
        if repr(value) == repr(actual):  # as most are, in a tenth of the time
            continue
        if comparable_value(schema, value) != comparable_value(schema, actual):
            raise FailedError(
                f"{what}: of {_shown(key)} {_shown(value)} is expected, and it is {_shown(actual)}"
            )


def _some(pairs: Sequence[Any], most: int = KEYS_MAX) -> list[Any]:
    return list(pairs[:: max(len(pairs) // most, 1)])[: most + 1]


def _of(answer: Any, *names: str) -> Any:
    for name in names:
        if not isinstance(answer, dict) or name not in answer:
            raise FailedError(f"an object with {' and '.join(names)} is expected, and it is {_shown(answer)}")
        answer = answer[name]
    return answer


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"
