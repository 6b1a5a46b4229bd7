"""Leases in Cassandra: which rows retirement removes."""

from types import SimpleNamespace

from tidegate.options import LEASES_MAX
from tidegate.sinks.cassandra import leases


def space_of(written):
    return SimpleNamespace(
        where="store",
        warned_of_leases=False,
        made=SimpleNamespace(space="space"),
        write=lambda name, *values: written.append((name, values[-1])),
    )


def test_retirement_leaves_a_lease_on_a_version_that_became_visible_meanwhile_i8():
    """The pointer is read before the leases, and a reader may take one on a newer version between the two."""
    written = []
    rows = [("reader", 9, 1_000, 61_000), ("no version", None, 1_000, 61_000), ("a b", 1, 1_000, 61_000)]
    leases._drop_foreign(space_of(written), rows)
    assert written == [("drop_lease", "no version"), ("drop_lease", "a b")]


def test_retirement_removes_a_bounded_number_of_rows_where_there_are_too_many():
    written = []
    rows = [(f"l{at}", 1, 1_000, 61_000) for at in range(LEASES_MAX + 1)]
    leases._drop_foreign(space_of(written), rows)
    assert len(written) == leases.REMOVED_AT_ONCE
