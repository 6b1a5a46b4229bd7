"""Fill cuts chunks by rows and bytes alone: however the source pages its rows, every filler cuts the same."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tidegate.committers.steps import fill_groups as fill
from tidegate.sinks.records import Stamp

ROWS, BYTES = 7, 60


class Paged:
    """A source that gives these rows in pages of these lengths."""

    def __init__(self, rows, lengths):
        self.rows, self.lengths = rows, lengths

    def batches(self):
        at = 0
        for length in self.lengths:
            page = self.rows[at : at + length]
            at += length
            keys, values = ([row[part] for row in page] for part in (0, 1))
            yield pa.record_batch(
                {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
            )


def chunks(source):
    return [
        list(zip(run.keys.to_pylist(), run.values.to_pylist(), strict=True))
        for run in fill._runs(source.batches(), "t", 0, Stamp(1, 1))
    ]


def pages_of(count, chance):
    """Lengths of pages that hold so many rows, empty ones among them."""
    lengths = []
    while (left := count - sum(lengths)) > 0:
        lengths.append(min(left, chance.randrange(12)))
    return lengths


@pytest.mark.parametrize("seed", range(20))
def test_chunks_depend_on_the_rows_alone(monkeypatch, seed):
    monkeypatch.setattr(fill, "CHUNK_ROWS", ROWS)
    monkeypatch.setattr(fill, "CHUNK_BYTES", BYTES)
    chance = random.Random(seed)
    rows = [(b"k%d" % n, b"+" + bytes(chance.choice([0, 3, 20, 80]))) for n in range(chance.randrange(60))]
    wanted, held = [], []
    for row in rows:  # what one row after the other gives
        held.append(row)
        if len(held) == ROWS or sum(len(key) + len(value) - 1 for key, value in held) >= BYTES:
            wanted.append(held)
            held = []
    wanted += [held] if held else []
    for _ in range(5):
        assert chunks(Paged(rows, pages_of(len(rows), chance))) == wanted
