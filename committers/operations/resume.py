"""The place at which a lost checkpoint's query continues, read from the log; a checkpoint made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.base.source_offsets import SourceKind, kind_of, sources_in
from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.decision_log import DecisionLog
from tidegate.committers.steps.decided_versions import LastBatch
from tidegate.errors import ConfigError, WalGapError
from tidegate.wal.catch_up import source_offsets_of
from tidegate.wal.fold import last_followed
from tidegate.wal.record import BatchOrigin, RestoreOrigin

MANIFESTS_MAX = 50
"""The number of last batches whose manifests are searched for state that they continued."""
OFFSETS_VERSION = "v1"
"""The first line of Spark's files in ``offsets`` and ``commits``."""
WHOLE_POSITIONS = frozenset({SourceKind.KAFKA, SourceKind.TIDEGATE})
"""The sources whose offset alone is the position, so that a checkpoint can be made of it."""


class Continued(NamedTuple):
    """The calls that continued tables from their state, in the last ``batches`` batches.

    ``others`` are the namespace's tables without such a call there.
    """

    calls: dict[str, str]
    others: tuple[str, ...]
    batches: int


def last_batch(decisions: DecisionLog) -> LastBatch | None:
    """Return the batch that the next one follows; None: no batch is among the recent versions.

    After a restore with ``--reprocess`` it is the last one that the restored state contains.
    """
    state = decisions.folded
    decided = last_followed(state)
    if decided is None or not isinstance(decided.origin, BatchOrigin):
        return None
    offsets = source_offsets_of(decisions.log, decided)
    return LastBatch(decided.origin, decided.version, decided.decided_at_us, offsets)


def continued_tables(decisions: DecisionLog) -> Continued:
    """Read from the manifests of the last batches which tables continue from their state, and how.

    Calls on a table before its drop do not count, unless a restore may have brought the table back.
    """
    state = decisions.folded
    calls: dict[str, str] = {}
    left = set(state.tables)
    restored = max(
        (each.version for each in state.recent if isinstance(each.origin, RestoreOrigin)), default=0
    )
    batches = [each for each in reversed(state.recent) if isinstance(each.origin, BatchOrigin)]
    searched = 0
    for decided in batches[:MANIFESTS_MAX]:
        try:
            manifest = read_manifest(decisions.log, decided)
        except WalGapError:
            break  # older ones were trimmed, too
        searched += 1
        state_calls = manifest.state_calls or {}
        calls = {table: call for table, call in state_calls.items() if table in left} | calls
        if decided.version > restored:
            left.difference_update(manifest.dropped or ())
    others = tuple(sorted(name for name in state.tables if name not in calls and not name.startswith("_")))
    return Continued(calls, others, searched)


def rebuild_checkpoint(decisions: DecisionLog, folder: Path) -> LastBatch:
    """Make a checkpoint in a new or empty folder, with which the query continues after its last batch.

    Spark takes the query's id from ``metadata``. It reads the offsets of the last batch and of the one
    before, and takes the last as done since ``commits`` has it. The offsets of the batch before are never
    used for a batch that is done, so they are the same here. Raises: ConfigError: nothing was written, since
    the log does not have what the checkpoint needs, or a source's position is more than its offset.
    """
    state, last = decisions.folded, last_batch(decisions)
    name = decisions.namespace
    if last is None:
        raise ConfigError(
            f"the log of namespace {name} has no batch of a query among its last versions, so there is no"
            " checkpoint to make: start the query on an empty folder"
        )
    if last.origin.lineage != state.lineage:
        raise ConfigError(
            f"namespace {name} follows query {state.lineage}, which has decided no batch yet; the last batch"
            f" is of query {last.origin.lineage}: `tidegate adopt --lineage {last.origin.lineage}` lets that"
            " one continue"
        )
    sources = sources_in(last.source_offsets)
    unfit = [
        f"source {number} is {kind_of(offset).value}"
        for number, offset in enumerate(sources or ())
        if offset is not None and kind_of(offset) not in WHOLE_POSITIONS
    ]
    if not sources or unfit:
        why = "; ".join(unfit) or "the log no longer has the offsets of the last batch"
        raise ConfigError(
            f"no checkpoint can be made for query {last.origin.lineage}: {why}; nothing was written."
            " `tidegate adopt --checkpoint FOLDER` shows, before it asks, how each source continues on a new"
            " checkpoint"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder: give a new one; nothing was written")
    _write(folder, last, sources)
    return last


def _write(folder: Path, last: LastBatch, sources: list[Any]) -> None:
    batch, decided_ms = last.origin.batch_id, last.decided_at_us // 1000
    of_batch = {"batchWatermarkMs": 0, "batchTimestampMs": decided_ms, "conf": {}}
    lines = [OFFSETS_VERSION, _json(of_batch), *("-" if each is None else _json(each) for each in sources)]
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number in {max(batch - 1, 0), batch}:
        (folder / "offsets" / str(number)).write_text("\n".join(lines))
    (folder / "commits" / str(batch)).write_text(f"{OFFSETS_VERSION}\n{_json({'nextBatchWatermarkMs': 0})}")
    # The last file: without it Spark would begin a new query, with another id, and be refused.
    (folder / "metadata").write_text(_json({"id": last.origin.lineage}))


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
