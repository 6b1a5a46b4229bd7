"""The rows of a stream's versions as its frames hold them, byte for byte."""

from __future__ import annotations

from typing import Any

from tidegate.committers.apply.apply import read_manifest
from tidegate.wal.frame import decode_frame
from tidegate.wal.staging.quarantine import TABLE

Frames = dict[str, list[tuple[int, bytes, bytes | None]]]
"""By table: key group, key and value of each row, sorted."""


def frames_of(log: Any, version: Any) -> tuple[int, Frames]:
    """Return how many tasks staged a decided version, and its rows."""
    manifest = read_manifest(log, version)
    refs = {ref.address: ref for ref in manifest.frames()}
    rows: Frames = {}
    for blob in log.read(list(refs)):
        for run in decode_frame(blob.content, refs[blob.address], version.attempt, "here"):
            # A refused row's id names the attempt.
            keys = [b""] * len(run.keys) if run.table == TABLE else run.keys.to_pylist()
            groups = [run.group] * len(keys)
            rows.setdefault(run.table, []).extend(zip(groups, keys, run.values.to_pylist(), strict=True))
    (sink,) = (parts["sink"] for parts in manifest.topology.values())
    return sink.parallelism, {table: sorted(of) for table, of in rows.items()}
