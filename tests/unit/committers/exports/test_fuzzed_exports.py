"""Exports that are changed at random are refused in words, or can be read in each way that there is."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pytest
from pyarrow import parquet

from tampering import exports
from tidegate.committers.exports import parquet_footer, parquet_pages
from tidegate.committers.exports.export_rows import ROWS

CASES = int(os.environ.get("TIDEGATE_FUZZ_EXPORTS", "400"))
"""So many changes; for longer: python -m tampering.exports."""


def test_a_changed_export_is_refused_or_can_be_read_t61(tmp_path):
    counts, wrong = exports.run(tmp_path, 1, CASES)
    assert wrong == []
    assert counts.keys() >= {f"{kind} refused" for kind in ("rows", "bytes", "manifest", "import")}
    assert counts["rows read"] > CASES // 50, "what is refused whatever it is shows nothing"


def test_what_is_let_through_and_cannot_be_read_is_a_fault(tmp_path, monkeypatch):
    """The fuzzer itself: without the checks of rows it finds what they are for."""
    monkeypatch.setattr("tidegate.committers.exports.export_rows._first_unfit", lambda *_: None)
    counts, wrong = exports.run(tmp_path, 1, 60)
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


def exported():
    file = io.BytesIO()
    columns = [pa.array([0], pa.int32()), pa.array([b"k"]), pa.array([b"+v"])]
    parquet.write_table(pa.Table.from_arrays(columns, schema=ROWS), file)
    return file.getvalue()


def with_footer(change):
    """An export's file whose footer is changed."""
    content = exported()
    length = int.from_bytes(content[-8:-4], "little")
    footer = change(content[-8 - length : -8])
    return content[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


@pytest.mark.parametrize("seed", [27843, 32800, 48708])
def test_a_histogram_of_levels_of_another_length_is_no_end_of_the_process(tmp_path, seed):
    """pyarrow ended it where the column's metadata was asked for."""
    code = (
        "import sys; from pathlib import Path; from tampering.exports import Exports;"
        " print(Exports(Path(sys.argv[1])).run(int(sys.argv[2])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(seed)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "refused=True" in done.stdout) == (0, True), done.stderr


FOOTERS = {
    "cut": lambda footer: footer[:-2],
    "more": lambda footer: footer[:-1] + b"\x15",
    "nested": lambda _: b"\x1c" * 200_000,
    "a list without end": lambda _: b"\x49\xfc\xff\xff\xff\xff\x0f",
    "a field that is there twice": lambda footer: b"\x15\x04\x05\x02\x04" + footer[2:],
    "a list of other elements": lambda _: b"\x49\x15\x02\x00",
    "a map": lambda _: b"\x1b\x00\x00",
}


@pytest.mark.parametrize("which", FOOTERS)
def test_a_footer_that_is_none_is_refused(which):
    assert parquet_footer.misfit(io.BytesIO(with_footer(FOOTERS[which]))) == "its footer cannot be read"


def test_a_footer_that_is_right_or_too_long():
    content = exported()
    assert parquet_footer.misfit(io.BytesIO(content)) is None
    for length in (0, len(content), 2**31):
        wrong = content[:-8] + length.to_bytes(4, "little") + b"PAR1"
        assert "its footer takes" in parquet_footer.misfit(io.BytesIO(wrong))
