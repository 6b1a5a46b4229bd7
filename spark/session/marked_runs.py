"""The proof of single runs by marks in the rows, where Spark's tracker of map outputs is out of reach.

A task in front of each shuffle of tidegate's passes its rows on, and sends a **mark** to every task after
it: the number of its rows and the sum of their hashes, which a second run with the same rows has, too. So the
acks show whether two tasks have read runs with other rows. The shuffles of the user's own plan, which are
made before that task, have no marks: Spark's own checksums compare their runs. So this needs a release that
has them, and Spark's own shuffle manager, which writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, functions, types

from tidegate.errors import ConfigError
from tidegate.spark.session.releases import arrow_schema_of, with_columns_known
from tidegate.spark.session.runs import Runs
from tidegate.spark.session.whole_retries import OPTIONS
from tidegate.spark.state.output_rows import SEVERAL, RunMark, mark_value
from tidegate.wal.staging.acks import Ack

OLDEST = (4, 1)
MANAGERS = ("sort", "tungsten-sort", "org.apache.spark.shuffle.sort.SortShuffleManager")
"""The names of Spark's own shuffle manager."""
HASH = "h"
INDEX_BITS = 33
"""``monotonically_increasing_id``, which no stream may have, has a row's index below this bit."""


class MarkedRuns(Runs):
    """The shuffles of one version whose rows have marks."""

    marked = True

    def __init__(self, session: Any) -> None:
        """Raises: ConfigError: Spark does not compare the runs of other shuffles in this session."""
        release = tuple(int(part) for part in str(session.version).split(".")[:2])
        if release < OLDEST:
            raise ConfigError(
                "with Spark Connect a sink needs Spark 4.1 or newer on the server, and this is"
                f" {session.version}: it does not compare the rows of a shuffle that it makes again, so one"
                " version could mix two runs (I1). Nothing was written; use a classic session"
            )
        manager = session.conf.get("spark.shuffle.manager", MANAGERS[0])
        pushes = str(session.conf.get("spark.shuffle.push.enabled", "false")).lower() == "true"
        if manager not in MANAGERS or pushes:
            what = "spark.shuffle.push.enabled=true" if pushes else f"spark.shuffle.manager={manager}"
            raise ConfigError(
                f"this server has {what}, with which Spark may compare no rows of a shuffle that it"
                " makes again, so one version could mix two runs (I1), and a session of Spark Connect cannot"
                " ask for them. Nothing was written; use a classic session or a server without that option"
            )
        for name in OPTIONS:
            if str(session.conf.get(name)).lower() != "true":  # 4.1 and later have both
                raise ConfigError(
                    f"{name} is off, so Spark compares no rows of a shuffle that it makes again, and one"
                    " version could mix two runs (I1). Nothing was written; call tidegate.spark.configure"
                    " before getOrCreate, and start the query again"
                )

    def read(self, rows: Any) -> None:
        """Do nothing: the marks are in the rows."""

    def _begin(self) -> None:
        """Do nothing: each staging has marks of its own."""

    def _is_single(self, result: Any) -> bool:
        acks: Sequence[Ack] = result[0]
        return all(ack.runs == acks[0].runs and SEVERAL not in ack.runs.values() for ack in acks)


def marked(
    rows: DataFrame,
    name: str,
    readers: Mapping[str, Sequence[Any]],
    value: str = "v",
    *,
    kind: types.StructType | None = None,
    numbered: str = "",
) -> DataFrame:
    """Return the rows, and at the end of each task's rows a mark for each task that reads them.

    ``readers`` has columns of the marks, one cell for each reader, by which rows are sent there; ``value``
    names the column of the marks themselves. All other columns are null. Each reader then knows of each task
    before it, also if that has no rows for it. ``kind``: the columns of the result; with it ``rows`` is not
    analysed. ``numbered``: that one of them which ``rows`` lacks, and which gets the order of the rows.
    """
    if kind is None:
        kind = types.StructType([types.StructField(f.name, f.dataType) for f in rows.schema.fields])
    given = [field for field in kind.fields if field.name != numbered]
    hashed = with_columns_known(
        rows.withColumn(HASH, functions.xxhash64(*(field.name for field in given))),
        types.StructType([*given, types.StructField(HASH, types.LongType())]),
    )
    return hashed.mapInArrow(_marking(name, dict(readers), value, numbered, arrow_schema_of(kind)), kind)


def _marking(
    name: str, readers: dict[str, Sequence[Any]], value: str, numbered: str, schema: Any
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        context: Any = TaskContext.get()
        part = context.partitionId()
        count, total, mixed, kind = 0, np.uint64(0), np.uint64(0), schema
        for batch in batches:
            hashes = batch[HASH].to_numpy().view(np.uint64)
            rows = batch.drop_columns([HASH])
            if numbered:
                order = np.arange(count, count + len(hashes), dtype=np.int64) + (part << INDEX_BITS)
                rows = rows.add_column(schema.get_field_index(numbered), numbered, pa.array(order))
            count, total = count + len(hashes), total + hashes.sum(dtype=np.uint64)
            mixed ^= np.bitwise_xor.reduce(hashes)
            kind = pa.schema([field.with_nullable(nullable=True) for field in rows.schema])  # of marks
            yield pa.record_batch(rows.columns, schema=kind)
        mark = RunMark(f"{name}/{part}", f"{count} {total:x} {mixed:x}")
        number = len(next(iter(readers.values())))
        cells = {**readers, value: [mark_value(mark)] * number}
        columns = [pa.array(cells.get(field.name, [None] * number), field.type) for field in kind]
        yield pa.record_batch(columns, schema=kind)

    return run
