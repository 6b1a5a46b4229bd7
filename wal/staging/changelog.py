"""One task's change-log: Arrow batches in, frames to the log, an ack out.

The same code runs in a Spark task and in a driver without Spark. It streams: it holds one batch,
the rows of one unfinished frame, and the index (I11). No Python runs per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.base import failpoints
from tidegate.errors import BadRecordError, FunctionError
from tidegate.wal.frame import FrameHeader, encode_frame, frame_ref
from tidegate.wal.record import FrameRef
from tidegate.wal.staging.acks import Ack, Refusal
from tidegate.wal.staging.expiry import add_expiry
from tidegate.wal.staging.last_per_key import Superseded, last_per_key
from tidegate.wal.staging.quarantine import accepted
from tidegate.wal.staging.spec import CHANGES, StageSpec
from tidegate.wal.staging.validate import refused

ROW_BYTES = 8
"""The bytes that Arrow adds to a row's key and value: two 32-bit offsets."""

Merge = Callable[[Any], Iterable[Any]]
"""Replaces values of a batch of changes (one row per key) after reading state. Yields parts as they
are ready.
"""


class Staging(Protocol):
    """The part of a log that a task needs."""

    def stage(self, segment: str, blobs: Iterable[bytes]) -> list[str]:
        """See ``Log.stage``."""
        ...


Watch = Callable[[Any], None]
"""Called with each batch of changes before it is cut into frames."""


def stage_task(  # noqa: PLR0913 - each stage of the pipeline has its own
    batches: Iterable[Any],
    spec: StageSpec,
    log: Staging,
    *,
    task: int,
    task_attempt: str,
    host: str,
    merge: Merge | None = None,
    watch: Watch | None = None,
    superseded: Superseded | None = None,
) -> Ack:
    """Write one task's changes to the log and return its ack, once every frame is durable (I3).

    ``batches`` iterates record batches of ``CHANGES``, ordered by key group and table, each key's
    changes adjacent: the last one wins. Or they are sorted by place alone, with the extra columns
    by which ``last_per_key`` orders them. A frame's rows are sorted by key.

    Raises: errors of the log. A bad row does not raise: it is returned as the ack's refusal, so
    that Spark does not retry work that cannot succeed.
    """
    refs: list[FrameRef] = []

    def blobs() -> Iterator[bytes]:
        changes = last_per_key(accepted(as_changes(batches), spec), superseded)
        if merge is not None:
            # The output of a merge is checked again: a null or a value over its limit must not be
            # decided. A merge may leave rows out, even all of a batch: they change nothing.
            merged = chain.from_iterable(map(merge, changes))
            changes = refused(filter(len, merged), spec)
        changes = add_expiry(changes, spec)
        for header, keys, values in cut(watched(changes, watch) if watch else changes, spec):
            content = encode_frame(header, keys, values)
            refs.append(frame_ref("", content, header))
            yield content

    failpoints.hit("stage.before_write")
    try:
        addresses = log.stage(f"{spec.attempt}-{task}-{task_attempt}", blobs())
    except (BadRecordError, FunctionError) as error:
        message = str(error)  # a function's error names the batch itself
        refusal = Refusal(
            type(error).__name__, message if spec.batch in message else f"{spec.batch}, {message}"
        )
        return Ack(spec.attempt, task, task_attempt, host, (), 0, refusal)
    frames = tuple(
        msgspec.structs.replace(ref, address=address) for address, ref in zip(addresses, refs, strict=True)
    )
    failpoints.hit("stage.before_ack")
    return Ack(spec.attempt, task, task_attempt, host, frames, sum(ref.changes for ref in frames))


# -- the stages of the pipeline ---------------------------------------------------------------


def as_changes(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield non-empty batches with the columns of ``CHANGES`` and any columns that order them."""
    for batch in batches:
        if batch.num_rows:
            yield batch if batch.schema == CHANGES else _cast(batch)


def _cast(batch: Any) -> Any:
    columns = {field.name: batch[field.name].cast(field.type) for field in CHANGES}
    columns |= {name: batch[name] for name in batch.schema.names if name not in columns}
    return pa.record_batch(columns)


def watched(batches: Iterable[Any], watch: Watch) -> Iterator[Any]:
    """Yield the batches unchanged, calling ``watch`` on each first."""
    for batch in batches:
        watch(batch)
        yield batch


def cut(batches: Iterable[Any], spec: StageSpec) -> Iterator[tuple[FrameHeader, Any, Any]]:
    """Cut into frames of about ``frame_bytes``: header, keys, values. A larger row is a frame by itself."""
    pieces: list[Any] = []
    held_bytes = 0
    for batch in batches:
        sizes = pc.add(pc.binary_length(batch["k"]), pc.binary_length(batch["v"])).to_numpy()
        ends = np.cumsum(sizes.astype(np.int64) + ROW_BYTES)
        start, base = 0, 0
        while start < batch.num_rows:
            room = max(spec.frame_bytes - held_bytes, 0)
            end = int(np.searchsorted(ends, base + room, side="right"))
            if end == start and held_bytes == 0:
                end = start + 1
            if end > start:
                pieces.append(batch.slice(start, end - start))
                held_bytes += int(ends[end - 1]) - base
                start, base = end, int(ends[end - 1])
            if start < batch.num_rows:
                yield _frame(pieces, spec)
                pieces, held_bytes = [], 0
    if pieces:
        yield _frame(pieces, spec)


def _frame(pieces: list[Any], spec: StageSpec) -> tuple[FrameHeader, Any, Any]:
    rows = pa.concat_batches(pieces) if len(pieces) > 1 else pieces[0]
    rows = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in "gtk"]))
    groups, tables = rows["g"].to_numpy(), rows["t"].to_numpy()
    starts = np.flatnonzero((np.diff(groups) != 0) | (np.diff(tables) != 0)) + 1
    starts = np.concatenate(([0], starts))
    header = FrameHeader(
        spec.namespace,
        spec.attempt,
        spec.tables,
        tuple(groups[starts].tolist()),
        tuple(tables[starts].tolist()),
        tuple(np.diff(np.append(starts, rows.num_rows)).tolist()),
    )
    return header, rows["k"], rows["v"]
