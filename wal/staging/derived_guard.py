"""Derived tables (``wal/staging/derived.py``): which versions may write them and their base.

A version that writes a base table, or a derived one, has to keep both equal. Only barriers that do so name
their derived tables (``Barrier.derived``). Any other is refused here, also one that a later release adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from tidegate.errors import ConfigError
from tidegate.wal.record import Folded, TableAt, TableSchema
from tidegate.wal.staging.derived import DERIVED_MAX


class Written(Protocol):
    """The writes of a version, as a barrier has them."""

    @property
    def tables(self) -> tuple[str, ...]: ...
    @property
    def schemas(self) -> dict[str, TableSchema]: ...
    @property
    def starts(self) -> frozenset[str]: ...
    @property
    def drops(self) -> frozenset[str]: ...
    @property
    def expiring(self) -> frozenset[str]: ...
    @property
    def derived(self) -> frozenset[str]: ...


BOTH = (
    "of a batch, give the sink all derived tables, VersionedSink(derived=[...]); import both tables; for"
    " another name of a column, drop the derived table (txn.drop_table) and leave it out of derived= first"
)
DROP_BOTH = "drop its derived tables in the same version (txn.drop_table)"


def bases(tables: Mapping[str, TableAt]) -> dict[str, str]:
    """Map each derived table to its base."""
    return {name: at.of for name, at in tables.items() if at.of}


def with_derived(names: set[str], tables: Mapping[str, TableAt]) -> set[str]:
    """Return these tables and those that are derived from them."""
    return names | {name for name, of in bases(tables).items() if of in names}


def check_derived(state: Folded, version: Written, ttl_us: Callable[[str], int]) -> None:
    """Refuse a version after which a derived table would not be the aggregation of its base.

    ``ttl_us`` returns the time to live of a table, 0 without one. Raises: ConfigError: it would not be, or
    rows expire; nothing was staged.
    """
    there = {name: of for name, of in bases(state.tables).items() if name not in version.drops}
    made = {name: schema.derived.of for name, schema in version.schemas.items() if schema.derived}
    written = {*version.tables, *version.drops}
    for name, of in sorted((there | made).items()):
        if not written.intersection((name, of)) and name not in made:
            continue
        where = f"table {name} is derived from table {of}"
        if name not in version.derived or name not in version.tables or of in version.drops:
            drops = of in version.drops
            what = "drops the one" if drops else "writes one of both and leaves the other"
            step = DROP_BOTH if drops else BOTH
            raise ConfigError(f"{where}, and this version {what}: nothing was staged; {step}")
        _refuse_expiry(state, version, ttl_us, name, of)
    if (number := len(there | made)) > DERIVED_MAX:
        raise ConfigError(f"{number} derived tables are more than {DERIVED_MAX}: nothing was staged")


def _refuse_expiry(state: Folded, version: Written, ttl_us: Callable[[str], int], name: str, of: str) -> None:
    for table in (name, of):
        at = state.tables.get(table)
        if ttl_us(table) or table in version.expiring or (at is not None and at.expires is True):
            raise ConfigError(
                f"table {name} is derived from table {of}, and rows of table {table} expire: a derived table"
                " cannot follow rows that expire, so nothing was staged; leave ttl out, and delete old rows"
                " by txn.delete. A table that had a ttl once stays one whose rows expire: write a new table"
            )
