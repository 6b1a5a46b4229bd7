"""The common parts of every store's reads: refusals, keys by key group, batches. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.errors import (
    ConfigError,
    CorruptError,
    SnapshotExpiredError,
    StoreLostError,
    StoreNotVerifiedError,
    VersionRegressedError,
    proven_final,
)
from tidegate.keys.groups import key_group_of_each
from tidegate.sinks.records import Identity, Pointer, ReadAt
from tidegate.sinks.rules.columns import batch_from, column_of
from tidegate.sinks.rules.layout import payload, payloads
from tidegate.wal.record import UNREADABLE

FILLED_FROM = 2
"""The first version at which a store may be filled from another one. The log has all of version 1 until a
newer one is decided, and an apply of it may have begun: with delete markers, and other chunks than a fill's.
"""

GROUPS_AT_ONCE = 64
"""The number of key groups that one step of a scan reads, in a store that reads several at once."""
TABLES_AT_ONCE = 8
"""Up to this number of tables are read side by side by full steps."""

Kind = TypeVar("Kind")
encode = msgspec.json.Encoder(order="deterministic").encode


def decode(where: str, content: bytes | str, kind: type[Kind]) -> Kind:
    """Decode a stored record. Raises: CorruptError: it cannot be decoded."""
    try:
        return json_decoder(kind).decode(content)
    except (*UNREADABLE, TypeError) as error:  # a column of another type than text
        msg = f"{where}: a stored {kind.__name__} cannot be read: {error}; restore the store from a copy"
        raise CorruptError(msg) from error


def windows(groups: Sequence[int], tables: int = 1) -> Iterator[Sequence[int]]:
    """Yield key groups, ``GROUPS_AT_ONCE`` at a time, or fewer if many ``tables`` are read side by side.

    >>> list(windows(range(100)))
    [range(0, 64), range(64, 100)]
    >>> next(windows(range(100), tables=32))
    range(0, 16)
    """
    at_once = max(GROUPS_AT_ONCE * TABLES_AT_ONCE // max(tables, TABLES_AT_ONCE), 1)
    for first in range(0, len(groups), at_once):
        yield groups[first : first + at_once]


NO_GROUP = sys.maxsize
"""More than any key group: the end."""


class StoredRows(Protocol):
    """The stored rows of versions: a store, or the state that the log gives."""

    where: str

    def scan_groups_stored(self, at: ReadAt, groups: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield the rows of several key groups, as ``Store.scan_groups_stored``."""


class GroupedRows:
    """The rows of several key groups, in order: ``group`` is the next one, ``NO_GROUP`` at the end."""

    def __init__(self, pages: Iterator[tuple[int, Any]]) -> None:
        self._pages = pages
        self.group = NO_GROUP
        self._batch: Any = None
        self._advance()

    def _advance(self) -> None:
        self.group, self._batch = next(self._pages, (NO_GROUP, None))

    def take(self, group: int) -> Iterator[Any]:
        """Yield the batches of this key group, if it is the next one; all are to be taken."""
        while self.group == group:
            batch = self._batch
            self._advance()
            yield batch


# -- refusals -------------------------------------------------------------------------------------


def check_visible(where: str, version: int, pointer: Pointer) -> None:
    """Refuse a version above the visible one: no part of it is shown.

    Raises: VersionRegressedError. StoreNotVerifiedError: the store is being filled.
    """
    if version <= pointer.visible:
        return
    if pointer.filling_at or pointer.lost:
        raise being_filled(where, pointer)
    raise VersionRegressedError(
        f"{where}: version {version} was requested, the visible one is {pointer.visible}"
    )


def being_filled(where: str, pointer: Pointer) -> StoreNotVerifiedError:
    """Build the error for a store that shows nothing until its rebuild, or its fill, is complete."""
    progress = f", at version {pointer.filling_at} now" if pointer.filling_at else ""
    return StoreNotVerifiedError(
        f"{where} is being rebuilt or filled{progress}: nothing can be read before"
        " its newest version is back; read again later. If no writer runs, `tidegate recover` completes it."
        " `tidegate status` shows which version of how many is being written"
    )


def check_kept(where: str, version: int, horizon: int) -> None:
    """Refuse a version below the horizon. Raises: SnapshotExpiredError."""
    if version < horizon:
        raise SnapshotExpiredError(
            f"{where}: version {version} was retired, the oldest that can be read is {horizon}"
        )


def check_fillable(where: str, version: int) -> None:
    """Refuse a version at which no store is filled. Raises: ValueError."""
    if version < FILLED_FROM:
        raise ValueError(f"{where}: it cannot be filled at version {version}: the log has it; apply it")


def nothing_here(where: str) -> ConfigError:
    """Build the error for a namespace that does not exist yet."""
    return ConfigError(
        f"{where}: there is no namespace here yet; start a query that writes to it, or run `tidegate init`"
    )


def checked_format(where: str, identity: Identity, known: int) -> Identity:
    """Return the identity of a namespace in the one format that this release reads and writes.

    Raises: ConfigError, it has another format; nothing was written.
    """
    if identity.format != known:
        raise ConfigError(
            f"{where}: it has storage format {identity.format}, this release reads and writes format {known}:"
            " use the release that wrote it"
        )
    return identity


def dropped(where: str) -> ConfigError:
    """Build the error for a namespace that was dropped: its drop is under way, or another one is here."""
    return proven_final(
        ConfigError(f"{where}: the namespace was dropped while it was open here; open it again")
    )


def lost(where: str) -> StoreLostError:
    """Build the error for a namespace that is gone, without a proof of who removed it."""
    return StoreLostError(
        f"{where}: the namespace is not there any more. If nobody dropped it (`tidegate drop`), the store"
        " lost it: a server was emptied or restarted without its data, a folder was removed, or Redis evicted"
        " it (then first set maxmemory-policy noeviction, and raise maxmemory). The log has"
        " it: a running query rebuilds it, `tidegate recover` does so now; then read again"
    )


# -- keys and rows --------------------------------------------------------------------------------


def by_group(
    keys: Sequence[bytes], key_groups: int, at_once: int, stride: int = 1
) -> list[tuple[int, list[int]]]:
    """Group the indexes of keys by key group, at most ``at_once`` in each list."""
    indexes: dict[int, list[int]] = {}
    for index, group in enumerate(key_group_of_each(keys, key_groups, stride)):
        indexes.setdefault(group, []).append(index)
    return [
        (group, of_one[start : start + at_once])
        for group, of_one in sorted(indexes.items())
        for start in range(0, len(of_one), at_once)
    ]


def batch_of(keys: Sequence[bytes], stored: Sequence[bytes]) -> Any:
    """Build a record batch (key, value) of stored rows."""
    return batch_from(column_of(keys), column_of(stored))


def shown_bytes(content: bytes) -> str:
    """Show stored bytes for messages, cut if they are long."""
    return repr(content[:60]) + f"... ({len(content)} bytes)" * (len(content) > 60)


def values_at(where: str, at: ReadAt, keys: Sequence[bytes], stored: Any) -> Any:
    """Return readers' values for stored ones. Raises: CorruptError: with the key of an unknown form."""
    try:
        return payloads(stored, at.at_us)
    except CorruptError:
        for key, content in zip(keys, stored.to_pylist(), strict=True):
            value_at(where, at, key, content)
        raise


def value_at(where: str, at: ReadAt, key: bytes, stored: bytes | None) -> bytes | None:
    """Return a reader's value for one stored value, as ``values_at``."""
    try:
        return payload(stored, at.at_us)
    except CorruptError as error:
        raise CorruptError(f"{where}, table {at.table}, key {shown_bytes(key)}: {error}") from None


def live_rows(batch: Any, at: ReadAt, where: str) -> Any:
    """Return the live rows of such a batch, their values without flags byte. Raises: as ``values_at``."""
    values = values_at(where, at, batch["key"].to_pylist(), batch["value"])
    live = batch_from(batch["key"], values)
    return live.filter(values.is_valid()) if values.null_count else live
