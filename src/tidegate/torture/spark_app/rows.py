"""The workloads as files of a streaming query, one for each batch, and as calls of a transaction.

All tables have a binary key and one text column, ``v``, with the JSON text of the workload's value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.torture.driver.workloads import STATEFUL, VALUE, decoded, encoded, rows_after
from tidegate.torture.history.events import Change

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.spark.transaction import Transaction

SCHEMA = "t string, k string, v string"
"""The columns of a file: the table, the key, and a value, or a ``Change`` of this key alone."""
FIRST_FILE_S = 1_600_000_000
"""The modification time of the first file: the query reads older files first."""


def write_files(folder: Path, batches: int, changes_of: Callable[[int], Sequence[Change]]) -> None:
    """Write the file of each batch that has none yet. A file appears whole, under the time of its batch."""
    folder.mkdir(parents=True, exist_ok=True)
    for batch in range(batches):
        path = folder / f"{batch:04}.json"
        if path.exists():
            continue
        draft = path.with_name(f"_{path.name}")  # Spark reads no file of such a name
        lines = [msgspec.json.encode(line) for change in changes_of(batch) for line in _lines(change)]
        draft.write_bytes(b"\n".join(lines))
        os.utime(draft, (FIRST_FILE_S + 100 * batch,) * 2)
        draft.rename(path)


def _lines(change: Change) -> Iterator[dict[str, str | None]]:
    """Yield the rows of one table in the file of a batch."""
    if change.table not in STATEFUL:
        for key, value in change.rows.items():
            yield {"t": change.table, "k": key, "v": None if value is None else encoded(value).decode()}
        return
    for key in sorted({*change.rows, *change.append, *change.reduce}):
        of_key = Change(
            table=change.table,
            rows=_of(key, change.rows),
            append=_of(key, change.append),
            reduce=_of(key, change.reduce),
            reducers=change.reducers,
        )
        yield {"t": change.table, "k": key, "v": msgspec.json.encode(of_key).decode()}


def _of(key: str, values: dict[str, Any]) -> dict[str, Any]:
    return {key: values[key]} if key in values else {}


def write(txn: Transaction, rows: DataFrame, changes: Iterable[Change]) -> None:
    """Make the calls of one batch, as a user's function does. ``rows``: the batch's file."""
    keyed = rows.withColumn("k", rows.k.cast("binary"))
    for change in changes:
        mine = keyed.where(keyed.t == change.table).select("k", VALUE)
        if change.table in STATEFUL:
            txn.update(change.table, mine, "k", next_state, schema=f"{VALUE} string")
        elif change.replace:
            txn.replace(change.table, mine, "k")
        else:
            txn.upsert(change.table, mine, "k", delete_when=f"{VALUE} is null")


def next_state(
    key: bytes, rows: Iterable[dict[str, Any]], state: dict[str, Any] | None, emit: Callable[..., None]
) -> dict[str, Any] | None:
    """Compute a key's new state from its changes, in a task of Spark."""
    del emit
    name, now = key.decode(), None if state is None else state[VALUE].encode()
    for row in rows:
        before = {} if now is None else {name: decoded(now)}
        now = rows_after(json_decoder(Change).decode(row[VALUE]), before)[key]
    return None if now is None else {VALUE: now.decode()}
