"""The rule of every seal: a key group has exactly the rows that the manifest counts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tidegate.errors import IncompleteError
from tidegate.sinks.records import Finding, Stamp

SHOWN_MAX = 3
"""The most key groups that a message describes."""


def is_whole(counted: Mapping[str, int], expected: Mapping[str, int]) -> bool:
    """Whether a key group has the expected number of rows of each table; 0 is as good as none."""
    tables = counted.keys() | expected.keys()
    return all(counted.get(table, 0) == expected.get(table, 0) for table in tables)


def miscounted(group: int, counted: Mapping[str, int], expected: Mapping[str, int]) -> str:
    """Describe a key group with other rows than expected."""
    return f"key group {group}: {dict(counted)} instead of {dict(expected)}"


def incomplete(where: str, stamp: Stamp, wrong: Sequence[str]) -> IncompleteError:
    """Build the error of a seal; ``wrong`` describes the key groups that are not whole."""
    return IncompleteError(
        f"{where}: version {stamp.version} is not whole in {len(wrong)} key groups:"
        f" {'; '.join(wrong[:SHOWN_MAX])}"
    )


def findings(
    where: str, expected: Mapping[str, int], counted: Mapping[str, int], *, is_sealed: bool
) -> Iterator[Finding]:
    """Yield the faults of a version in one key group, from the rows counted in each expected table."""
    if not is_sealed:
        yield Finding(where, "sealed", "not sealed")
    for table, rows in sorted(expected.items()):
        if counted[table] != rows:
            yield Finding(f"{where}, table {table}", f"{rows} rows", f"{counted[table]} rows")
