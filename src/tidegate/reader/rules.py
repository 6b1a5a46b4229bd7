"""The rules of all readers, in threads or in an event loop: checks, choices, errors. Pure."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable
from typing import Any

from tidegate.base.deadline import check_ends
from tidegate.base.source_offsets import Offsets, checked_offsets, passed
from tidegate.base.text import brief, counted, html_table, time_of
from tidegate.base.urls import redact
from tidegate.errors import (
    ConfigError,
    CorruptError,
    SnapshotExpiredError,
    StoreRemovedError,
    VersionRegressedError,
    WaitTimeoutError,
    proven_final,
)
from tidegate.keys.groups import EPOCH, is_time
from tidegate.sinks.aliases import Target
from tidegate.sinks.records import CatalogEntry, Identity, Pointer
from tidegate.sinks.rules.reads import being_filled
from tidegate.sinks.rules.removal import described, removal_in
from tidegate.sinks.rules.version_ref import Version, VersionRef, number_of
from tidegate.sinks.rules.visible import moment, no_version_yet
from tidegate.sinks.sqlite.discovery import has_instead
from tidegate.wal.record import (
    BatchOrigin,
    ImportOrigin,
    LoadOrigin,
    Origin,
)

LEASE_S = 60.0
"""The default time that a version stays pinned without a renewal from the snapshot's process."""
LEASE_MAX_S = 86_400.0
WAIT_FIRST_S, WAIT_MOST_S = 0.001, 0.05
LOOKS = 2
URL_MAX = 4_096
TRIES = 5
"""The number of tries of a read of the newest version, if that version is retired meanwhile."""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class VersionInfo:
    """A visible version: its origin, its times, and the number of its changes per table.

    ``batch`` is Spark's batch id, None when the version is not a micro-batch; ``origin`` describes
    it in words; ``parallelism`` is the number of tasks that staged it, None when the store does not have it.
    Times are UTC: ``decided_at`` by the writer's clock, ``published_at`` by the store's. ``dropped`` are the
    tables that the version dropped. ``digest`` covers all decisions up to it.
    """

    version: int
    batch: int | None
    origin: str
    decided_at: datetime.datetime
    published_at: datetime.datetime
    changes: dict[str, int]
    parallelism: int | None = None
    dropped: tuple[str, ...] = ()
    digest: str = ""

    def __repr__(self) -> str:
        decided, changes = time_of(self.decided_at), f"{sum(self.changes.values()):,} changes"
        return f"<VersionInfo of version {self.version}, {self.origin}, decided {decided}, {changes}>"

    def _repr_html_(self) -> str:
        return html_table(
            [
                *(("version", self.version), ("origin", self.origin)),
                *(("decided at", self.decided_at), ("published at", self.published_at)),
                *(("changes", counted(self.changes)), ("tasks", self.parallelism)),
                ("dropped", ", ".join(self.dropped) or None),
            ]
        )


def info_of(entry: CatalogEntry) -> VersionInfo:
    """Build a version's item of ``history``."""
    origin = entry.origin
    return VersionInfo(
        entry.version,
        origin.batch_id if isinstance(origin, BatchOrigin) else None,
        described_origin(origin),
        moment(entry.decided_at_us),
        moment(entry.published_at_us),
        dict(entry.changes),
        entry.tasks,
        entry.dropped or (),
        entry.digest,
    )


def described_origin(origin: Origin) -> str:
    """Describe the origin of a version, as ``history`` shows it."""
    match origin:
        case BatchOrigin(batch_id=batch_id):
            return f"batch {batch_id}"
        case LoadOrigin(token=token):
            return f"load {token}"
        case ImportOrigin(digest=digest):
            return f"import {digest}"
        case _:
            return f"restore of version {origin.version}"


# -- connecting -----------------------------------------------------------------------------------


def check_url(url: object, of: str = "store", example: str = "sqlite:///path") -> None:
    """Refuse a URL that is not text, or is longer than any server's. Raises: ConfigError."""
    if not isinstance(url, str):
        raise ConfigError(f"the {of}'s URL is {brief(url)}; it must be text, as in {example}")
    if len(url) > URL_MAX:
        raise ConfigError(
            f"the {of}'s URL has {len(url):,} characters; it must have {URL_MAX:,} at most, as in {example}"
        )


def check_table(table: object) -> None:
    """Refuse a table's name that is not text. Raises: ConfigError."""
    if not isinstance(table, str):
        raise ConfigError(f"the table's name is {brief(table)}; it must be text, as in gate.table('users')")


def tables_of(tables: object) -> list[str]:
    """List the names of tables that a caller gave; one may be a text alone. Raises: ConfigError."""
    names = (
        [tables] if isinstance(tables, str) else list(tables) if isinstance(tables, Iterable) else [tables]
    )
    for name in names:
        check_table(name)
    return sorted(set(names))


def checked_identity(identity: Identity | None, url: str, namespace: str) -> Identity:
    """Check the identity that a store returned. Raises: ConfigError: no namespace, or one of another name."""
    if identity is None:
        raise ConfigError(
            f"there is no namespace {brief(namespace)} in store {redact(url)}: check both; a query with"
            " tidegate's VersionedSink makes it at its first batch, and so does"
            f" `tidegate init --namespace {namespace} --store {redact(url)} --wal URL`; if it was here"
            " before, the store lost it, and `tidegate recover` rebuilds it"
            f"{has_instead(url, namespace)}"
        )
    if identity.name != namespace:
        raise ConfigError(
            f"in the place of namespace {brief(namespace)}, store {redact(url)} has namespace"
            f" {brief(identity.name)}: its folder was copied or renamed; rename it back, and read the"
            " namespace by its own name"
        )
    return identity


def checked_target(identity: Identity | None, where: str, target: Target) -> Identity:
    """Check an alias's target. Raises: ConfigError: it does not exist, or another namespace has its name."""
    if identity is None or identity.uuid != target.uuid:
        existing = "nothing" if identity is None else f"another one of that name ({brief(identity.uuid)})"
        raise ConfigError(
            f"{where}: an alias names namespace {brief(target.namespace)} ({brief(target.uuid)}), and"
            f" {existing} is here: set the alias again with `tidegate alias set ALIAS --namespace NAME`"
        )
    return checked_identity(identity, "", target.namespace)


def checked_alias(target: Target | None, where: str, alias: str) -> Target:
    """Check the target of an open gate's alias. Raises: ConfigError: the alias was dropped."""
    if target is None:
        raise ConfigError(
            f"{where}: there is no alias {brief(alias)} any more: set it again with `tidegate"
            f" alias set {alias} --namespace NAME`"
        )
    return target


# -- arguments ------------------------------------------------------------------------------------


def check_whole_number(what: str, value: object) -> None:
    """Refuse a value that is not a whole number of 1 to 2**63 - 1. Raises: ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**63:
        raise ConfigError(f"{what} is {brief(value)}; it must be a whole number, 1 or more, below 2**63")


def check_key_group(key_group: object, key_groups: int, where: str) -> None:
    """Refuse a key group that the namespace does not have; None stands for all. Raises: ConfigError."""
    if key_group is None:
        return
    is_whole = isinstance(key_group, int) and not isinstance(key_group, bool)
    if not is_whole or not 0 <= key_group < key_groups:  # type: ignore[operator]
        raise ConfigError(
            f"key_group is {brief(key_group)}; {where} has the key groups 0 to {key_groups - 1}: pass one of"
            " them, or none for all"
        )


def keys_of(keys: Iterable[Any]) -> list[Any]:
    """List the keys of ``get_many``. Raises: ConfigError: one key, such as a text, instead of several."""
    if isinstance(keys, str | bytes | bytearray | memoryview) or not isinstance(keys, Iterable):
        raise ConfigError(
            f"get_many takes several keys, as in [{brief(keys)}]; of one key: get({brief(keys)})"
        )
    return list(keys)


def check_snapshot(version: Version | None, as_of: object, lease_s: object) -> None:
    """Check the arguments of a snapshot as far as possible without the store. Raises: ConfigError."""
    if version is not None and as_of is not None:
        raise ConfigError("a snapshot takes a version or as_of, not both")
    fits = isinstance(lease_s, int | float) and not isinstance(lease_s, bool)
    if not fits or not 0 < lease_s <= LEASE_MAX_S:  # type: ignore[operator]
        raise ConfigError(
            f"lease_s is {brief(lease_s)}; it must be seconds above 0, {LEASE_MAX_S:,.0f} at most"
        )
    if as_of is not None and (not is_time(as_of) or as_of.utcoffset() is None):
        raise ConfigError(
            f"as_of is {brief(as_of)}; it must be a datetime with a time zone, as in"
            " datetime.now(timezone.utc)"
        )
    if version is not None:
        check_whole_number("version", number_of(version))


# -- versions -------------------------------------------------------------------------------------


def check_seen(where: str, before: Pointer, pointer: Pointer) -> None:
    """Check that the pointer is not older than the one seen before the request, nor of another history (I9).

    Raises: VersionRegressedError. StoreNotVerifiedError: the store is being rebuilt: it shows no version.
    """
    if (pointer.filling_at or pointer.lost or not pointer.visible) and before.visible:
        raise being_filled(where, pointer)
    if pointer.visible < before.visible:
        raise VersionRegressedError(
            f"{where} shows version {pointer.visible}, this client has already seen"
            f" version {before.visible}: the store lost versions (an old copy, a failover). Restart the"
            " writer or run `tidegate recover`; connect again to read the older version knowingly"
        )
    if pointer.visible == before.visible and pointer.digest != before.digest:
        raise VersionRegressedError(
            f"{where} shows version {pointer.visible} with digest {pointer.digest},"
            f" this client has seen it with digest {before.digest}: the store holds another history now;"
            " find out what replaced it, then connect again"
        )


def check_ref(version: Version, where: str, uuid: str, digest: str = "") -> None:
    """Compare a version that a client has kept with this namespace, and its ``digest`` here (I12).

    A bare number is compared with nothing. Raises: VersionRegressedError: it is of another history.
    """
    if isinstance(version, VersionRef):
        shown = VersionRef(version.version, uuid, digest)
        version.check(
            shown, where, VersionRegressedError, "read a whole version again, and continue after it"
        )


def is_of(entry: CatalogEntry, pointer: Pointer) -> bool:
    """Whether this is the catalog's entry of the pointer's version."""
    return entry.version == pointer.visible and entry.digest == pointer.digest


def check_entry(where: str, entry: CatalogEntry, pointer: Pointer) -> None:
    """Check that pointer and catalog have the same digest. Raises: CorruptError."""
    if entry.digest != pointer.digest:
        raise CorruptError(
            f"{where}: version {pointer.visible} has digest {pointer.digest} in"
            f" the pointer, {entry.digest} in the catalog: restore the store from a copy"
        )


def check_there(where: str, version: int, pointer: Pointer) -> None:
    """Check a version that the catalog did not have, against a pointer that was read afterwards.

    Raises: StoreNotVerifiedError: the store is being rebuilt, entries too. SnapshotExpiredError: it was
    retired. VersionRegressedError: a server restarted without it. No error does not prove a fault: a server
    that lost the version may have got it back just before the pointer was read, and then the catalog has it,
    too.
    """
    newest_of(pointer, where)  # or raise
    check_kept(where, version, pointer.horizon)
    if version > pointer.visible:
        raise VersionRegressedError(
            f"{where}: version {version} was visible, now it is {pointer.visible}: the store lost it, and has"
            " not been repaired yet"
        )


def check_is_visible(version: int, visible: int, namespace: str) -> None:
    """Refuse a version that is not visible yet. Raises: ConfigError."""
    if version > visible:
        raise ConfigError(
            f"version {version} of namespace {namespace} is not visible yet, the visible version is"
            f" {visible}: in Python, gate.wait_for({version}) waits for it"
        )


def newest_of(pointer: Pointer, where: str) -> int:
    """Return the default version of a snapshot. Raises: StoreNotVerifiedError: the store is being filled."""
    if pointer.filling_at or pointer.lost:
        raise being_filled(where, pointer)
    return pointer.visible


def check_kept(where: str, version: int, horizon: int) -> None:
    """Refuse a version below the horizon, which was read after the lease was taken.

    Raises: SnapshotExpiredError.
    """
    if horizon > version:
        raise expired(where, version, horizon)


def is_after(entry: CatalogEntry, as_of: datetime.datetime) -> bool:
    """Whether the version was decided after this time."""
    return entry.decided_at_us > (as_of - EPOCH) // datetime.timedelta(microseconds=1)


def version_as_of(entries: list[CatalogEntry], as_of: datetime.datetime, namespace: str) -> int:
    """Find the newest of these versions that was decided by ``as_of``.

    Raises: ConfigError: none was. SnapshotExpiredError: it was retired.
    """
    versions = [entry.version for entry in entries if not is_after(entry, as_of)]
    if versions:
        return versions[-1]
    if not entries:
        raise no_version_yet(namespace)
    oldest = entries[0]
    first = f"version {oldest.version}, decided at {moment(oldest.decided_at_us).isoformat()}"
    if oldest.version == 1:
        raise ConfigError(f"namespace {namespace} had no version at {as_of.isoformat()}: {first}, is first")
    raise SnapshotExpiredError(
        f"the version of {as_of.isoformat()} was retired: {first}, is the oldest that can be read;"
        " keep_versions at the writer sets how many are kept"
    )


Awaited = Version | dict[tuple[str, int], int]
"""A version, or offsets of records by topic and partition."""


def awaited(version: Version | None, offsets: Offsets | None, timeout: float) -> Awaited:
    """Check the arguments of ``wait_for``; return the awaited version or offsets. Raises: ConfigError."""
    check_ends("timeout", timeout)
    if (version is None) == (offsets is None):
        raise ConfigError("wait_for takes a version or offsets, as in wait_for(offsets={'orders': {0: 41}})")
    if version is not None:
        check_whole_number("version", number_of(version))
        return version
    return checked_offsets(offsets)


def have_passed(entries: list[CatalogEntry], offsets: dict[tuple[str, int], int]) -> bool:
    """Whether the version of the entry, if there is one, contains a batch that has read all the records."""
    return any(passed(entry.source_offsets, offsets) for entry in entries)


def oldest_of(limit: int | None, visible: int) -> int:
    """Return the first version that ``history`` reads from the catalog."""
    return 0 if limit is None else max(0, visible - limit + 1)


def pause_of(before: float, took_s: float, *, notified: bool) -> float:
    """Return the pause of ``wait_for`` before its next poll, after the store has slept ``took_s`` for it.

    It is 0 when the store woke it. It grows from ``before`` if the store cannot notify, or notifies at once
    of a version that the pointer does not show.
    """
    if notified and took_s >= WAIT_FIRST_S:
        return 0.0
    return min(max(WAIT_FIRST_S, 2 * before), WAIT_MOST_S)


def removed(where: str, pointer: Pointer) -> StoreRemovedError:
    """Build the error for a store that its note shows as removed."""
    removal = removal_in(where, pointer)
    successor = "" if removal is None else removal.successor
    step = "connect to another store of the namespace, which `tidegate store list` shows"
    if successor:
        step = (
            "connect there; with its servers in follow_redirects a gate does so itself, with the same options"
        )
    error = StoreRemovedError(f"{described(where, pointer)}: {step}")
    error.successor = successor
    return error


def check_followed(where: str, pointer: Pointer) -> None:
    """Refuse a store that was removed. Raises: StoreRemovedError."""
    if pointer.is_removed:
        raise removed(where, pointer)


# -- errors ---------------------------------------------------------------------------------------


def expired(where: str, version: int, horizon: int) -> SnapshotExpiredError:
    """Build the error for a version below the horizon."""
    return SnapshotExpiredError(
        f"{where}: version {version} was retired, the oldest that can be read is {horizon}: take a"
        " newer one; keep_versions at the writer sets how many are kept"
    )


def waited(target: Awaited, timeout: float, visible: int, namespace: str) -> WaitTimeoutError:
    """Build the error for an awaited version, or offsets, not visible in time."""
    if isinstance(target, Version):
        missing = f"version {number_of(target)} of namespace {namespace}"
    else:
        shown = ", ".join(f"{topic}-{partition}@{offset}" for (topic, partition), offset in target.items())
        missing = f"a version of namespace {namespace} that has read {shown}"
    return WaitTimeoutError(
        f"{missing} was not visible within {timeout} s, the"
        f" visible version is {visible}: wait longer, or see with `tidegate status` whether a"
        " writer is running"
    )


def gate_closed(where: str) -> ConfigError:
    """Build the error for a gate that was closed."""
    return proven_final(ConfigError(f"this gate to {where} was closed: connect again"))


def snapshot_closed(version: int) -> ConfigError:
    """Build the error for a snapshot that was closed."""
    return ConfigError(f"this snapshot of version {version} was closed: take a new one")
