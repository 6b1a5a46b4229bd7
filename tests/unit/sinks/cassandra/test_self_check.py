"""The comparison of pointer and catalog on Cassandra while a writer runs."""

from __future__ import annotations

import pytest

from tidegate.sinks.cassandra.self_check import check_catalog
from tidegate.sinks.records import CatalogEntry, Pointer
from tidegate.wal.record import RestoreOrigin


def entries(first, last):
    return [
        CatalogEntry(version, f"d{version}", "a", RestoreOrigin(1), 1, {}, {})
        for version in range(first, last + 1)
    ]


def found(pointers, catalog):
    pointers = iter(pointers)
    return list(check_catalog("store", lambda: next(pointers), lambda: catalog))


def pointer(visible, horizon=1):
    return Pointer(visible, f"d{visible}", 1, "w", horizon)


def test_a_version_that_was_published_between_two_reads_is_no_finding():
    assert found([pointer(3), pointer(4), pointer(4)], entries(1, 4)) == []


def test_a_pointer_that_never_rests_is_no_finding():
    assert found((pointer(version) for version in range(1, 99)), entries(1, 3)) == []


@pytest.mark.parametrize("visible", [2, 5, 2**62])
def test_a_pointer_that_does_not_fit_its_catalog_is_a_finding(visible):
    first, second = found([pointer(visible)] * 2, entries(1, 3))
    assert (first.expected, first.found) == (f"versions 1 to {visible}", "versions 1 to 3")
    assert second.expected == "digest d3"


def test_a_hole_in_the_catalog_is_a_finding():
    (finding,) = found([pointer(4)] * 2, [*entries(1, 2), *entries(4, 4)])
    assert finding.found == "versions 1 to 2, 4"


def test_nothing_visible_and_no_entry_is_no_finding():
    assert found([Pointer()] * 2, []) == []
