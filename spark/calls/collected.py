"""The calls that a transaction has collected: checked against each other, with the schemas after them."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Collection, Mapping
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, functions

from tidegate.base.names import check_name, did_you_mean, listed
from tidegate.base.text import first_line
from tidegate.errors import ConfigError
from tidegate.spark.calls.checks import DROP, check_mixing, drop_mixed, same_key, schema_after
from tidegate.spark.calls.column_cache import analyse, cached
from tidegate.spark.calls.columns import column
from tidegate.spark.calls.records import Call, LocalState, Replace, Upsert, UpsertNewer
from tidegate.spark.session.jvm import reads_persisted
from tidegate.wal.record import TableSchema
from tidegate.wal.staging import derived_guard, own_tables


class Made(NamedTuple):
    """The result of a transaction: its calls, the tables that it starts and drops, and all schemas then."""

    calls: list[Call]
    starts: frozenset[str]
    drops: frozenset[str]
    known: Mapping[str, TableSchema]

    @property
    def schemas(self) -> dict[str, TableSchema]:
        """The schema of every table that a call touches."""
        return {table: self.known[table] for call in self.calls for table in call.touches}


class CollectedCalls:
    """The calls of one transaction. ``known`` are the schemas of all tables, after the calls until now.

    Every method may be called from any thread, until ``close``. Nothing runs.
    """

    def __init__(self, batch_id: int, known: Mapping[str, TableSchema]) -> None:
        self.known = dict(known)
        self._batch_id = batch_id
        self._calls: list[Call] = []
        self._persisted: list[Call] = []
        self._drops: set[str] = set()
        self._open = True
        self._lock = threading.Lock()
        """Held while a call is added: the function may make calls in threads of its own."""

    def add(
        self, call: Call, emits: Mapping[str, TableSchema] | None = None, name: str | None = None
    ) -> None:
        """Add a call whose columns Spark can make. ``emits`` are its other tables.

        Raises: ConfigError: it does not go with the table or with an earlier call; it was not added.
        """
        self._check_open(call.table)
        if not isinstance(call, LocalState):
            try:
                analyse(call.rows, call.key, call.value, *call.order)
            except PySparkException as error:
                msg = f"table {call.table}: Spark cannot make this {call.kind}'s columns: {first_line(error)}"
                raise ConfigError(msg) from error
        persisted = reads_persisted(call.rows)
        with self._lock:
            self._check_open(call.table)  # the function may have returned meanwhile
            step = _step_name(call, name, [earlier.step for earlier in self._calls])
            self._append(dataclasses.replace(call, step=step), emits or {})
            self._persisted += [call] * persisted

    def add_stored(self, table: str, rows: DataFrame, schema: TableSchema) -> None:
        """Make the table contain exactly these rows, ``key`` and ``value`` as stored, for imports."""
        if own_tables.is_own(table) and (fault := own_tables.fault_of(table, schema, self.known)):
            raise ConfigError(f"table {table}: {fault}; import into a new namespace")
        order = (cached(functions.monotonically_increasing_id),)
        self.add(Replace(table, rows, schema.key, schema, column("key"), column("value"), order))

    def add_staged(self, call: Upsert | UpsertNewer | Replace) -> None:
        """Add a call whose rows tasks stage elsewhere, with this table and schema."""
        self._append(dataclasses.replace(call, step=_step_name(call, None, ())), {})
        if isinstance(call, Replace):
            self.forget_timeouts([call.table])

    def drop(self, table: str) -> None:
        """Drop a table and its companions. Raises: ConfigError: there is none, or a call touches it."""
        with self._lock:
            self._check_open(table)
            kinds = {name: kind for call in self._calls for name, kind in call.touches.items()}
            kinds |= dict.fromkeys(self._drops, DROP)
            if table in kinds:
                raise drop_mixed(table, kinds[table])
            if table not in self.known:
                msg = (
                    f"table {table} cannot be dropped, there is none of this name; tables are"
                    f" {', '.join(listed(self.known)) or 'none yet'}{did_you_mean(table, self.known)}"
                )
                raise ConfigError(msg)
            self._drops |= own_tables.companions({table}, self.known)

    def begin_import(self, tables: Collection[str]) -> None:
        """Prepare for the rows of an export's tables: ``add_stored`` of each follows."""
        own_tables.check_companions(tables, self.known)
        self.forget_timeouts(tables)

    def forget_timeouts(self, tables: Collection[str]) -> None:
        """Drop the due times of the keys of these tables: rows of theirs follow that do not move them."""
        with self._lock:
            self._drops |= own_tables.stale_timeouts(tables, self.known)

    def close(self) -> Made:
        """End the transaction; return what it made, with every table's schema. Later calls are refused."""
        with self._lock:  # a call of another thread is in the list, or is refused
            self._open, calls = False, list(self._calls)
        freed = [call.table for call in self._persisted if not reads_persisted(call.rows)]
        if len(freed) > 1:
            raise ConfigError(
                f"tables {', '.join(sorted(freed))}: the function unpersisted their rows, which are read once"
                " it has returned. Then Spark makes them once for each table, and they may differ. Leave"
                " unpersist() out: a batch that the function persists is unpersisted once it is staged"
            )
        for call in calls:
            if call.schema is None and call.table not in self.known:
                msg = (
                    f"table {call.table} is not known: a delete needs a table that has rows; tables are"
                    f" {', '.join(listed(self.known)) or 'none yet'}{did_you_mean(call.table, self.known)}"
                )
                raise ConfigError(msg)
            known = self.known[call.table]  # a delete may precede the table's first rows
            same_key(call.kind, call.table, call.key_columns, known, names=call.schema is not None)
        starts = frozenset(call.table for call in calls if _starts(call))
        return Made(calls, starts, frozenset(self._drops), self.known)

    def _check_open(self, table: str) -> None:
        if not self._open:
            msg = f"table {table}: the transaction of batch {self._batch_id} has ended"
            raise ConfigError(msg)

    def _append(self, call: Call, emits: Mapping[str, TableSchema]) -> None:
        for earlier in self._calls:
            check_mixing(earlier.touches, call.touches)
        for table in self._drops & call.touches.keys():
            raise drop_mixed(table, call.touches[table])
        writes = [(call.kind, call.table, call.key_columns, call.schema)]
        writes += [("emit", name, schema.key, schema) for name, schema in emits.items()]
        after: dict[str, TableSchema] = {}
        for kind, table, key, schema in writes:
            known = self.known.get(table)
            if known is not None and known.derived:
                raise derived_guard.written_into(table, known.derived.of, kind)
            if known is not None:
                same_key(kind, table, key, known, names=schema is not None)
            if schema is not None:
                is_new = known is None or (table == call.table and _starts(call))
                after[table] = schema if is_new or known is None else schema_after(kind, table, known, schema)
        self.known.update(after)
        self._calls.append(call)


def _starts(call: Call) -> bool:
    """Return whether the table begins again: no older row of it counts."""
    return isinstance(call, Replace) or (isinstance(call, LocalState) and call.migrated is not None)


def _step_name(call: Call, given: object, taken: Collection[str]) -> str:
    """Return the name of a call: ``given``, or kind and table, with a number from the second such call on.

    Raises: ConfigError: the given name is not allowed, or an earlier call has it.
    """
    if given is not None:
        name = check_name("call", given)
        if name in taken:
            raise ConfigError(
                f"table {call.table}: an earlier call of this transaction has the name {name!r}; give each"
                " call a name of its own"
            )
        return name
    kind = call.kind.partition("(")[0]
    stem = f"{kind}.{call.name if isinstance(call, LocalState) else call.table}"
    numbered = (stem if number == 1 else f"{stem}.{number}" for number in itertools.count(1))
    return next(name for name in numbered if name not in taken)
