"""Rules about visible versions, their entries and floors, and the errors for those that are missing. Pure.

Each store decides which version is visible, in its pointer (``Store.publish``).
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from tidegate.errors import ConfigError, CorruptError
from tidegate.keys.groups import EPOCH
from tidegate.wal.record import TableAt, TableSchema

FROM_A_COPY = "restore the store from a copy, or start a new namespace"


def moment(microseconds: int) -> datetime.datetime:
    """Convert microseconds since 1970 to an aware datetime (UTC)."""
    return EPOCH + datetime.timedelta(microseconds=microseconds)


def no_version_yet(namespace: str, not_shown: str = "") -> ConfigError:
    """Build the error for reads before the first version. ``not_shown``: the end, if the log has versions."""
    made = ": the first batch makes version 1, and gate.wait_for(1) in Python waits for it"
    return ConfigError(f"namespace {namespace} has no visible version yet{not_shown or made}")


def no_entry(where: str, version: int) -> CorruptError:
    """Build the error for a visible version that the catalog does not have, after repeated reads."""
    return _missing(f"{where}: version {version} is visible and has no entry in the catalog")


def no_schema(where: str, version: int, table: str, schema_id: str) -> CorruptError:
    """Build the error for a table whose schema is missing in a store that has the version."""
    return _missing(f"{where}: schema {schema_id} of table {table} at version {version} is missing")


def schemas_by_table(
    where: str, version: int, tables: Mapping[str, TableAt], known: Mapping[str, TableSchema]
) -> dict[str, TableSchema]:
    """Return the schema of each table of a version. ``known``: by id. Raises: CorruptError: one is not."""
    for name, table_at in tables.items():
        if table_at.schema_id not in known:
            raise no_schema(where, version, name, table_at.schema_id)
    return {name: known[table_at.schema_id] for name, table_at in tables.items()}


def _missing(what: str) -> CorruptError:
    """Build the error for a record that is not there. It ends no wait: the record may be put back."""
    error = CorruptError(
        f"{what}: on Redis and Cassandra `tidegate repair` puts it back from the log; else {FROM_A_COPY}"
    )
    error.final = False
    return error


def floor_found(floor: object, visible: int) -> str:
    """Describe a floor above the horizon, with a safe next step."""
    if isinstance(floor, int) and floor <= visible:
        return (
            f"floor {floor}: readers are refused below it; their newer versions are whole, and a retirement"
            " that reaches it ends this"
        )
    return (
        f"floor {floor!r:.60}: readers are refused at every version up to it; restore the store from a copy,"
        " or fill a new one from another store (`tidegate store add NAME=URL`)"
    )
