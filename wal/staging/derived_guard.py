"""Derived tables (``wal/staging/derived.py``): which versions may write them and their base.

A version that writes a base table, or a derived one, has to keep both equal. Only barriers that do so say
that a derived table ``follows``. Any other is refused here, also one that a later release adds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tidegate.base.names import RENAME_TOKEN
from tidegate.errors import ConfigError
from tidegate.wal.manifest import TableChange
from tidegate.wal.record import Folded, ImportOrigin, LoadOrigin, Origin, TableAt
from tidegate.wal.staging.derived import DERIVED_MAX


def bases(tables: Mapping[str, TableAt]) -> dict[str, str]:
    """Map each derived table to its base."""
    return {name: table_at.of for name, table_at in tables.items() if table_at.of}


def written_into(name: str, of: str, call: str) -> ConfigError:
    """Build the error for a call that writes into a derived table."""
    return ConfigError(
        f"table {name} is derived from table {of}, and {call} writes into it: write table {of}, which it"
        " follows"
    )


def with_derived(names: set[str], tables: Mapping[str, TableAt]) -> set[str]:
    """Return these tables and those that are derived from them."""
    return names | {name for name, of in bases(tables).items() if of in names}


def _step(origin: Origin, name: str, of: str) -> str:
    """Return what to do where a version of this origin writes only one of both tables."""
    ends = f"drop table {name} (txn.drop_table({name!r})) and leave it out of derived="
    match origin:
        case ImportOrigin():
            return f"export and import tables {of} and {name} together, or {ends} before the import"
        case LoadOrigin(token) if token.startswith(RENAME_TOKEN):
            return f"to rename a column, {ends} first, and declare it by the new name afterwards"
    return f"give the sink table {name}, VersionedSink(derived=[...]); to end it, {ends}"


def check_derived(
    state: Folded,
    tables: Mapping[str, TableChange],
    drops: Collection[str],
    origin: Origin,
    ttl_us: Callable[[str], int],
) -> None:
    """Refuse a version after which a derived table would not be the aggregation of its base.

    ``tables`` are those that it writes, ``origin`` is its own. ``ttl_us`` returns a table's time to live, 0
    without one. Raises: ConfigError: it would not be, or rows expire; nothing was staged.
    """
    existing = {name: of for name, of in bases(state.tables).items() if name not in drops}
    made = {name: table.schema.derived.of for name, table in tables.items() if table.schema.derived}
    written_tables = {*tables, *drops}
    for name, of in sorted((existing | made).items()):
        if not written_tables.intersection((name, of)) and name not in made:
            continue
        where = f"table {name} is derived from table {of}"
        if name not in tables or not tables[name].follows or of in drops:
            alone = [table for table in (of, name) if table in written_tables]
            what = "drops the one" if of in drops else f"writes {' and '.join(alone)} by itself"
            ends = f"drop table {name} in the same version (txn.drop_table({name!r}))"
            step = ends if of in drops else _step(origin, name, of)
            raise ConfigError(f"{where}, and this version {what}: nothing was staged; {step}")
        expiring = [table for table in (name, of) if _expires(state, tables.get(table), table, ttl_us)]
        if expiring:
            raise ConfigError(
                f"{where}, and rows of table {expiring[0]} expire: a derived table"
                " cannot follow rows that expire, so nothing was staged; leave ttl out, and delete old rows"
                " by txn.delete. A table that had a ttl once stays one whose rows expire: write a new table"
            )
    if (number := len(existing | made)) > DERIVED_MAX:
        raise ConfigError(
            f"{number} derived tables are more than {DERIVED_MAX}: nothing was staged; drop one that is not"
            " needed (txn.drop_table) in a batch of a sink whose derived= has neither it nor the new one"
        )


def _expires(state: Folded, change: TableChange | None, table: str, ttl_us: Callable[[str], int]) -> bool:
    known = state.tables.get(table)
    return any((ttl_us(table), change is not None and change.expires, known is not None and known.expires))
