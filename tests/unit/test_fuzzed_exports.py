"""Exports that are changed at random are refused in words, or can be read in each way that there is."""

from __future__ import annotations

import io
import os
from collections import Counter

import pyarrow as pa
import pytest
from pyarrow import parquet

from tidegate.committers import parquet_pages
from tidegate.committers.export_rows import ROWS
from tidegate.testing import export_fuzz

CASES = int(os.environ.get("TIDEGATE_FUZZ_EXPORTS", "400"))
"""So many changes; for longer: python -m tidegate.testing.export_fuzz."""


def test_a_changed_export_is_refused_or_can_be_read_t61(tmp_path):
    counts, wrong = export_fuzz.run(tmp_path, 1, CASES)
    assert wrong == []
    assert counts.keys() >= {f"{kind} refused" for kind in ("rows", "bytes", "manifest", "import")}
    assert counts["rows read"] > CASES // 50, "what is refused whatever it is shows nothing"


def test_what_is_let_through_and_cannot_be_read_is_a_fault(tmp_path, monkeypatch):
    """The fuzzer itself: without the checks of rows it finds what they are for."""
    monkeypatch.setattr("tidegate.committers.export_rows._first_unfit", lambda *_: None)
    counts, wrong = export_fuzz.run(tmp_path, 1, 60)
    assert len(wrong) > 10
    assert isinstance(counts, Counter)


HEADERS = {
    "a number in the place of a struct": b"\x15\x04\x15\x04\x15\x04\x25\x00\x00",
    "a struct in the place of a number": b"\x15\x04\x15\x04\x1c\x00\x00",
    "cut": b"\x15\x04\x15",
    "a list": b"\x15\x04\x15\x04\x15\x04\x19\x00\x00",
    "nested": b"\x1c" * 100,
    "a number without end": b"\x15" + b"\xff" * 100,
}


@pytest.mark.parametrize("which", HEADERS)
def test_a_header_of_a_page_that_is_none_is_refused(which):
    content = HEADERS[which]
    with pytest.raises(parquet_pages.HugeError):
        list(parquet_pages.pages(io.BytesIO(content), 0, len(content)))


def test_a_codec_that_is_none_is_no_end_of_the_process():
    """pyarrow ends the process where the metadata's compression is asked for and is none that it knows."""
    file = io.BytesIO()
    columns = [pa.array([0], pa.int32()), pa.array([b"k"]), pa.array([b"+v"])]
    parquet.write_table(pa.Table.from_arrays(columns, schema=ROWS), file, compression="snappy")
    content, refused = file.getvalue(), 0
    codec = b"\x15\x02"  # field 4 of a column's metadata: SNAPPY
    for at in range(len(content) - 2):
        if content[at : at + 2] == codec:
            try:
                list(parquet_pages.batches(io.BytesIO(content[:at] + b"\x15\x42" + content[at + 2 :]), ROWS))
            except (pa.ArrowException, OSError, parquet_pages.HugeError):
                refused += 1
    assert refused
