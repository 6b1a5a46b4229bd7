"""State at a decided version that is not visible yet: from the frames in flight, then from the store.

The base version of a barrier may be above the visible version, as far as ``commit_in_flight``. A key that the
versions in between changed has its last value in their frames, which are durable in the log. Any other key
has, at the base version, the value that it has at the visible version, or at any version between the two. So
a read that asks the frames first and the store then, at any of these versions, gives the state at the base
version, however far the completion has come meanwhile. A decided version never changes (I2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import CorruptError, SnapshotExpiredError
from tidegate.sinks.cache.compaction import newest
from tidegate.sinks.cache.in_flight import ALL_VISIBLE, InFlightVersions, VersionFrames
from tidegate.sinks.cache.links import touches
from tidegate.sinks.cache.runs import ROWS, Answers, places_of, rows_of
from tidegate.sinks.records import ReadAt
from tidegate.sinks.store import Store
from tidegate.wal.frame import Run, decode_frame
from tidegate.wal.log import Blobs
from tidegate.wal.record import MEND

_NOTHING = pa.RecordBatch.from_pylist([], schema=ROWS)


class StateAt:
    """One task's reads of the state at its base version, of key groups in ``groups``. For one thread.

    ``stride`` returns a table's stride. The frames are read once, at the first read of any key.
    """

    def __init__(
        self,
        store: Store,
        base_version: int,
        in_flight: InFlightVersions = ALL_VISIBLE,
        log: Callable[[], Blobs] | None = None,
        groups: range = range(0),
        stride: Callable[[str], int] = lambda _: 1,
    ) -> None:
        self.store, self.base_version = store, base_version
        self._in_flight, self._log, self._groups = in_flight, log, groups
        self._stride = stride
        self._read_at = in_flight.visible if in_flight.versions else base_version
        self._changes: dict[str, list[tuple[int, Any]]] | None = None
        self._newest: dict[tuple[str, int], Any] = {}

    def get_stored(self, table: str, start: int, rows: Any) -> Any:
        """Return the stored values at the base version of the keys of these rows, null where there is none.

        ``rows`` is a record batch, of which ``g`` and ``k`` are used. Raises: as ``Store.get_stored``, and
        as ``Log.read``. CorruptError: a frame is not what the manifest says.
        """
        if not self.base_version:
            return pa.nulls(len(rows), pa.binary())
        if not self._in_flight.versions:
            return self._stored(table, start, rows, self.base_version)
        values = self._of_frames(table, start, rows)
        missing = pc.is_null(values)
        missed = rows.filter(missing)
        if not len(missed):
            return values
        return pc.replace_with_mask(values, missing, self._of_store(table, start, missed))

    def _stored(self, table: str, start: int, rows: Any, version: int) -> Any:
        read_at = ReadAt(table, version, start, self._stride(table))
        return self.store.get_stored(read_at, rows["k"].to_pylist())

    def _of_store(self, table: str, start: int, rows: Any) -> Any:
        """Read keys that no version in flight changed, at a version that is visible."""
        while start <= self._read_at:
            try:
                return self._stored(table, start, rows, self._read_at)
            except SnapshotExpiredError:  # retired meanwhile, since later ones are visible
                visible = min(self.base_version, self.store.pointer().visible)
                if visible <= self._read_at:
                    raise
                self._read_at = visible
        return pa.nulls(len(rows), pa.binary())

    def _of_frames(self, table: str, start: int, rows: Any) -> Any:
        if self._changes is None:
            self._changes = self._read_frames()
        if (table, start) not in self._newest:
            batches = [batch for version, batch in self._changes.get(table, ()) if version >= start]
            self._newest[table, start] = newest([_NOTHING, *batches])
        newest_rows = self._newest[table, start]
        keys = rows["k"].cast(pa.large_binary())
        answers = Answers(places_of(rows["g"].to_numpy(), keys), keys)
        if len(newest_rows):
            answers.look_in_rows(newest_rows)
        return answers.values()

    def _read_frames(self) -> dict[str, list[tuple[int, Any]]]:
        """Read the changes of this task's key groups: by table, with their versions, the oldest first."""
        assert self._log is not None, "versions in flight are read from a log"
        changes: dict[str, list[tuple[int, Any]]] = {}
        for table, version, batch in read_changes(self._log(), self._in_flight.versions, self._groups):
            changes.setdefault(table, []).append((version, batch))
        return changes


def read_changes(
    log: Blobs, versions: Sequence[VersionFrames], groups: range
) -> Iterator[tuple[str, int, Any]]:
    """Yield (table, version, rows of a cache) of the changes of these key groups, the oldest version first.

    Raises: as ``Log.read``. CorruptError: a frame is not what its manifest says, or is missing.
    """
    frames = {ref.address: (one, ref) for one in versions for ref in one.frames if touches(ref, groups)}
    decoded: list[tuple[VersionFrames, list[Run]]] = []
    for blob in log.read(list(frames)) if frames else ():  # in any order
        one, ref = frames.pop(blob.address)
        where = f"{log.where}, version {one.version}, frame at {blob.address}"
        runs = decode_frame(blob.content, ref, one.attempt, where)
        decoded.append((one, [run for run in runs if run.group in groups]))
    if frames:
        msg = f"{log.where}: the log returned nothing for {', '.join(frames)}; {MEND}"
        raise CorruptError(msg)
    for one, runs in sorted(decoded, key=lambda each: each[0].version):
        for table in one.tables:
            if mine := [run for run in runs if run.table == table]:
                yield table, one.version, _rows_of(mine)


def _rows_of(runs: Sequence[Run]) -> Any:
    """Return the rows of a cache for runs of one table."""
    keys = pa.concat_arrays([run.keys for run in runs]).cast(pa.large_binary())
    lengths = [len(run.keys) for run in runs]
    groups = np.repeat(np.array([run.group for run in runs], np.int32), lengths)
    return rows_of(places_of(groups, keys), keys, pa.concat_arrays([run.values for run in runs]))
