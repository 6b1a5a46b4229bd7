"""Which batch this is: the query, its checkpoint and its source offsets, asked of Spark."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from tidegate.base.source_offsets import offsets_in
from tidegate.errors import ConfigError
from tidegate.wal.record import Folded

SOME = re.compile(r"Some\((.*)\)", re.DOTALL)
"""How Scala writes an option that holds something: one call, where asking it and taking it are two."""
RUNS_MAX = 16
NOTE_BYTES = 64 * 1024
"""So much of a file source's note is read at first; more when one batch took more files."""


class BatchContext(NamedTuple):
    """One micro-batch, as Spark's offset log holds it.

    ``lineage`` is the query id, which lives in the checkpoint; ``run_id`` is new at each start
    of the query. ``fingerprint`` is a digest of ``source_offsets`` and of the files behind them.
    """

    lineage: str
    run_id: str
    batch_id: int
    source_offsets: str
    fingerprint: str


def batch_context(batch_df: DataFrame, batch_id: int) -> BatchContext:
    """The context of the batch that is being run in this thread.

    The running query is found through the state that all sessions of the application share:
    the batch's own session is a clone that knows no queries (T15).

    ConfigError: this is not a call from foreachBatch, or the session is a Spark Connect one.
    """
    session: Any = batch_df.sparkSession
    refuse_connect(session)
    query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        msg = "no streaming query runs in this thread: pass the sink to df.writeStream.foreachBatch(sink)"
        raise ConfigError(msg)
    try:
        run = _running(session, query_id)
        logged = SOME.fullmatch(str(run.offsets.get(batch_id).toString())) if run is not None else None
        if run is None or logged is None:
            msg = f"query {query_id} has no offsets for batch {batch_id} in its checkpoint"
            raise ConfigError(msg)
        text = logged[1]
        files = list(_files_behind(session, run.query, text))
    except Py4JError as error:
        msg = f"this release of Spark does not show the offsets of query {query_id}: {error}"
        raise ConfigError(msg) from error
    fingerprint = hashlib.blake2b("\n".join([text, *files]).encode(), digest_size=16).hexdigest()
    return BatchContext(query_id, run.run_id, batch_id, text, fingerprint)


def refuse_connect(session: object) -> None:
    """ConfigError: it is a Spark Connect session, which has no driver in this process."""
    if not hasattr(session, "_jsparkSession"):
        msg = (
            "this DataFrame is not one of a classic Spark session; Spark Connect does not run foreachBatch in"
            " the driver's process, nor can a sink run jobs through it: start the session with"
            " SparkSession.builder.master(...)"
        )
        raise ConfigError(msg)


def _files_behind(session: Any, query: Any, offsets: str) -> Iterator[str]:
    """What a file source noted for its newest offset: one line of JSON per file.

    A file source's offset is a number that it counts up, the same for other files (T5); which
    files it stands for, it has noted in ``sources/<place>/<offset>`` of the checkpoint.
    """
    for place, offset in enumerate(offsets_in(offsets)):
        if not isinstance(offset, dict) or list(offset) != ["logOffset"]:
            continue
        number = offset["logOffset"]
        for name in (f"{number}", f"{number}.compact"):  # every tenth note repeats all before it
            path = session._jvm.org.apache.hadoop.fs.Path(  # noqa: SLF001 - PySpark shows no other way
                f"{query.resolvedCheckpointRoot()}/sources/{place}/{name}"
            )
            system = path.getFileSystem(session._jsc.hadoopConfiguration())  # noqa: SLF001
            if system.exists(path):
                yield from _noted(session, system, path, number)


def _noted(session: Any, system: Any, path: Any, number: int) -> list[str]:
    """The lines of this offset in a note: its last ones, so that what stands before costs nothing (I11)."""
    length, window = int(system.getFileStatus(path).getLen()), NOTE_BYTES
    while True:
        start = max(length - window, 0)
        stream = system.open(path)
        try:
            stream.seek(start)
            text = session._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")  # noqa: SLF001
        finally:
            stream.close()
        lines = text.splitlines()[1:]  # the first is the format's version, or torn
        mine = [line for line in lines if json.loads(line).get("batchId") == number]
        if start == 0 or len(mine) < len(lines):
            return mine
        window *= 4


def is_running(session: Any, query_id: str) -> bool:
    """Whether the query still runs in this application. Not where the JVM is gone, which says nothing."""
    try:
        return _running(session, query_id) is not None
    except (Py4JError, OSError):
        return False


class Run(NamedTuple):
    """One start of a query: an object of the JVM, its log of offsets, and its id."""

    query: Any
    offsets: Any
    run_id: str


def _running(session: Any, query_id: str) -> Run | None:
    """The query as it runs now. One that was found before and is active still is that: a query runs once."""
    jvm = session._jvm  # noqa: SLF001 - PySpark shows no other way
    run = _runs.get((jvm, query_id))
    if run is not None and run.query.isActive():
        return run
    _runs.pop((jvm, query_id), None)
    queries = session._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
    query = queries.get(jvm.java.util.UUID.fromString(query_id))
    if query is None:
        return None
    for other, ended in list(_runs.items()):  # what it read and planned would be kept with it
        if len(_runs) >= RUNS_MAX or other[0] is not jvm or not ended.query.isActive():
            _runs.pop(other, None)
    run = _runs[jvm, query_id] = Run(query, query.offsetLog(), str(query.runId().toString()))
    return run


_runs: dict[tuple[object, str], Run] = {}
"""By JVM and query, oldest first: each step on the way to it is a call there."""


# -- a batch that failed in the sink, and that the function around the sink let Spark count as done --------

WORDS_MAX = 300


class Failed(NamedTuple):
    """The first batch of a run of the query that raised and has not ended well since, and what it raised."""

    run_id: str
    batch_id: int
    why: str


def failed(before: Failed | None, batch: BatchContext, error: BaseException) -> Failed:
    """To be remembered until a batch ends well."""
    if before is not None and before.run_id == batch.run_id:
        return before
    words = f"{type(error).__name__}: {error}".partition("\n")[0]
    return Failed(batch.run_id, batch.batch_id, words[:WORDS_MAX])


def refuse_passed_over(before: Failed | None, batch: BatchContext, state: Folded) -> None:
    """ConfigError: the same run of the query goes on behind a batch that failed here, and nothing of that one
    was decided. Spark gives a batch again only when its function raised.

    Only within a run: whoever starts the query again has been told.
    """
    if before is None or before.run_id != batch.run_id or batch.batch_id <= before.batch_id:
        return
    if state.last_batch is not None and state.last_batch >= (state.generation, before.batch_id):
        return  # its outcome was unknown, and it was decided
    raise ConfigError(
        f"batch {before.batch_id} failed in this sink and is not in the store ({before.why}), but the"
        " function of foreachBatch kept the error to itself, so that Spark counts the batch as done: let the"
        f" sink's errors through. Started again, the query goes on with batch {batch.batch_id}; rows of batch"
        f" {before.batch_id} that are wanted can be brought in by sink.load"
    )
