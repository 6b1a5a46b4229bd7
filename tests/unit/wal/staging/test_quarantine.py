"""Refused rows go to the quarantine table, in the key group where they were met (T46)."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterable

import msgspec
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import BadRecordError
from tidegate.keys.groups import key_group
from tidegate.wal.staging import quarantine
from tidegate.wal.staging.changelog import Merge, stage_task
from tidegate.wal.staging.last_per_key import last_per_key
from tidegate.wal.staging.quarantine import id_in
from tidegate.wal.staging.spec import CHANGES, StageSpec
from tidegate.wal.staging.validate import bad_rows
from tidegate.wal.value_flags import NO_TIME

SPEC = StageSpec(
    namespace="u1",
    attempt="a1",
    tables=("alerts", "flights", quarantine.TABLE),
    key_types=(("binary",), ("string",), ("string",)),
    frame_bytes=900_000,
    key_bytes_max=4,
    value_bytes_max=8,
    key_groups=4,
    quarantine=2,
)

ROWS = st.tuples(
    st.integers(0, 3),
    st.integers(0, 1),
    st.none() | st.binary(max_size=6),
    st.none() | st.binary(max_size=11).map(b"+".__add__),
)


def batches_of(rows: list[tuple[object, ...]], cuts: int) -> list[pa.RecordBatch]:
    table = pa.Table.from_arrays(
        [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(CHANGES)], schema=CHANGES
    )
    return table.to_batches(max_chunksize=cuts)


def is_bad(row: tuple[object, ...]) -> bool:
    _, table, key, value = row
    if not isinstance(key, bytes) or not isinstance(value, bytes) or len(key) > 4 or len(value) > 9:
        return True
    try:
        return bool(table == 1 and not key.decode() and key)
    except UnicodeDecodeError:
        return True


@given(st.lists(ROWS, max_size=40), st.integers(1, 7))
def test_every_row_is_either_staged_or_quarantined_and_order_holds(
    rows: list[tuple[int, int, bytes | None, bytes | None]], cuts: int
) -> None:
    rows.sort(key=lambda row: (row[0], row[1], row[2] is not None, row[2] or b""))
    staged = [
        tuple(row.values())
        for batch in quarantine.accepted(batches_of(rows, cuts), SPEC)
        for row in batch.to_pylist()
    ]
    assert [row for row in staged if row[1] != 2] == [row for row in rows if not is_bad(row)]
    beside = [row for row in staged if row[1] == 2]
    assert len(beside) == sum(map(is_bad, rows))
    assert all(key_group(key, 4) == group for group, _, key, _ in beside), "a reader finds it by its id"
    assert [row[:2] for row in staged] == sorted(row[:2] for row in staged)
    assert len({key for _, _, key, _ in beside}) == len(beside)
    ids = [(group, key) for group, _, key, _ in beside]
    assert ids == sorted(ids)
    kept = list(last_per_key(quarantine.accepted(batches_of(rows, cuts), SPEC)))
    assert sum(batch.num_rows for batch in kept) == len({row[:3] for row in rows if not is_bad(row)}) + len(
        beside
    )


def test_what_was_refused_and_why_can_be_read() -> None:
    rows = [(0, 0, None, b"+v"), (0, 1, b"12345", b"+value")]
    found = [row for batch in quarantine.accepted(batches_of(rows, 1), SPEC) for row in batch.to_pylist()]
    told = [json.loads(row["v"][1:]) for row in found]
    assert [one["table"] for one in told] == ["alerts", "flights"]
    assert told[0]["cause"] == "its key is null"
    assert told[0]["key"] is None
    assert told[1]["key_bytes"] == 5
    assert "5 bytes, 4 are allowed" in told[1]["cause"]


def test_stored_rows_are_never_set_aside() -> None:
    """Of an import or a restore: the version would lack rows, silently (I10). Those of the quarantine itself
    have limits of their own."""
    spec = msgspec.structs.replace(SPEC, stored=True)
    whole = batches_of([(0, 0, b"k", b"+v"), (0, 2, b"a long id", b"+" + bytes(99))], 2)
    assert list(quarantine.accepted(whole, spec)) == whole
    told = r"table flights, key 'k': its value takes 9 bytes, 8 are allowed; .* stored rows and derived ones"
    with pytest.raises(BadRecordError, match=told):
        list(quarantine.accepted([*whole, *batches_of([(1, 1, b"k", b"+" + bytes(9))], 1)], spec))


@pytest.mark.parametrize("flags", [b"+", b"e" + bytes(8), b"x" + bytes(8)])
def test_an_expiry_does_not_count_for_the_limit_of_a_value(flags: bytes) -> None:
    """It is added after the check: what was accepted once is accepted again when it is restored."""
    rows = [(0, 0, b"k", flags + bytes(8)), (0, 0, b"l", flags + bytes(9))]
    (batch,) = batches_of(rows, 2)
    assert [(bad.row, bad.why) for bad in bad_rows(batch, SPEC)] == [
        (1, "its value takes 9 bytes, 8 are allowed")
    ]


def test_a_stream_of_nothing_but_bad_rows_is_not_quarantined_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I11: what one task holds is bounded."""
    monkeypatch.setattr(quarantine, "ROWS_MAX", 5)
    endless = (batches_of([(0, 0, None, b"+v")], 1)[0] for _ in itertools.count())
    with pytest.raises(BadRecordError, match="more than 5 rows"):
        list(quarantine.accepted(endless, SPEC))


def test_large_rows_without_a_key_take_bounded_memory_while_they_wait_i11(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Null keys are all of one key group, for whose end they wait: 10,000 of 64 KiB would take a GB."""
    monkeypatch.setattr(quarantine, "WAITING_BYTES_MAX", 200_000)
    spec = msgspec.structs.replace(SPEC, value_bytes_max=100_000)
    value = b"+" + bytes(range(256)) * 200
    batches = (batches_of([(0, 0, None, value)] * 4, 4)[0] for _ in range(10))
    found = [row["v"] for batch in quarantine.accepted(batches, spec) for row in batch.to_pylist()]
    assert len(found) == 40
    assert sum(map(len, found)) < 200_000 + 100_000 + 40 * 2_000
    told = [json.loads(stored[1:]) for stored in found]
    assert {one["value_bytes"] for one in told} == {len(value) - 1}
    kept = sorted(len(base64.b64decode(one["value"])) for one in told)
    assert kept == [1024] * 37 + [51_200] * 3
    first, second = (batches_of([(group, 0, None, value)], 1)[0] for group in (0, 1))
    behind = quarantine.accepted([first] * 9 + [second] * 3, spec)
    large = [row["g"] for batch in behind for row in batch.to_pylist() if len(row["v"]) > 60_000]
    assert large == [0, 0, 0, 1, 1], "what waited is gone with its key group: there is room again"


def test_the_first_cause_of_a_row_is_named() -> None:
    (batch,) = batches_of([(0, 0, None, None)], 1)
    assert [bad.why for bad in bad_rows(batch, SPEC)] == ["its key is null"]


class _Nowhere:
    """A log that keeps nothing."""

    def stage(self, segment: str, blobs: Iterable[bytes]) -> list[str]:
        return [f"{segment}/{number}" for number, _ in enumerate(blobs)]


@pytest.mark.parametrize("merge", [None, lambda batch: [batch]], ids=["plain", "merged"])
def test_what_is_set_aside_is_not_refused_once_more_t46(merge: Merge | None) -> None:
    """Its id is longer than a key may be, and its value tells more than a value may take."""
    (batch,) = batches_of([(0, 0, b"12345", b"+v"), (1, 0, b"k", b"+too large a value")], 2)
    ack = stage_task([batch], SPEC, _Nowhere(), task=0, task_attempt="0", host="h", merge=merge)
    assert ack.refusal is None
    assert ack.rows == 2


@given(st.text(st.characters(codec="ascii"), max_size=70), st.integers(1, 32_768), st.data())
def test_an_id_is_of_the_key_group_that_is_asked_for(stem: str, key_groups: int, data: st.DataObject) -> None:
    group = data.draw(st.integers(0, key_groups - 1))
    found = id_in(group, key_groups, stem)
    assert key_group(found, key_groups) == group
    assert found.startswith(stem.encode())
    assert id_in(group, key_groups, stem) == found


def test_many_refused_rows_are_given_ids_of_one_of_many_key_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many texts as there are key groups were hashed for each: minutes for the rows that a task takes."""
    hashed = 0
    digest = xxhash.xxh64_intdigest

    def counted(content: bytes, seed: int = 0) -> int:
        nonlocal hashed
        hashed += 1
        return digest(content, seed)

    monkeypatch.setattr(xxhash, "xxh64_intdigest", counted)
    spec = msgspec.structs.replace(SPEC, key_groups=32_768)
    rows = batches_of([(30_000, 0, None, b"+v")] * 50, 50)
    ids = [row["k"] for batch in quarantine.accepted(rows, spec) for row in batch.to_pylist()]
    assert hashed < 50 * 10
    assert {key_group(one, 32_768) for one in ids} == {30_000}
    assert len(set(ids)) == 50


def test_a_time_of_another_year_is_named_by_its_columns_name_not_by_its_field() -> None:
    spec = msgspec.structs.replace(
        SPEC, value_bytes_max=99, time_columns=((), (("a", "since"), ("z", "z")), ())
    )
    (batch,) = batches_of([(0, 1, b"k", NO_TIME + b'{"a":"+10000-01-01","z":"2026-01-01"}')], 1)
    (bad,) = bad_rows(batch, spec)
    assert bad.why == "column since of its value has a date or time that is not of the years 1 to 9999"
