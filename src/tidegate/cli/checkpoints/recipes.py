"""The effect of a new checkpoint on each table, and the way in which each kind of source continues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tidegate.base.source_offsets import SourceKind, kind_of, sources_in
from tidegate.committers.operations.resume import Continued
from tidegate.committers.steps.decided_versions import LastBatch
from tidegate.sinks.rules.version_ref import VersionRef

AGAIN = {
    "reduce": "sum and count add the rows a second time; last goes back to older rows",
    "update": "its function gets the rows a second time, with the state that contains them already",
    "local_state": "its function gets the rows a second time, with the list that contains them already",
    "patch": "columns go back to older rows, until the source is read to its end",
    "apply_changes": "older changes are dropped; a key comes back whose delete is forgotten (ttl, 7 days)",
}
"""The effect of rows that are read again, by the call that continues a table from its state."""
OTHERS = "keys go back to older rows, until the source is read to its end"
DELTA_WHOLE = (-1, -100)
"""The index of a Delta offset at the start of a table version: nothing of that version was read."""
ANY_SOURCE = (
    "skip the rows that were read, by a column of theirs, in the function of foreachBatch; or write a new"
    " namespace over the whole input, then `tidegate alias set ALIAS --namespace NAME`"
)


def effects(continued: Continued) -> Iterator[tuple[str, str, str]]:
    """Yield each table, the call that continues it, and what rows that are read again do to it."""
    for table, call in sorted(continued.calls.items()):
        yield table, call, AGAIN.get(call, "it gets the rows a second time")
    for table in continued.others:
        yield table, "-", OTHERS


def removal(first: int, final: int, checkpoint: str = "CHECKPOINT") -> str:
    """Return the bash command that sets a checkpoint back: batches ``first`` to ``final`` are made again."""
    numbers = f"{{{first}..{final}}}"
    files = " ".join(f"{folder}/{numbers} {folder}/.{numbers}.crc" for folder in ("offsets", "commits"))
    return f"cd {checkpoint} && rm -f {files}"


def starts(last: LastBatch | None) -> list[str]:
    """Return, for each source of the query, how a new checkpoint continues after the last batch."""
    sources = sources_in(last.source_offsets) if last is not None else None
    if sources is None:
        return [f"the log has no offsets of the last batch: {ANY_SOURCE}"]
    return [f"source {number}: {_start(offset)}" for number, offset in enumerate(sources)]


def _start(offset: Any) -> str:
    if offset is None:
        return "it had read nothing yet"
    match kind_of(offset):
        case SourceKind.KAFKA:
            text = json.dumps(offset, separators=(",", ":"))
            return (
                f'Kafka: .option("startingOffsets", {text!r}); a partition that was added since:'
                ' give it too, as "P":-2'
            )
        case SourceKind.TIDEGATE:
            ref = VersionRef.of(offset, "the source's offset")
            start = f'"{ref}"' if ref.has_history else str(ref.version + 1)
            return f'a stream of tidegate\'s: .option("startingVersion", {start})'
        case SourceKind.DELTA:
            return _start_of_delta(offset)
        case SourceKind.FILES:
            return (
                f"files, up to {offset['logOffset']} of Spark's own count, which names no file. Spark has no"
                " option to start there: move the files that were read out of the folder, if you know them;"
                f" or {ANY_SOURCE}"
            )
        case SourceKind.NUMBER:
            return "a source that counts, such as rate: it makes new rows, and reads none again"
        case SourceKind.OTHER:
            return f"its offset is {json.dumps(offset)}: if its options cannot start there, {ANY_SOURCE}"


def _start_of_delta(offset: dict[str, Any]) -> str:
    version = offset["reservoirVersion"]
    whole = offset.get("index", DELTA_WHOLE[0]) in DELTA_WHOLE
    if whole and not offset.get("isStartingVersion", False):
        return (
            f'Delta: .option("startingVersion", {version}); Delta refuses it until the table has'
            " that version: wait for its next write"
        )
    return f"Delta: version {version} of the table was read in part, and no option starts there: {ANY_SOURCE}"
