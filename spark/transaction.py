"""The transaction of one batch, on which the user's function calls: calls are checked and noted, not run.

All calls of a transaction are staged together, as one Spark job, when the function returns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import UNSET
from pyspark.sql import DataFrame, functions
from pyspark.sql.types import BinaryType, StringType, StructField

from tidegate.base.names import LOCAL
from tidegate.base.text import brief
from tidegate.errors import ConfigError
from tidegate.options.durations import Duration
from tidegate.spark.calls.apply_changes import changes_call
from tidegate.spark.calls.checks import (
    Names,
    check_key_type,
    check_table,
    check_unique,
    check_value_type,
    columns_named,
    field_of,
    key_columns,
    no_dataframe,
    order_of,
    predicate,
)
from tidegate.spark.calls.collected import CollectedCalls
from tidegate.spark.calls.column_cache import cached, use_cached_schema
from tidegate.spark.calls.columns import (
    bytes_value,
    delete_marker,
    json_value,
    key_bytes,
    schema_column,
    unless_deleted,
)
from tidegate.spark.calls.legacy_dates import written_as_they_are
from tidegate.spark.calls.local_state import check_local, check_rows, items_schema
from tidegate.spark.calls.newer import check_alone, newer_call
from tidegate.spark.calls.partial import Rows, Unchanged, folded, kept_columns
from tidegate.spark.calls.records import (
    Delete,
    LocalState,
    Patch,
    Reduce,
    Replace,
    Update,
    Upsert,
)
from tidegate.spark.calls.reduce import reduced_rows, state_columns, with_high_parts
from tidegate.spark.calls.update import (
    Ddl,
    Outputs,
    as_now,
    check_function,
    output_schemas,
    state_of,
    table_schema,
    timeout_of,
    timeout_schemas,
)
from tidegate.spark.state.local_state import Redistribute, Step
from tidegate.spark.state.reduce import Reducer, reduced_column
from tidegate.spark.state.udf_runner import Migrate
from tidegate.spark.state.update import Functions, StateFunction, TimeoutFunction
from tidegate.values.evolve import stored_names
from tidegate.wal.record import Column as SchemaColumn
from tidegate.wal.record import TableSchema
from tidegate.wal.staging import own_tables

RowsCall = TypeVar("RowsCall", Upsert, Replace, Patch)


class Transaction:
    """The changes of one batch to any number of tables: one version, all at once or not at all.

    It is the argument of the function given to ``VersionedSink.each``. Every call checks its arguments
    and raises ConfigError before anything is written; rows are checked when they are staged. The
    ``name`` of a call is that of its step in ``tidegate history --steps``; by default kind and table.

    ``batch_id`` is Spark's; ``base_version`` the version whose state is read (the last one). Durable: not
    when a call returns; all calls are staged and decided together after the function has returned.
    """

    def __init__(self, batch_id: int, base_version: int, collected: CollectedCalls) -> None:
        self.batch_id = batch_id
        self.base_version = base_version
        self._made, self._known = collected, collected.known

    def upsert(
        self,
        table: str,
        rows: DataFrame,
        key: Names,
        *,
        order_by: Names | None = None,
        newer_by: str | None = None,
        delete_when: str | None = None,
        value: str | None = None,
        name: str | None = None,
    ) -> None:
        """Set keys to these rows: of several rows of one key in this batch the last by ``order_by`` wins.

        The value is a JSON object of all columns but the key's, or with ``value`` the bytes of
        that one string or binary column. Without ``order_by`` the order is the rows' order in
        the DataFrame. Of rows with equal ``order_by`` the one with the larger value bytes wins, so that any
        replay has the same winner. ``delete_when`` is a Spark SQL predicate: rows for which
        it is true delete their key.

        ``order_by`` orders the rows of one batch: a late row of a later batch replaces a newer one. With
        ``newer_by``, a column of integers, text, dates or times, a row replaces the stored one only if it is
        greater there; of equal ones the larger value bytes win. So the table is the same whatever the order
        of arrival. The stored row is read at ``base_version``. A null there is a bad row. Deletes are not
        remembered: a late row brings a key back that another call deleted, unlike in ``apply_changes``.
        """
        check_alone(table, newer_by, {"order_by": order_by, "delete_when": delete_when, "value": value})
        call = self._rows_call(Upsert, table, rows, key, order_by, delete_when, value)
        call_made = call if newer_by is None else newer_call(call, newer_by, self._known.get(table))
        self._made.add(call_made, name=name)

    def replace(
        self,
        table: str,
        rows: DataFrame,
        key: Names,
        *,
        order_by: Names | None = None,
        value: str | None = None,
        name: str | None = None,
    ) -> None:
        """Make the table contain exactly these rows from this version on; its earlier rows are gone.

        The cost is that of the new rows, whatever the table's size: the version becomes the table's
        start. Older versions stay as they were. Rows as in ``upsert``; the value's columns may
        differ from the earlier ones, the key may not. No rows leave an empty table.
        """
        self._made.add(self._rows_call(Replace, table, rows, key, order_by, None, value), name=name)
        self._made.forget_timeouts([table])

    def delete(self, table: str, rows: DataFrame, key: Names, *, name: str | None = None) -> None:
        """Remove these keys; an absent key stays absent."""
        keys, rows = self._keys(table, rows, key), written_as_they_are(table, rows)
        order = order_of(table, rows, None)
        call = Delete(table, rows, _columns(keys), None, key_bytes(keys), delete_marker(), order)
        self._made.add(call, name=name)

    def reduce(
        self,
        table: str,
        rows: DataFrame,
        key: Names,
        reducers: Mapping[str, Reducer],
        *,
        order_by: Names | None = None,
        name: str | None = None,
    ) -> None:
        """Combine these rows with each key's state: ``{column: reducer}`` names the fields.

        Columns without a reducer are not stored. Reducers: sum, count (of values that are not null), min,
        max, first, last; all skip nulls. ``order_by`` defines first and last in the batch (default: the rows'
        order). State is read at ``base_version``, so a replay gives the same result. Rows that come twice, in
        two batches, count twice (docs/totals.md).
        """
        keys, rows = self._keys(table, rows, key), written_as_they_are(table, rows)
        argument: object = reducers
        if not isinstance(argument, Mapping) or not argument:
            msg = f"table {table}: reduce needs at least one reducer, as in reducers={{'amount': 'sum'}}"
            raise ConfigError(msg)
        reduced = tuple(
            reduced_column(table, schema_column(field_of(table, rows, column_name)), reducer)
            for column_name, reducer in reducers.items()
        )
        clash = [c.name for c in reduced if c.name in {k.name for k in keys}]
        if clash:
            msg = f"table {table}: {clash[0]} is a key column and cannot be reduced"
            raise ConfigError(msg)
        order = order_of(table, rows, order_by)
        schema = TableSchema(_columns(keys), tuple(SchemaColumn(c.name, c.type) for c in reduced))
        known = self._known.get(table)
        names = stored_names(known)
        reduced = with_high_parts(reduced, {field.name: field.dataType for field in rows.schema.fields})
        grouped, key_column, stored = reduced_rows(rows, key_bytes(keys), order, reduced, names)
        reduced = reduced if known is None else state_columns(table, reduced, known, schema)
        one_row_per_key = (functions.lit(0).cast("bigint"),)
        self._made.add(
            Reduce(table, grouped, _columns(keys), schema, key_column, stored, one_row_per_key, reduced),
            name=name,
        )

    def update(  # noqa: PLR0913 - the documented keywords of the public API
        self,
        table: str,
        rows: DataFrame,
        key: Names,
        fn: StateFunction,
        *,
        schema: Ddl | None = None,
        outputs: Outputs = (),
        order_by: Names | None = None,
        name: str | None = None,
        state_version: int = 1,
        migrate: Migrate | None = None,
        timeout: Duration | None = None,
        on_timeout: TimeoutFunction | None = None,
    ) -> None:
        """Call ``fn(key, rows, state, emit)`` for each key of these rows; it returns the new state.

        ``key`` and ``state`` are the values that a reader of the table gets (``state`` None: there is none at
        ``base_version``). ``rows`` iterates the key's rows as dicts, by ``order_by`` (default: the
        rows' order), and streams: a key may have any number of them. Returning None deletes the key; a
        state that equals the given one writes nothing. ``emit(table, key, value)`` writes into
        another table of the same version, a value of None deletes there; of several emits of one
        key the last one counts, by the keys' key group, key and order of emits.

        ``schema`` is the value's columns as DDL, ``"count bigint, last timestamp"``, or
        ``"bytes"``; ``outputs`` are the tables for ``emit``: ``{"alerts": ("user string", "level
        int, at timestamp")}``, key and value. For tables that exist both may be left out, and outputs be
        names alone. ``fn`` must be deterministic: Spark may run it more than once.

        A state whose columns or meaning change incompatibly gets a greater ``state_version`` and
        ``migrate(state, version)``, which returns the new form of a state of an older version. It is called
        for a key that is touched; other rows stay as they are (docs/schema-changes.md).

        With ``timeout``, a duration such as "30 min", ``on_timeout(key, state, emit)`` is called once for a
        key that had no rows for that time, and up to a 64th of it longer, in the first batch after that. It
        returns the new state as ``fn`` does. A key that keeps a state then has no timeout until its next
        rows. Times are those of the batches' attempts, not of the rows (docs/state.md).

        Raises, while staging, with nothing decided: FunctionError: ``fn`` raises, is too slow, or gave other
        results in a second run. BadRecordError: a result or an emitted row does not fit its table.
        """
        keys, rows = self._keys(table, rows, key), written_as_they_are(table, rows)
        check_function(table, fn)
        check_unique(table, rows.columns)
        for field in rows.schema.fields:
            check_value_type(table, field)
        given = None if schema is None else table_schema(table, keys, schema)
        state_schema = state_of(table, given, self._known.get(table), state_version, migrate)
        timeout_us = timeout_of(table, timeout, on_timeout)
        emits = output_schemas(table, outputs, self._known)
        if timeout_us is not None:
            emits |= timeout_schemas(table, _columns(keys))
        call = Update(
            table,
            rows,
            _columns(keys),
            state_schema,
            key=key_bytes(keys),
            value=json_value(rows.schema.fields, flags=b""),
            order=order_of(table, rows, order_by),
            functions=Functions(*as_now(table, fn, migrate, on_timeout)),
            row_columns=_columns(rows.schema.fields),
            outputs=tuple(name for name in emits if not own_tables.is_own(name)),
            timeout_us=timeout_us,
        )
        self._made.add(call, emits, name)
        if timeout_us is None:
            self._made.forget_timeouts([table])

    def patch(
        self,
        table: str,
        rows: DataFrame,
        key: Names,
        *,
        order_by: Names | None = None,
        ignore_nulls: bool | Names = False,
        keep_when: Mapping[str, object] | None = None,
        name: str | None = None,
    ) -> None:
        """Set the columns that these rows have, null too; the key's other columns stay as they are.

        Those have their values at ``base_version``; for a key that is absent there they are null.
        Of several rows of one key the last by ``order_by`` counts, as a whole, as in ``upsert``.
        Columns that the table does not have are added to it.

        A column of ``ignore_nulls`` (names, or True for all outside the key) stays as it is where a row has
        null, and one of ``keep_when={column: placeholder}`` where a row has the placeholder. Each of these
        columns gets its last other value by ``order_by``, of all rows of the key in this batch.
        """
        call = self._rows_call(Patch, table, rows, key, order_by, None, None)
        known = {field.name for field in call.key_columns}
        fields = [field for field in rows.schema.fields if field.name not in known]
        masks = kept_columns(table, rows, fields, Unchanged(ignore_nulls, keep_when))
        if masks:
            names = stored_names(self._known.get(table))
            given = Rows(call.rows, call.key, call.value, call.order)
            changes = folded(given, fields, masks, (), names)._asdict()
            partial = tuple(names.get(column_name, column_name) for column_name in masks)
            call = dataclasses.replace(call, **changes, partial=partial)
        self._made.add(call, name=name)

    def apply_changes(  # noqa: PLR0913 - the documented keywords of the public API
        self,
        table: str,
        rows: DataFrame,
        key: Names,
        *,
        sequence_by: Names,
        op_column: str | None = None,
        delete_values: Sequence[str] = ("d", "D", "delete", "DELETE"),
        ignore_nulls: bool | Names = False,
        keep_when: Mapping[str, object] | None = None,
        name: str | None = None,
    ) -> None:
        """Apply captured changes, in any order of arrival: of each key the newest stays.

        ``sequence_by`` are the columns that order a key's changes at their source (a log position, a
        commit time); they are stored with the row. A row whose ``op_column`` is one of ``delete_values``
        deletes its key, any other sets it to the row without ``op_column``. A change that is older than
        the key's row, or than the key's last delete, writes nothing. Deletes are remembered in the
        table ``_deleted.<table>`` for 7 days (``ttl={"_deleted.<table>": ...}`` for longer): a change that
        arrives later than that after its key was deleted restores the row. Of equal sequences a delete
        wins, then the larger value bytes. Raises, while staging: BadRecordError: a sequence or operation is
        null.

        A column of ``ignore_nulls`` (names, or True for all outside key and sequence) stays as it is where a
        change has null, and one of ``keep_when={column: placeholder}`` where it has the placeholder. Of all
        changes of the key since its last delete, in this batch and in the stored row, the newest other value
        counts, column by column. A change that arrives after a newer one of its key is stored writes nothing,
        also in columns that the newer one left as they were.
        """
        keys, rows = self._keys(table, rows, key), written_as_they_are(table, rows)
        check_unique(table, rows.columns)
        sequence = columns_named(table, "sequence_by", sequence_by)
        fields = [field_of(table, rows, column_name) for column_name in sequence]
        op = None if op_column is None else field_of(table, rows, op_column)
        unchanged = Unchanged(ignore_nulls, keep_when)
        call = changes_call(table, rows, keys, fields, op, delete_values, self._known, unchanged)
        deletes = TableSchema(_columns(keys), _columns(fields))
        self._made.add(call, {own_tables.deleted_table(table): deletes}, name)

    def local_state(  # noqa: PLR0913 - the documented keywords of the public API
        self,
        name: str,
        rows: DataFrame,
        fn: Step,
        *,
        by: Names = (),
        order_by: Names = (),
        schema: Ddl | None = None,
        redistribute: Redistribute = "split",
        outputs: Outputs = (),
        parallelism: int | None = None,
        state_version: int = 1,
        migrate: Migrate | None = None,
    ) -> None:
        """Store a list of items per instance of this step, of which there are ``parallelism``.

        Without a number there are as many as the batch has tasks. ``parallelism=1`` is for results over all
        rows, such as the ten largest: one instance gets every row.

        ``fn(instance, rows, state, emit)`` is called once per instance for every batch, also without
        rows, and returns the list that the instance (``index``, ``parallelism``, ``before``) has from
        now on. Its ``rows`` are those whose hash of ``by`` (default: all columns) is its index, by
        ``order_by``, then by all columns. Items are bytes, or with a ``schema`` dicts. ``emit``,
        ``outputs`` and errors are as in ``update``. Items are read as table ``_local.<name>``.

        When their number changes, "split" distributes all items evenly, in order, and "union" gives all
        to each. With ``(split, merge)``, ``split(state, n)`` returns n lists for an instance and its new
        relatives, and ``merge(states)`` returns one list (docs/state.md). With a greater ``state_version``
        ``migrate(item, version)`` is called for each item, before that: all are written again.
        """
        table = check_rows(name, rows)
        rows = written_as_they_are(table, rows)
        check_unique(table, rows.columns)
        by_columns = tuple(columns_named(table, "by", by))
        order_columns = tuple(columns_named(table, "order_by", order_by))
        emits = output_schemas(table, outputs, self._known)
        check_local(name, rows, fn, (*by_columns, *order_columns), redistribute, parallelism)
        known = self._known.get(table)
        items = state_of(table, items_schema(table, schema), known, state_version, migrate)
        fn, redistribute, migrate = as_now(table, fn, redistribute, migrate)
        call = LocalState(
            table,
            rows,
            items.key,
            items,
            name=name,
            fn=fn,
            by=by_columns,
            order_by=order_columns,
            redistribute=redistribute,
            parallelism=parallelism,
            outputs=tuple(emits),
            migrate=migrate,
            migrated=known if known is not None and known.version < items.version else None,
        )
        self._made.add(call, {LOCAL: own_tables.INSTANCES_SCHEMA, **emits})

    def drop_table(self, table: str) -> None:
        """Drop a table: from this version on there is no table of its name.

        Older versions that are kept show it as before. A later batch may make a table of its name again.
        Retirement of this version removes the rows, the deletes that ``apply_changes`` remembers, and the due
        times of ``update``.
        """
        check_table(table)
        self._made.drop(table)

    def _rows_call(
        self,
        record: type[RowsCall],
        table: str,
        rows: DataFrame,
        key: Names,
        order_by: Names | None,
        delete_when: str | None,
        value: str | None,
    ) -> RowsCall:
        keys, rows = self._keys(table, rows, key), written_as_they_are(table, rows)
        check_unique(table, rows.columns)
        others = [field for field in rows.schema.fields if field.name not in {k.name for k in keys}]
        known = self._known.get(table)
        version = known.state_version if known and record is Replace else UNSET
        if value is None:
            for field in others:
                check_value_type(table, field)
            schema = TableSchema(_columns(keys), _columns(others), state_version=version)
            names = {} if record is Replace else stored_names(known)
            stored = json_value(others, stored=names)
        else:
            if not isinstance(value, str):
                raise ConfigError(f"table {table}: value={brief(value)} must be a column's name")
            field = field_of(table, rows, value)
            if not isinstance(field.dataType, StringType | BinaryType):
                shown = field.dataType.simpleString()
                msg = f"table {table}: value column {value} is {shown}; it must be binary or string"
                raise ConfigError(msg)
            schema = TableSchema(_columns(keys), _columns([field]), "bytes", version)
            stored = bytes_value(value)
        if delete_when is not None:
            stored = cached(unless_deleted, predicate(table, rows, delete_when), stored)
        order = order_of(table, rows, order_by)
        return record(table, rows, _columns(keys), schema, key_bytes(keys), stored, order)

    def _keys(self, table: str, rows: DataFrame, key: Names) -> list[StructField]:
        check_table(table)
        if not isinstance(rows, DataFrame):
            raise no_dataframe(f"table {table}", rows)
        if rows.isStreaming:
            msg = f"table {table}: this is the streaming DataFrame; use the one the function is given"
            raise ConfigError(msg)
        use_cached_schema(rows)
        fields = [field_of(table, rows, name) for name in key_columns(table, key)]
        for field in fields:
            check_key_type(table, field)
        return fields


def _columns(fields: Sequence[StructField]) -> tuple[SchemaColumn, ...]:
    return tuple(map(schema_column, fields))
