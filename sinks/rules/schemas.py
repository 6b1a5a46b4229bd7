"""The rule for schemas that no version names any more: retirement removes them.

A version stores its schemas when it begins, before it has a catalog entry. So a schema is removed only if no
entry of a version that can be read names it, and no version that has begun may name it. Most stores remove it
only while no version has begun. Cassandra writes a tombstone that is older than the writes of such a version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate.sinks.records import CatalogEntry, Pointer


class SchemaLooks:
    """The looks of one store's instance for schemas that no version names.

    A look reads the entries of all versions that can be read. It is due only after the horizon has passed the
    version that was visible at the last look. So each entry is read about twice, whatever their number
    (I11).
    """

    def __init__(self) -> None:
        self._visible = 0

    def is_due(self, horizon: int) -> bool:
        """Return whether the entries were replaced since the last look."""
        return horizon > self._visible

    def ended(self, pointer: Pointer) -> None:
        """Note a look at the versions of this pointer, after its schemas were removed."""
        self._visible = pointer.visible


def unnamed(stored: Iterable[str], pointer: Pointer, entries: Sequence[CatalogEntry]) -> list[str]:
    """Return those of the stored schemas that no version of the pointer names.

    No schema, if the entry of one of them is missing: its server lost it, or the horizon has moved.
    """
    versions = range(max(pointer.horizon, 1), pointer.visible + 1)
    if not pointer.visible or [entry.version for entry in entries] != list(versions):
        return []
    named = {at.schema_id for entry in entries for at in entry.tables.values()}
    return sorted(set(stored) - named)
