"""The identity of a batch: the query, its checkpoint and its source offsets.

It is read from Spark's objects in the JVM, or with Spark Connect from the checkpoint's files.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, functions

from tidegate.base.source_offsets import file_offsets, fingerprint_of
from tidegate.committers.opening.lifecycle import restored_after_batch
from tidegate.errors import ConfigError, LineageError
from tidegate.spark.errors import Py4JError
from tidegate.wal.fold import last_batch_within
from tidegate.wal.record import BatchOrigin, Folded

logger = logging.getLogger("tidegate")

SOME = re.compile(r"Some\((.*)\)", re.DOTALL)
"""The text of a Scala option with a value: reading it takes one call, testing and taking the value two."""
RUNS_MAX = 16
NOTE_BYTES = 64 * 1024
"""The bytes of a file source's note that are read at first; more are read if one batch took more files."""


RUN_ID = secrets.token_hex(16)
"""The run of the query that this process was started for."""
_PARENT = os.getppid()
GLOB, ESCAPED = r"([\\{}\[\]*?])", r"\\\1"
"""The characters that have a meaning in a glob of Hadoop, and what stands for one of them."""


def is_connect(session: object) -> bool:
    """Return whether this is a session of Spark Connect, and not a classic one."""
    return not hasattr(session, "_jsparkSession")


class BatchContext(NamedTuple):
    """One micro-batch, as in Spark's offset log.

    ``lineage`` is the query id, which is in the checkpoint; ``run_id`` is new at each start
    of the query. ``fingerprint`` is a digest of ``source_offsets`` and of the files that they stand for.
    """

    lineage: str
    run_id: str
    batch_id: int
    source_offsets: str
    fingerprint: str

    def origin(self, state: Folded) -> BatchOrigin:
        """Return the origin of its version, in the log's present generation."""
        return BatchOrigin(self.lineage, state.generation, self.batch_id, self.fingerprint)


def batch_context(batch_df: DataFrame, batch_id: int, checkpoint: str | None = None) -> BatchContext:
    """Read the context of the batch that this thread runs; ``checkpoint``: of a Spark Connect session.

    The running query is found through the state that all sessions of the application share:
    the batch's own session is a clone that knows no queries (T15). Raises: ConfigError: this is not a call
    from foreachBatch, or the checkpoint is not the query's.
    """
    session: Any = batch_df.sparkSession
    if is_connect(session):
        return _connect_context(session, batch_id, checkpoint)
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
        files = list(_files_of(session, run.query, text))
    except Py4JError as error:
        msg = f"this release of Spark does not show the offsets of query {query_id}: {error}"
        raise ConfigError(msg) from error
    return BatchContext(query_id, run.run_id, batch_id, text, fingerprint_of(text, files))


_seen: dict[str, str] = {}
"""The query of each checkpoint by which this process has had a batch."""


def _connect_context(session: Any, batch_id: int, checkpoint: str | None) -> BatchContext:
    if checkpoint is None:
        raise ConfigError(
            "with Spark Connect a sink has to know the query's checkpoint: start the query by"
            " sink.start(df.writeStream, checkpoint), or sink.start(df.writeStream, checkpoint, write) for a"
            " function of several tables, instead of foreachBatch. Nothing was written"
        )
    query_id, offsets = logged_batch(session, checkpoint, batch_id)
    if _seen.setdefault(checkpoint, query_id) != query_id:
        raise ConfigError(
            f"{checkpoint} was of query {_seen[checkpoint]} and is of query {query_id} now: it was replaced"
            " while the query runs. Nothing was written. Stop the query, put its own checkpoint back, and"
            " start it again"
        )
    noted = (noted_files(session, checkpoint, *each) for each in file_offsets(offsets))
    files = [line for lines in noted for line in lines]
    return BatchContext(query_id, RUN_ID, batch_id, offsets, fingerprint_of(offsets, files))


def _files_of(session: Any, query: Any, offsets: str) -> Iterator[str]:
    """Yield a file source's note for its newest offset: one line of JSON per file."""
    offsets_of_files = [*file_offsets(offsets)]
    if not offsets_of_files:
        return
    root, path_of = query.resolvedCheckpointRoot(), _class_of(session._jvm, "org.apache.hadoop.fs.Path")  # noqa: SLF001
    system = path_of(root).getFileSystem(session._jsc.hadoopConfiguration())  # noqa: SLF001
    for place, number in offsets_of_files:
        for name in (f"{number}", f"{number}.compact"):  # every tenth note repeats all earlier ones
            path = path_of(f"{root}/sources/{place}/{name}")
            if system.exists(path):
                yield from _lines_of(session, system, path, number)


@functools.lru_cache(maxsize=8)
def _class_of(jvm: Any, name: str) -> Any:
    """Return a class of the JVM by its dotted name; the JVM is asked once for each part of the name."""
    return functools.reduce(getattr, name.split("."), jvm)


def _lines_of(session: Any, system: Any, path: Any, number: int) -> list[str]:
    """Read the lines of this offset in a note: its last ones, so that earlier lines cost nothing (I11)."""
    length, window = int(system.getFileStatus(path).getLen()), NOTE_BYTES
    while True:
        start = max(length - window, 0)
        stream = system.open(path)
        try:
            stream.seek(start)
            text = _class_of(session._jvm, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8")  # noqa: SLF001
        finally:
            stream.close()
        lines = text.rstrip("\n").split("\n")[1:]  # the first is the format's version, or torn
        mine = [line for line in lines if json.loads(line).get("batchId") == number]
        if start == 0 or len(mine) < len(lines):
            return mine
        window *= 4


def is_running(session: Any, query_id: str, failed: Callable[[], None] = lambda: None) -> bool:
    """Whether the query still runs in this application. False also if the JVM has ended.

    With Spark Connect this process ends with the query. ``failed`` is called when an error has ended it, not
    a stop.
    """
    if is_connect(session):
        return os.getppid() == _PARENT
    try:
        known = _runs.get((session._jvm, query_id))  # noqa: SLF001 - as in _running
        if _running(session, query_id) is not None:
            return True
        if known is not None and known.query.exception().isDefined():
            failed()
    except (Py4JError, OSError):
        pass
    return False


def running_here(rows: DataFrame) -> Run | None:
    """Find the run of the query whose batch this thread runs; None: there is none in this process's JVM."""
    session: Any = rows.sparkSession
    try:
        query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
        return None if query_id is None else _running(session, query_id)
    except (AttributeError, PySparkException, Py4JError, OSError):
        return None


class Run(NamedTuple):
    """One start of a query: an object of the JVM, its log of offsets, and its id."""

    query: Any
    offsets: Any
    run_id: str


def _running(session: Any, query_id: str) -> Run | None:
    """Find the query's present run. An earlier result that is still active is the one: a query runs once."""
    jvm = session._jvm  # noqa: SLF001 - PySpark shows no other way
    run = _runs.get((jvm, query_id))
    if run is not None and run.query.isActive():
        return run
    _runs.pop((jvm, query_id), None)
    queries = session._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
    query = queries.get(jvm.java.util.UUID.fromString(query_id))
    if query is None:
        return None
    for other, ended in list(_runs.items()):  # it would keep the query's plans and data in memory
        if len(_runs) >= RUNS_MAX or other[0] is not jvm or not ended.query.isActive():
            _runs.pop(other, None)
    run = _runs[jvm, query_id] = Run(query, query.offsetLog(), str(query.runId().toString()))
    return run


_runs: dict[tuple[object, str], Run] = {}
"""The known runs by JVM and query, oldest first: each step of finding one is a call to the JVM."""


# -- a batch of Spark Connect, in the files of its checkpoint ---------------------------------------------


class LoggedBatch(NamedTuple):
    """A batch in a checkpoint: the query's id, and the offset of each source, in brackets.

    ``offsets`` is the text that Spark shows in a classic session.
    """

    query_id: str
    offsets: str


def logged_batch(session: Any, checkpoint: str, batch_id: int) -> LoggedBatch:
    """Read the batch that runs from the checkpoint, by one job of Spark.

    Raises: ConfigError: these are not the files of a query that runs this batch now.
    """
    offsets, commit, later = f"offsets/{batch_id}", f"commits/{batch_id}", f"offsets/{batch_id + 1}"
    names = ("metadata", offsets, commit, later)
    rows = _read(session.read.format("binaryFile"), checkpoint, names, "content")
    files = {name: bytes(row[0]).decode() for row in rows for name in names if row[1].endswith(f"/{name}")}
    for name in ("metadata", offsets):
        if name not in files:
            raise ConfigError(
                f"{checkpoint} has no file {name}, so batch {batch_id} is not one of its query: {WRONG}"
            )
    for name in (commit, later):
        if name in files:
            raise ConfigError(f"{checkpoint} has the file {name}, so it is past batch {batch_id}: {WRONG}")
    version, _, *each = files[offsets].split("\n")  # the second line is Spark's own record of the batch
    if version != "v1":
        raise ConfigError(
            f"{checkpoint} has offsets in the form {version}, of which tidegate knows v1 alone: nothing was"
            " written. Start a new checkpoint with spark.sql.streaming.offsetLog.formatVersion=1"
        )
    return LoggedBatch(json.loads(files["metadata"])["id"], f"[{', '.join(each)}]")


WRONG = (
    "nothing was written. Put the query's own checkpoint back, or start the query by sink.start, which names"
    " the checkpoint to Spark and to the sink"
)


def noted_files(session: Any, checkpoint: str, place: int, number: int) -> list[str]:
    """Return a file source's note for this offset, by one job of Spark: one line of JSON per file."""
    lines = session.read.format("text").option("lineSep", "\n")
    mine = functions.get_json_object("value", "$.batchId") == str(number)
    rows = (row for row in _read(lines, checkpoint, _note(place, number), "value", mine))
    return [row[0] for row in sorted(rows, key=lambda row: (len(row[1]), row[2]))]  # the order of the files


def refuse_colon(checkpoint: str) -> None:
    """Refuse a checkpoint whose path has a colon, which no glob of Hadoop takes. Raises: ConfigError."""
    if ":" in re.sub(r"^[a-zA-Z][\w+.-]*:(//[^/]*)?", "", checkpoint):
        raise ConfigError(
            f"checkpoint {checkpoint} has a colon in its path: with Spark Connect it is read by a glob, and"
            " Hadoop takes none with a colon. No query was started. Name a path without one; the folder of a"
            " query that is stopped may be renamed"
        )


def _note(place: int, number: int) -> list[str]:
    """Return the names of a note. Every tenth one repeats all earlier ones."""
    return [f"sources/{place}/{number}", f"sources/{place}/{number}.compact"]


def _read(reader: Any, checkpoint: str, names: Sequence[str], column: str, where: Any = None) -> list[Any]:
    """Return a column of the files that are there, each with its path and the start of its part.

    Only a glob may name files that are not there.
    """
    glob = f"{re.sub(GLOB, ESCAPED, checkpoint.rstrip('/'))}/{{{','.join(names)}}}"
    try:
        rows = reader.option("recursiveFileLookup", "true").load(glob)
        rows = rows if where is None else rows.where(where)
        return list(rows.select(column, "_metadata.file_path", "_metadata.file_block_start").collect())
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            return []
        raise


# -- batches that the log lacks ------------------------------------------------------------------------


def refuse_without_past(namespace: str, batch: BatchContext, state: Folded) -> None:
    """Refuse a later batch of a query that the namespace does not follow: it has none of the earlier ones.

    A lost checkpoint is refused by its lineage, too. ``tidegate adopt`` is the operator's word that no
    earlier batch is missed. Raises: LineageError.
    """
    if batch.batch_id == 0 or state.lineage == batch.lineage:
        return
    raise LineageError(
        f"namespace {namespace} has no batch of query {batch.lineage}, whose checkpoint continues with batch"
        f" {batch.batch_id}: log and store are not those of its earlier batches. Nothing was written. Put"
        " them back: compare namespace and URLs with those of the earlier batches, and look whether disks are"
        " mounted. If the function of foreachBatch left the earlier batches out, or the query wrote elsewhere"
        " before: run `tidegate init` if the namespace is new, then"
        f" `tidegate adopt --lineage {batch.lineage}`, and restart the query"
    )


def warn_of_missing_batches(namespace: str, batch: BatchContext, state: Folded) -> None:
    """Log a warning if the log does not have the batch before the first one of a driver.

    Batches that a restore has undone get a warning that names it. A function of foreachBatch may leave out
    others. But it is also the only sign that log and store are older than the checkpoint, such as copies
    that were put back.
    """
    last, restored = _last_within(state, batch.lineage), restored_after_batch(state)
    _, decided = state.batches.get(batch.lineage, (0, -1))
    undone = min(decided, batch.batch_id - 1)
    if restored is not None and undone > last:
        logger.warning(
            "namespace %s: batch %d of query %s is the next one: the restore of version %d has undone %s,"
            " whose rows are not written again; to replay them, stop the query and run `tidegate restore"
            " --to %d --reprocess`, which shows the next steps",
            namespace, batch.batch_id, batch.lineage, restored, _numbers(last + 1, undone), restored,
        )  # fmt: skip
        last = undone
    if batch.batch_id <= last + 1:
        return
    logger.warning(
        "namespace %s: batch %d of query %s is the next one, and the log has no version of %s: this is right"
        " if the function of foreachBatch left them out, or if the query had another namespace before;"
        " otherwise log and store are older than the checkpoint, so stop the query: look whether their disks"
        " are mounted, or set the checkpoint back",
        namespace,
        batch.batch_id,
        batch.lineage,
        _numbers(last + 1, batch.batch_id - 1),
    )


def _last_within(state: Folded, lineage: str) -> int:
    """Return the last batch of a query that the visible state holds.

    If it holds none among the recent versions, every recent batch of the query was undone.
    """
    batch = last_batch_within(state, state.last_version, lineage)
    if batch is not None:
        return batch.batch_id
    origins = [each.origin for each in state.recent if isinstance(each.origin, BatchOrigin)]
    undone = [origin.batch_id for origin in origins if origin.lineage == lineage]
    _, decided = state.batches.get(lineage, (0, -1))
    return min(undone, default=decided + 1) - 1


def _numbers(first: int, last: int) -> str:
    return f"batch {first}" if first == last else f"batches {first} to {last}"


# -- a batch that failed in the sink, while the user's function swallowed the error ------------------------

WORDS_MAX = 300


class FailedBatch(NamedTuple):
    """The first batch of a run that raised and has not succeeded since, and its error.

    ``run_id`` None: the error was raised before the run was known. ``is_extra``: it was a further call
    for a batch that has its version.
    """

    lineage: str
    run_id: str | None
    batch_id: int
    why: str
    is_extra: bool = False

    def is_of(self, batch: BatchContext) -> bool:
        """Return whether this batch may be of the same run."""
        return self.lineage == batch.lineage and self.run_id in (None, batch.run_id)


def first_failure(
    before: FailedBatch | None,
    rows: DataFrame,
    batch_id: int,
    run_id: str | None,
    error: BaseException,
    *,
    is_extra: bool = False,
) -> FailedBatch | None:
    """Return the failure to remember until a batch succeeds. None: this was no batch of a query."""
    try:
        lineage = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    except (AttributeError, PySparkException, Py4JError, OSError):
        lineage = None if before is None else before.lineage
    if lineage is None:
        return before
    if (
        before is not None
        and before.lineage == lineage
        and (run_id is None or before.run_id in (None, run_id))
    ):
        return before._replace(run_id=run_id)
    words = f"{type(error).__name__}: {error}".partition("\n")[0]
    return FailedBatch(lineage, run_id, batch_id, words[:WORDS_MAX], is_extra)


def refuse_after_swallowed_error(before: FailedBatch | None, batch: BatchContext, state: Folded) -> None:
    """Refuse a batch that follows a failed one in the same run of the query, if that was not decided.

    Spark repeats a batch only when its function raised. The check is only within a run: an operator who
    starts the query again has seen the error. Raises: ConfigError.
    """
    if before is None or not before.is_of(batch) or batch.batch_id <= before.batch_id:
        return
    if before.is_extra:
        raise ConfigError(
            f"the function of foreachBatch called this sink for batch {before.batch_id} again, and the rows"
            f" of that call are not in the store ({before.why}), but the function swallowed the error: let"
            f" the sink's errors through. Started again, the query continues with batch {batch.batch_id};"
            " rows of that call that are wanted can be written by sink.load"
        )
    if state.last_batch is not None and state.last_batch >= (state.generation, before.batch_id):
        return  # its outcome was unknown, and it was decided
    raise ConfigError(
        f"batch {before.batch_id} failed in this sink and is not in the store ({before.why}), but the"
        " function of foreachBatch swallowed the error, so that Spark counts the batch as done: let the"
        f" sink's errors through. Started again, the query continues with batch {batch.batch_id}; rows of"
        f" batch {before.batch_id} that are wanted can be written by sink.load"
    )
