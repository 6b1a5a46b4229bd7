"""The one pure function from the decision log to its state.

Every reader of the log uses it: a log only iterates records. ``why_void`` is the column "valid if
and only if" of docs/protocol.md, ``_effect`` its column "effect". A void record is counted and
changes nothing. A Summary changes nothing either. Validity depends only on the records before: a
record that one reader finds valid is valid for every reader, permanently.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tidegate.errors import CorruptError, LineageError
from tidegate.wal.record import (
    Adopted,
    AnyRecord,
    BatchOrigin,
    Decided,
    DecidedVersion,
    Folded,
    Genesis,
    ImportOrigin,
    LoadOrigin,
    Open,
    Origin,
    RestoreOrigin,
    Rewound,
    StoreAdded,
    StoreRemoved,
    Summary,
    decode_record,
    digest_after,
    encode_record,
)
from tidegate.wal.tokens import Tokens

RECENT_MAX = 1_000
"""The number of latest decided versions (and so fingerprints) that are kept."""
SUMMARIES_MAX = 1_000
"""The number of latest Summaries whose positions a view keeps."""


class Entry(NamedTuple):
    """One record as a log iterates it: its position, the next record's position, its bytes."""

    position: int
    next_position: int
    content: bytes


class SummaryPlace(NamedTuple):
    """The position of a valid Summary and what is decided before it: a log may be cut there.

    ``version`` is the last version decided before it, ``decided_at_us`` that version's time, and
    ``digest`` the digest of the fold, which a Summary does not change.
    """

    position: int
    version: int
    decided_at_us: int
    digest: str


class View(NamedTuple):
    """A reader's progress in the decision log: the state folded so far, and the position to resume at.

    ``summaries`` are the valid Summaries among the records read, oldest first, at most the last
    1,000.
    """

    state: Folded | None = None
    position: int = 0
    void: int = 0
    void_reasons: tuple[str, ...] = ()
    summaries: tuple[SummaryPlace, ...] = ()


def fold_all(view: View, entries: Iterable[Entry], where: str = "decision log") -> View:
    """Return the view after these entries.

    Raises: CorruptError or ConfigError when a record cannot be read. CorruptError also when the
    very first record cannot start a log: the records before it are unknown (I10).
    """
    for entry in entries:
        record = decode_record(entry.content, f"{where}, position {entry.position}")
        reason = why_void(view.state, record)
        if reason is None:
            state = fold(view.state, record, entry.content)
            view = view._replace(state=state, position=entry.next_position)
            if isinstance(record, Summary):
                made = record.state
                place = SummaryPlace(entry.position, made.last_version, made.decided_at_us, made.digest)
                view = view._replace(summaries=(*view.summaries[-(SUMMARIES_MAX - 1) :], place))
        elif view.state is None:
            msg = (
                f"{where}, position {entry.position}: the log starts with a {type(record).__name__} that"
                f" cannot start one ({reason}): `tidegate relog` saves what the store shows in a new"
                " namespace; or restore the log from a copy; where it was made just now, a driver of the log"
                " before it wrote first: stop that one, run `tidegate drop --force --namespace NAME` for this"
                " log and start again"
            )
            raise CorruptError(msg)
        else:
            reasons = (*view.void_reasons[-9:], f"position {entry.position}: {reason}")
            view = view._replace(position=entry.next_position, void=view.void + 1, void_reasons=reasons)
    return view


def fold(state: Folded | None, record: AnyRecord, content: bytes | None = None) -> Folded | None:
    """Return the state after one more record, or the same state when the record is void.

    A Summary only repeats the state, so it changes nothing, the digest included. Lost, late or
    duplicated, it makes no other record void, and a log that starts with it folds to the same state
    as the whole log.
    """
    if why_void(state, record) is not None:
        return state
    if isinstance(record, Summary):
        return record.state if state is None else state
    content = encode_record(record) if content is None else content
    return _effect(state, record, digest_after(state.digest if state else "", content))


def why_void(state: Folded | None, record: AnyRecord) -> str | None:
    """Return why the record is void after ``state``, or None when it is valid."""
    if state is None:
        return _why_not_first(record)
    if record.namespace != state.namespace:
        return f"it is of namespace {record.namespace}"
    match record:
        case Genesis():
            return "the namespace has started already"
        case Open():
            return _why_open_void(state, record)
        case Summary():
            return None if record.state == state else "it is not the fold at its place"
        case _ if state.epoch == 0:
            return "no driver has opened the namespace yet"
        case _ if record.epoch != state.epoch or record.writer != state.writer:
            return f"its epoch {record.epoch} is not the current one, {state.epoch}"
        case Decided():
            return _why_decided_void(state, record)
        case _ if record.prev_digest != state.digest:
            return "its prev_digest does not fit"  # so a late copy of any record is void (T17)
        case Rewound() if record.lineage != state.lineage or record.generation != state.generation + 1:
            return "it does not follow the current generation"
        case _:
            return None


def _why_not_first(record: AnyRecord) -> str | None:
    """A log starts with Genesis or, after a cut, with a Summary of a consistent state."""
    if isinstance(record, Genesis):
        return None
    if not isinstance(record, Summary):
        return "the log does not start with it"
    state, last = record.state, record.state.last_version
    if record.namespace != state.namespace or not state.digest:
        return f"its state is of namespace {state.namespace!r} with digest {state.digest!r}"
    versions = [decided.version for decided in state.recent]
    if versions != list(range(last - len(versions) + 1, last + 1)) or bool(versions) != (last > 0):
        return f"its recent versions do not lead up to its last version, {last}"
    return None


def _why_open_void(state: Folded, record: Open) -> str | None:
    if record.epoch <= state.epoch:
        return f"its epoch {record.epoch} is not above {state.epoch}"
    if state.lineage is None or state.last_version == 0 or record.lineage == state.lineage:
        return None
    return f"its lineage {record.lineage} is not the current one, {state.lineage}"


def _why_decided_void(state: Folded, record: Decided) -> str | None:
    if record.version != state.last_version + 1:
        return f"its version {record.version} does not follow {state.last_version}"
    if record.base_version != state.last_version:
        return f"its state was read at version {record.base_version}, not at {state.last_version}"
    if record.prev_digest != state.digest:
        return "its prev_digest does not fit"
    match record.origin:
        case BatchOrigin(lineage=lineage, generation=generation, batch_id=batch_id):
            if lineage != state.lineage or generation != state.generation:
                return f"its batch is of another lineage or generation than {state.lineage}"
            if state.last_batch is not None and (generation, batch_id) <= state.last_batch:
                return f"batch {batch_id} does not follow {state.last_batch[1]}"
            return None
        case RestoreOrigin(version=version):
            return None if 0 <= version <= state.last_version else f"version {version} was never made"
        case origin:
            known = once_key(origin) in Tokens.of(state.once)
            return f"{once_key(origin)} was decided already" if known else None


def _effect(state: Folded | None, record: AnyRecord, digest: str) -> Folded:
    if state is None:
        assert isinstance(record, Genesis), "why_void admits no other first record that has an effect"
        return Folded(record.namespace, record.name, record.key_groups, digest)
    match record:
        case Open(epoch=epoch, writer=writer, lineage=lineage):
            return msgspec.structs.replace(
                state,
                digest=digest,
                epoch=epoch,
                writer=writer,
                lineage=state.lineage if lineage is None else lineage,
            )
        case Decided():
            return _decide(state, record, digest)
        case Adopted(lineage=lineage):
            return msgspec.structs.replace(state, digest=digest, lineage=lineage)
        case Rewound(generation=generation):
            return msgspec.structs.replace(state, digest=digest, generation=generation)
        case StoreAdded(store=store):
            stores = tuple(sorted({*state.stores, store}))
            return msgspec.structs.replace(state, digest=digest, stores=stores)
        case StoreRemoved(store=store):
            stores = tuple(name for name in state.stores if name != store)
            return msgspec.structs.replace(state, digest=digest, stores=stores)
        case Genesis() | Summary():  # pragma: no cover - fold() has no other record here
            raise AssertionError(f"a {type(record).__name__} has no effect on a state")


def _decide(state: Folded, record: Decided, digest: str) -> Folded:
    decided = DecidedVersion(
        record.version,
        record.attempt,
        record.origin,
        record.base_version,
        record.manifest_address,
        record.manifest_digest,
        record.decided_at_us,
        digest,
    )
    batches, once = state.batches, state.once
    match record.origin:
        case BatchOrigin(lineage=lineage, generation=generation, batch_id=batch_id):
            batches = {**batches, lineage: (generation, batch_id)}
        case LoadOrigin() | ImportOrigin() as origin:
            once = Tokens.of(once).followed_by(once_key(origin))
        case _:
            pass
    return msgspec.structs.replace(
        state,
        digest=digest,
        last_version=record.version,
        batches=batches,
        once=once,
        decided_at_us=record.decided_at_us,
        tables=record.tables,
        dropped_at=record.version if record.dropped else state.dropped_at,
        recent=(*state.recent[-(RECENT_MAX - 1) :], decided),
    )


def once_key(origin: Origin) -> str:
    """Return the entry of ``once`` for an origin that may be decided only once."""
    match origin:
        case LoadOrigin(token=token):
            return f"load:{token}"
        case ImportOrigin(digest=digest):
            return f"import:{digest}"
        case _:
            msg = f"{origin} may be decided more than once"
            raise ValueError(msg)


# -- queries ----------------------------------------------------------------------------------


def recent_version(state: Folded, version: int) -> DecidedVersion | None:
    """Return a decided version, if it is among the recent ones."""
    index = version - (state.recent[0].version if state.recent else 1)
    return state.recent[index] if 0 <= index < len(state.recent) else None


def decided_for(state: Folded, origin: Origin) -> DecidedVersion | None:
    """Return the attempt that the fold gives for this origin (append rule 3), if any."""
    for decided in reversed(state.recent):
        if same_barrier(decided.origin, origin):
            return decided
    return None


def same_barrier(one: Origin, other: Origin) -> bool:
    """Return whether two origins are the same barrier. Fingerprints may differ (see ``replay_of``)."""
    if isinstance(one, BatchOrigin) and isinstance(other, BatchOrigin):
        return (one.lineage, one.generation, one.batch_id) == (
            other.lineage,
            other.generation,
            other.batch_id,
        )
    return one == other


def replay_of(state: Folded, origin: BatchOrigin) -> DecidedVersion | None:
    """Return the version that this batch already made, or None when the batch is new.

    Raises: LineageError when the batch is neither new nor the one that was decided. Either its
    source offsets differ (a checkpoint restored from an older copy was planned again), or it is
    older than the versions that are kept.
    """
    if state.last_batch is None or origin.generation > state.last_batch[0]:
        return _still_held(state, origin)
    if (origin.generation, origin.batch_id) > state.last_batch:
        return None
    decided = decided_for(state, origin)
    last = state.last_batch[1]
    advice = (
        "restore the checkpoint's newest copy; or make it again from the log, for Kafka sources: `tidegate"
        " rebuild-checkpoint FOLDER`; or, if this checkpoint is meant to take over, start the query from a"
        " new checkpoint folder and run `tidegate adopt --checkpoint FOLDER`, which shows how to start after"
        " the last batch; or use a new namespace"
    )
    if decided is None:
        msg = (
            f"batch {origin.batch_id} of query {origin.lineage} comes again, the last one decided is"
            f" {last}, and its version is no longer kept (the last {RECENT_MAX} versions"
            f" are): the checkpoint is too old; {advice}"
        )
        raise LineageError(msg)
    if isinstance(decided.origin, BatchOrigin) and decided.origin.fingerprint != origin.fingerprint:
        msg = (
            f"batch {origin.batch_id} of query {origin.lineage} was decided as version {decided.version}"
            f" from other source offsets (fingerprint {decided.origin.fingerprint}, now"
            f" {origin.fingerprint}): the checkpoint was restored from an older copy; {advice}"
        )
        raise LineageError(msg)
    return decided


def _still_held(state: Folded, origin: BatchOrigin) -> DecidedVersion | None:
    """Return, for the first batch after a Rewound, the version that made it, if the restored state
    has it (I2).

    Raises: LineageError when the state has it from other source offsets, or from before the recent versions.
    """
    last = last_batch_within(state, state.last_version, origin.lineage)
    if last is None or origin.batch_id > last.batch_id:
        return None
    decided = next(
        (
            decided
            for decided in reversed(state.recent)
            if isinstance(decided.origin, BatchOrigin)
            and decided.origin.generation <= last.generation
            and (decided.origin.lineage, decided.origin.batch_id) == (origin.lineage, origin.batch_id)
        ),
        None,
    )
    if (
        decided is None
        or not isinstance(decided.origin, BatchOrigin)
        or decided.origin.fingerprint != origin.fingerprint
    ):
        msg = (
            f"batch {origin.batch_id} of query {origin.lineage} comes again, and the restored state already"
            f" holds batches up to {last.batch_id}: the checkpoint was set back too far, or is another one;"
            f" set it back to right behind batch {last.batch_id}: `tidegate rebuild-checkpoint FOLDER` makes"
            " one there for Kafka and streams of tidegate's"
        )
        raise LineageError(msg)
    return decided


def undone_by(state: Folded, version: int) -> int | None:
    """Return the restore that has undone a version; None: the last version holds it, or that is unknown."""
    ancestor = undoing = state.last_version
    while ancestor > version and (decided := recent_version(state, ancestor)) is not None:
        if isinstance(decided.origin, RestoreOrigin):
            ancestor, undoing = decided.origin.version, ancestor
        else:
            ancestor -= 1
    return undoing if ancestor < version else None


def last_followed(state: Folded) -> DecidedVersion | None:
    """Return the version of the batch that the next one follows; None: it is not among the recent versions.

    After a Rewound that no batch has followed yet, it is the last one that the restored state contains.
    """
    if state.is_rewound:
        last_batch = last_batch_within(state, state.last_version)
        return None if last_batch is None else decided_for(state, last_batch)
    return next((each for each in reversed(state.recent) if isinstance(each.origin, BatchOrigin)), None)


def last_batch_within(state: Folded, version: int, lineage: str | None = None) -> BatchOrigin | None:
    """Return the last batch (of a lineage) whose changes a version holds.

    A restored version holds the changes of the version that it restores. None: no such batch is
    among the versions that are kept.
    """
    ancestor = version
    while (decided := recent_version(state, ancestor)) is not None:
        match decided.origin:
            case RestoreOrigin(version=restored):
                ancestor = restored
            case BatchOrigin() as origin if lineage in (None, origin.lineage):
                return origin
            case _:
                ancestor -= 1
    return None
