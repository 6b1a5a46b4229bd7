"""Rows of a scan that do not fit into memory are in a temporary file, and a full disk is named."""

from __future__ import annotations

import contextlib
import tempfile

import pytest

from tidegate.errors import ConfigError
from tidegate.sinks import sorted_rows
from tidegate.sinks.sorted_rows import SortedRows

PAGES = 20


@pytest.fixture(autouse=True)
def small_memory(monkeypatch):
    monkeypatch.setattr(sorted_rows, "MEMORY_BYTES", 10_000)


def page(number: int, value: bytes) -> list[bytes]:
    return [part for row in range(number, 100, 7) for part in (b"k%02d" % row, value)]


def test_the_first_value_of_a_key_counts_across_runs():
    rows = SortedRows("store s")
    for number in range(PAGES):
        rows.add(page(number, b"%03d" % number * 100))
    read = [row for batch in rows.batches() for row in batch.to_pylist()]
    first = {key: value for n in reversed(range(PAGES)) for key, value in _pairs(page(n, b"%03d" % n * 100))}
    assert [row["key"] for row in read] == sorted(first)
    assert {row["key"]: row["value"] for row in read} == first
    rows.close()


def _pairs(parts: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("value", [b"v", b"v" * 1_000], ids=["in one buffer", "in several"])
def test_a_full_temporary_folder_is_named(value, monkeypatch):
    """The file's buffer takes the rows, and fails when it is written or closed."""
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: open("/dev/full", "w+b"))  # noqa: SIM115, PTH123
    with pytest.raises(ConfigError, match=r"store s: the rows of a key group do not fit .* set TMPDIR"):
        scan(value)


def scan(value: bytes) -> None:
    with contextlib.closing(SortedRows("store s")) as rows:
        for number in range(PAGES):
            rows.add([part for row in range(60) for part in (b"%d-%d" % (number, row), value)])
        list(rows.batches())
