"""The steps of a rekey: begin, copy, follow; once no query runs, move, follow, compare, the last version.

Each step may be interrupted anywhere and repeated. Nothing is written into the source before it is moved: an
Adopted of a lineage that no query has ends it durably, even if its query is started again. The copy refuses
queries until its last version, which makes it whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidegate.base import failpoints
from tidegate.committers.background.pin import VersionPin
from tidegate.committers.barrier import value_bytes_max
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator, OpenRequest
from tidegate.committers.exports.dealt_rows import TableRows
from tidegate.committers.opening.lifecycle import Lifecycle, Side, ask, lifecycle_of, refuse, shown_in
from tidegate.committers.opening.open import open_namespace, refuse_without_log
from tidegate.committers.opening.rekeyed import Moved, Source, is_whole, moved_from
from tidegate.committers.repair.companions import queue_rows
from tidegate.committers.steps.append import append_adopted
from tidegate.committers.steps.decided_versions import RetirementBacklog, decided_versions
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.transfer.compare import VersionOf, compare
from tidegate.committers.transfer.rekey.begin import begin, known_source, makes_again
from tidegate.committers.transfer.rekey.versions import (
    BUCKETS_OF_COPY,
    copy_rows,
    dealt,
    follow_version,
    without_queues,
)
from tidegate.errors import ConfigError, SnapshotExpiredError, WalGapError
from tidegate.keys.groups import check_key_groups
from tidegate.wal.fold import recent_version
from tidegate.wal.manifest import TableChange
from tidegate.wal.record import DecidedVersion
from tidegate.wal.staging.own_tables import QUEUE_SCHEMA, queues_of

COMMAND = "tidegate rekey"
SOURCE, COPY = "rekey", "rekey --to"
"""The rows of ``lifecycle.COMMANDS`` of the two namespaces."""
Report = Callable[[int, int], None]
"""Called with a version of the source that the copy has now, and how many visible ones it lacks."""


class Followed(NamedTuple):
    """The progress of a copy. ``copied``: the source's version that it holds; ``behind``: those it lacks."""

    source: Source
    copied: int
    behind: int


def follow(old: Coordinator, new: Coordinator, report: Report = lambda _, __: None) -> Followed:
    """Begin the copy unless it is begun, copy rows, and follow until it has the source's visible version.

    It ends as well when it falls behind while it follows: when more versions became visible than it copied.
    The new driver is not open yet; the old one is never opened, and its query may run. Durable: on return
    the copied versions are in the new log, and visible in the primary. Repeatable: it continues where an
    earlier one ended, wherever it was killed. Raises: ConfigError: the new namespace is another one, or the
    source was restored. SnapshotExpiredError, WalGapError: the copy cannot follow any
    more, the message names the way.
    """
    old.decisions.catch_up()
    new.decisions.catch_up()
    ask(old, SOURCE, to=new.endpoints.namespace)
    source = _copy(old, new)
    backlog = RetirementBacklog(new.log)
    retired = 0
    while True:
        visible = old.store.pointer().visible  # first: the log has every version that is visible by now
        old.decisions.catch_up()
        copied = _copied(new, source)
        behind = visible - copied
        for decided in _versions(old, new, copied + 1, visible):
            _follow_one(old, new, decided)
            retired = retire_up_to(
                new.log, new.store, new.folded, new.options, lambda: False, retired, backlog=backlog
            )
            failpoints.hit("rekey.after_version")
            report(decided.version, visible - decided.version)
        now = old.store.pointer().visible
        if now - visible >= max(behind, 1) or now == visible:
            return Followed(source, visible, now - visible)


def finish(old: Coordinator, new: Coordinator, source: Source, report: Report) -> dict[str, int]:
    """Move the source, follow it to its end, compare both, and make the copy whole; the rows by table.

    The copy has followed before, and is not whole; no query of the source runs. From the move on no
    driver writes into the source. Durable: on
    return a query may continue in the copy with the source's checkpoint. Repeatable: yes. Raises:
    FencedError: a query of the source was started meanwhile. CorruptError: both differ. Otherwise as
    ``follow``.
    """
    ask(old, SOURCE, to=new.endpoints.namespace)
    lineage = _move(old, new.endpoints.namespace)
    failpoints.hit("rekey.after_move")
    follow(old, new, report)
    if lineage and lineage != new.folded.lineage:
        append_adopted(new.decisions, lineage, COMMAND)
    open_namespace(old, None, command="recover")  # an adopt from now on fences the copy, which is open
    if moved_from(old.folded) is None:
        raise ConfigError(
            f"namespace {old.endpoints.namespace} was taken back by an adopt meanwhile, and the copy was not"
            " made whole: run this command again to move it"
        )
    last, copied = old.folded.last_version, new.folded.last_version
    pins = [VersionPin(c.store, version, new.clock, "rekey") for c, version in ((old, last), (new, copied))]

    def keep() -> None:
        for pin in pins:
            pin.keep()

    try:
        source_last, copy_last = (
            VersionOf(
                c.endpoints.namespace,
                c.store,
                without_queues(*c.store.catalog(version, version)),
                c.folded.key_groups,
            )
            for c, version in ((old, last), (new, copied))
        )
        rows = compare(source_last, copy_last, keep, lambda: makes_again(old, new))
        _make_whole(new, source, copied)
    finally:
        for pin in pins:
            pin.give_back()
    failpoints.hit("rekey.after_whole")
    is_finished(old, new)  # again: the source may have been taken back meanwhile
    return rows


def is_finished(old: Coordinator, new: Coordinator) -> bool:
    """Whether the copy is whole, so that nothing is left but the aliases.

    Raises: ConfigError: as ``known_source``; or it is whole and lacks versions of its source.
    """
    old.decisions.catch_up()
    new.decisions.catch_up()
    ask(old, SOURCE, to=new.endpoints.namespace)
    source = known_source(old, new)
    if source is not None:
        refuse(COPY, new.endpoints.namespace, Side(new.folded), Side(old.folded))
    return source is not None and is_whole(new.folded, source)


def _copy(old: Coordinator, new: Coordinator) -> Source:
    """Begin the copy and open it; make its first version unless it has one."""
    source, name = known_source(old, new), new.endpoints.namespace
    version = old.store.pointer().visible if source is None else source.version
    if not version:
        raise ConfigError(
            f"namespace {old.endpoints.namespace} has no visible version, so there is nothing to copy: start"
            f" the query with namespace={name!r} and another key_groups instead"
        )
    if source is None:
        _refuse_lost_log(old, new)
    elif new.folded.last_version:
        new.request = OpenRequest(is_copying=True)
        open_namespace(new, None, command=COPY)
        return source
    try:
        pin = VersionPin(old.store, version, new.clock, "rekey")
        try:
            if source is None:
                source = begin(old, new, version, _wanted(old, new))
                failpoints.hit("rekey.after_first_record")
            new.request = OpenRequest(is_copying=True)
            open_namespace(new, None, command=COPY)
            if not new.folded.last_version:  # else an earlier run had decided it
                copy_rows(old, new, source, pin)
        finally:
            pin.give_back()
    except (SnapshotExpiredError, WalGapError) as error:
        raise type(error)(f"{error}; {makes_again(old, new)}") from error
    failpoints.hit("rekey.after_copy")
    return source


def _refuse_lost_log(old: Coordinator, new: Coordinator) -> None:
    """Refuse a copy that a store has, while its log has nothing. Raises: WalGapError."""
    if lifecycle_of(Side(None, shown_in(new.store))) is Lifecycle.UNFINISHED:
        raise WalGapError(
            f"{new.store.where} shows an unfinished copy, and the log {new.log.where} has nothing of it:"
            f" check --wal. Nothing was written. If that log is gone: {makes_again(old, new)}"
        )
    refuse_without_log(new)


def _wanted(old: Coordinator, new: Coordinator) -> int:
    key_groups, has = new.options.key_groups, old.folded.key_groups
    if key_groups is None or key_groups == has:
        raise ConfigError(
            f"namespace {old.endpoints.namespace} has {has} key groups: give another number with --key-groups"
        )
    return check_key_groups(key_groups)


def _copied(new: Coordinator, source: Source) -> int:
    """Return the version of the source that the copy holds: it has one version for each."""
    return source.version + new.folded.last_version - 1


def _versions(old: Coordinator, new: Coordinator, first: int, last: int) -> list[DecidedVersion]:
    """List the decided versions of the source from ``first`` to ``last``.

    Raises: ConfigError: the copy's last version is no copy of the one before. WalGapError: one is gone.
    """
    before, copy = recent_version(old.folded, first - 1), recent_version(new.folded, new.folded.last_version)
    ahead = first - 1 > old.folded.last_version
    if copy and new.folded.last_version > 1 and (ahead or (before and before.origin != copy.origin)):
        raise ConfigError(
            f"version {copy.version} of namespace {new.endpoints.namespace} is no copy of version"
            f" {first - 1} of namespace {old.endpoints.namespace}: the log lost decisions, or somebody"
            f" wrote into the copy; {makes_again(old, new)}"
        )
    versions = [one for one in decided_versions(old.log, old.folded, first) if one.version <= last]
    if [one.version for one in versions] != list(range(first, last + 1)):
        raise WalGapError(
            f"{old.log.where} no longer has the decision of version {first}; {makes_again(old, new)}"
        )
    return versions


def _follow_one(old: Coordinator, new: Coordinator, decided: DecidedVersion) -> None:
    try:
        follow_version(old, new, decided)
    except WalGapError as error:
        raise WalGapError(
            f"version {decided.version} of namespace {old.endpoints.namespace} cannot be followed: {error};"
            f" {makes_again(old, new)}"
        ) from error


def _move(old: Coordinator, to: str) -> str:
    """Fence the source for good, with all decided versions visible; return the lineage that it followed."""
    moved = moved_from(old.folded)
    if moved is None:
        open_namespace(old, None, command=SOURCE)
        moved = Moved(to, old.folded.lineage or "")
        append_adopted(old.decisions, moved.as_lineage(), COMMAND)
    return moved.lineage


def _make_whole(new: Coordinator, source: Source, version: int) -> None:
    """Make the last version of the copy, with the queues of timeouts, after which queries may open it."""
    (entry,) = new.store.catalog(version, version)
    queues, key_groups = queues_of(entry.tables), new.folded.key_groups
    tables = dict.fromkeys(sorted(queues), TableChange(QUEUE_SCHEMA, stride=1, follows=True))
    buckets = min(BUCKETS_OF_COPY, key_groups) if queues else 1

    def rows(names: tuple[str, ...]) -> Iterator[TableRows]:
        for index, queue in enumerate(names):
            for batch in queue_rows(new.store, entry, queues[queue], key_groups, value_bytes_max(new)):
                yield TableRows(index, batch["key"], batch["value"])

    with dealt(new, source.last, tables, rows, buckets) as barrier:
        commit(new, barrier)
