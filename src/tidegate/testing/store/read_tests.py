"""The store suite: reading at a version."""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tidegate.errors import SnapshotExpiredError
from tidegate.keys.groups import decode_key, encode_key
from tidegate.sinks.capabilities import SupportsReadWithPointer
from tidegate.sinks.records import ReadAt
from tidegate.sinks.store import Store
from tidegate.testing.store.harness import (
    EPOCH,
    KEY_GROUPS,
    StoreHarness,
    counts_of,
    counts_of_runs,
    entry,
    get,
    live,
    put,
    retire_version,
    runs_of,
    runs_of_stored,
    scanned,
    stamp,
)
from tidegate.wal.frame import Chunk
from tidegate.wal.record import TableAt

ODD_KEYS = [
    b"",
    b"\0",
    b"\0\0",
    b"a",
    b"a\0",
    b"a\0b",
    b"a\x01",
    b"'; DROP TABLE t",
    b"\xff",
    b"\xff\xff\xff\xff",
    "Öresund ✈".encode(),
    b"k" * 32 * 1024,
]


class ReadTests(StoreHarness):
    def test_keys_of_a_table_with_a_stride_are_in_multiples_of_it(self, store: Store) -> None:
        stride, keys = KEY_GROUPS // 2, [b"key-%02d" % number for number in range(40)]
        rows = {key: key[-2:] for key in keys}
        runs = runs_of({"t": rows}, stride=stride)
        assert {run.group for run in runs} == {0, stride}
        tables = {"t": TableAt("schema-1", stride=stride)}
        store.apply(stamp(1), Chunk(0, runs))
        store.seal(stamp(1), counts_of_runs(runs))
        assert store.publish(msgspec.structs.replace(entry(1, {"t": rows}), tables=tables), EPOCH) is True
        assert store.catalog(1, 1)[0].tables == tables
        all_keys, read_at = [*keys, b"absent"], store.catalog(1, 1)[0].read_at("t")
        values = [*rows.values(), None]
        assert store.get_many(read_at, all_keys).to_pylist() == values
        assert [store.get(read_at, key) for key in all_keys] == values
        assert store.rows_of(read_at, keys).to_pylist() == [b"+" + value for value in rows.values()]
        if isinstance(store, SupportsReadWithPointer):
            reads = [(read_at, all_keys), (read_at, keys[:1])]
            answers, pointer = store.get_many_with_pointer(reads)
            assert answers is not None
            assert [of_one.to_pylist() for of_one in answers] == [values, values[:1]]
            assert pointer.visible == 1
            assert [store.get_with_pointer(read_at, key)[0] for key in all_keys] == values
        scanned_rows = [
            row
            for group in (0, stride)
            for batch in store.scan(read_at, group)
            for row in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
        ]
        assert dict(scanned_rows) == rows
        assert len(scanned_rows) == len(rows)
        without = read_at._replace(stride=1)
        assert store.get_many(without, keys).null_count, "these are the namespace's key groups"
        assert list(store.self_check()) == []

    def test_the_newest_row_at_or_below_the_version_counts(self, store: Store) -> None:
        """T26: keys that a version did not touch are still there."""
        put(store, 1, {"t": {b"a": b"a1", b"b": b"b1"}})
        put(store, 2, {"t": {b"a": b"a2"}})
        put(store, 3, {"t": {b"c": b"c3"}})
        put(store, 4, {"t": {b"a": b"a4"}})
        keys = [b"a", b"b", b"c"]
        expected: dict[int, list[Any]] = {
            0: [None, None, None],
            1: [b"a1", b"b1", None],
            2: [b"a2", b"b1", None],
            3: [b"a2", b"b1", b"c3"],
            4: [b"a4", b"b1", b"c3"],
        }
        for version, values in expected.items():
            assert get(store, "t", keys, version) == values
            assert scanned(store, "t", version) == live(dict(zip(keys, values, strict=True)))

    def test_keys_of_every_type_come_back(self, store: Store) -> None:
        """One row for each, and instants and wall clocks of the same digits in tables of their own."""
        values = {
            "string": "ä",
            "binary": b"\x00\xff",
            "bigint": -(2**63),
            "boolean": True,
            "date": datetime.date(1, 1, 1),
            "decimal(38,20)": decimal.Decimal("-1E-20"),
            "timestamp": datetime.datetime(1, 1, 1, tzinfo=datetime.timezone.utc),
            "timestamp_ntz": datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
        }
        kinds = list(values)
        keys = {kind: encode_key([value], [kind]) for kind, value in values.items()}
        together = encode_key(list(values.values()), kinds)
        put(
            store,
            1,
            {**{f"t{n}": {key: b"v"} for n, key in enumerate(keys.values())}, "all": {together: b"v"}},
        )
        for number, (kind, key) in enumerate(keys.items()):
            assert get(store, f"t{number}", [key], 1) == [b"v"]
            (stored,) = scanned(store, f"t{number}", 1)
            assert decode_key(stored, [kind]) == values[kind]
        (stored,) = scanned(store, "all", 1)
        assert decode_key(stored, kinds) == tuple(values.values())

    def test_a_delete_hides_from_its_version_on(self, store: Store) -> None:
        """T27."""
        put(store, 1, {"t": {b"a": b"1", b"never": None}})
        put(store, 2, {"t": {b"a": None}})
        put(store, 3, {})
        put(store, 4, {"t": {b"a": b"4"}})
        assert [get(store, "t", [b"a", b"never"], version) for version in range(5)] == [
            [None, None],
            [b"1", None],
            [None, None],
            [None, None],
            [b"4", None],
        ]
        assert [scanned(store, "t", version) for version in (2, 3, 4)] == [{}, {}, {b"a": b"4"}]

    def test_a_table_starts_where_it_was_emptied(self, store: Store) -> None:
        put(store, 1, {"t": {b"a": b"1", b"b": b"1"}, "u": {b"a": b"u"}})
        put(store, 2, {"t": {b"b": b"2", b"c": b"2"}}, t=2)
        put(store, 3, {"t": {b"d": b"3"}}, t=2)
        keys = [b"a", b"b", b"c", b"d"]
        assert get(store, "t", keys, 1) == [b"1", b"1", None, None]
        assert get(store, "t", keys, 2, 2) == [None, b"2", b"2", None]
        assert get(store, "t", keys, 3, 2) == [None, b"2", b"2", b"3"]
        assert scanned(store, "t", 1) == {b"a": b"1", b"b": b"1"}
        assert scanned(store, "t", 3, 2) == {b"b": b"2", b"c": b"2", b"d": b"3"}
        assert get(store, "t", keys, 3, 3) == [None, None, None, b"3"]
        assert get(store, "u", [b"a"], 3) == [b"u"]

    def test_answers_stand_in_the_order_of_the_questions(self, store: Store) -> None:
        put(store, 1, {"t": {b"%d" % i: b"v%d" % i for i in range(20)}})
        keys = [b"7", b"absent", b"3", b"7", b"19", b"", b"3"]
        assert get(store, "t", keys, 1) == [b"v7", None, b"v3", b"v7", b"v19", None, b"v3"]
        assert get(store, "t", [], 1) == []

    def test_many_keys_at_once(self, store: Store) -> None:
        changes = {"t": {b"%05d" % i: b"%d" % i for i in range(7_000)}}
        put(store, 1, changes)
        keys = [b"%05d" % i for i in range(9_000)]
        random.Random(1).shuffle(keys)
        assert get(store, "t", keys, 1) == [changes["t"].get(key) for key in keys]

    def test_a_table_that_never_had_a_row_is_empty(self, store: Store) -> None:
        put(store, 1, {"t": {b"a": b"1"}})
        assert get(store, "other", [b"a", b""], 1) == [None, None]
        assert scanned(store, "other", 1) == {}

    def test_keys_are_bytes(self, store: Store) -> None:
        """T43: the empty key, zero bytes, prefixes of each other, the longest."""
        first = {key: b"1" + key[:9] for key in ODD_KEYS}
        put(store, 1, {"t": first})
        put(store, 2, {"t": {key: None if i % 2 else b"2" for i, key in enumerate(ODD_KEYS)}})
        assert get(store, "t", ODD_KEYS, 1) == list(first.values())
        assert scanned(store, "t", 1) == first
        assert get(store, "t", ODD_KEYS, 2) == [None if i % 2 else b"2" for i in range(len(ODD_KEYS))]
        assert sorted(scanned(store, "t", 2)) == sorted(ODD_KEYS[::2])

    def test_a_key_longer_than_any_is_absent(self, store: Store) -> None:
        """Readers receive keys from others: a store that refuses a key of this length is not asked for it."""
        long = b"k" * 200_000
        put(store, 1, {"t": {b"a": b"1"}})
        assert get(store, "t", [b"a", long, b"b"], 1) == [b"1", None, None]
        assert store.get(ReadAt("t", 1), long) is None

    def test_values_are_bytes(self, store: Store) -> None:
        values = [b"", b"-", b"+", b"d", b"\0", b"\xff" * 3, b"-deleted?", b'{"a": 1}', b"+" * 5_000]
        changes = {"t": {b"%d" % i: value for i, value in enumerate(values)}}
        put(store, 1, changes)
        assert get(store, "t", list(changes["t"]), 1) == values
        assert scanned(store, "t", 1) == changes["t"]

    def test_large_values(self, store: Store) -> None:
        large = bytes(range(256)) * (self.large_value_bytes // 256)
        changes = {"t": {b"a": large, b"b": b"small", b"c": large[::-1]}}
        put(store, 1, changes)
        put(store, 2, {"t": {b"a": b"no more"}})
        assert get(store, "t", [b"c", b"a"], 1) == [changes["t"][b"c"], large]
        assert get(store, "t", [b"a", b"b"], 2) == [b"no more", b"small"]
        assert scanned(store, "t", 1) == changes["t"]

    def test_every_stored_form_is_read(self, store: Store) -> None:
        """A sequence or an expiry precedes the value; readers get the value only."""
        expiry = (2**62).to_bytes(8, "big")
        forms = {
            b"plain": (b"+v", b"v"),
            b"sequence": (b"s\x03abcv", b"v"),
            b"expires": (b"e" + expiry + b"v", b"v"),
            b"both": (b"x" + expiry + b"\x01av", b"v"),
            b"deleted": (b"-", None),
            b"deleted with a sequence": (b"d\x02ab", None),
        }
        runs = runs_of_stored({"t": {key: stored for key, (stored, _) in forms.items()}})
        store.apply(stamp(1), Chunk(0, runs))
        store.seal(stamp(1), counts_of_runs(runs))
        assert store.publish(entry(1), EPOCH)
        assert get(store, "t", list(forms), 1) == [value for _, value in forms.values()]
        assert scanned(store, "t", 1) == live({key: value for key, (_, value) in forms.items()})
        self.check_stored(store, {key: stored for key, (stored, _) in forms.items()})

    @staticmethod
    def check_stored(store: Store, forms: Mapping[bytes, bytes]) -> None:
        """Check the stored form of rows, which a cache may keep whatever time it is read at."""
        values = store.get_stored(ReadAt("t", 1), [*forms, b"absent", b"plain"])
        assert values.type == pa.binary()
        assert values.to_pylist() == [*forms.values(), None, forms[b"plain"]]
        assert store.get_stored_one(ReadAt("t", 1), b"expires") == forms[b"expires"]
        assert store.get_stored_one(ReadAt("t", 1), b"absent") is None
        rows: dict[bytes, bytes] = {}
        for group in range(KEY_GROUPS):
            for batch in store.scan_stored(ReadAt("t", 1), group):
                rows.update(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
        assert rows == forms
        with pytest.raises(ValueError, match="decided_at_us"):
            store.get_many(ReadAt("t", 1), list(forms))

    # -- scan ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("extra", [-1, 0, 1])
    def test_scan_loses_nothing_at_the_borders_of_its_pages(self, one_group: Store, extra: int) -> None:
        # Half of the keys are their predecessor and a zero byte: the very next of all keys.
        pairs = [key for i in range(self.page_rows + 1) for key in (b"%06d" % i, b"%06d\0" % i)]
        keys = [b"", *pairs][: 2 * self.page_rows + extra]
        first = dict.fromkeys(keys, b"1")
        put(one_group, 1, {"t": first}, 1)
        second = dict.fromkeys(keys[: self.page_rows + 1]) | {keys[-1]: None, b"999999": b"2"}
        put(one_group, 2, {"t": second}, 1)
        assert scanned(one_group, "t", 1, key_groups=1) == first
        assert scanned(one_group, "t", 2, key_groups=1) == live({**first, **second})

    @pytest.mark.parametrize("seed", range(4))
    def test_scan_is_get_many_over_all_keys(self, store: Store, seed: int) -> None:
        """A random history against plain dictionaries, read at every version both ways."""
        chance = random.Random(seed)
        keys = [b"", *(b"%d" % i for i in range(60))]
        tables = ["t", "T"]
        state: dict[str, dict[bytes, bytes | None]] = {table: {} for table in tables}
        starts = dict.fromkeys(tables, 0)
        history = []
        for version in range(1, 9):
            changes: dict[str, dict[bytes, bytes | None]] = {}
            for table in tables:
                chosen = chance.sample(keys, chance.randrange(len(keys) // 2))
                changes[table] = {
                    key: None if chance.random() < 0.3 else b"%d %d" % (version, chance.randrange(99))
                    for key in chosen
                }
                if chance.random() < 0.2:
                    starts[table], state[table] = version, {}
                state[table].update(changes[table])
            put(store, version, changes, **starts)
            history.append((version, dict(starts), {table: live(state[table]) for table in tables}))
        for version, starts_at, expected in history:
            for table in tables:
                assert scanned(store, table, version, starts_at[table]) == expected[table]
                values = get(store, table, keys, version, starts_at[table])
                assert live(dict(zip(keys, values, strict=True))) == expected[table]

    def test_a_scan_stays_at_its_version(self, one_group: Store) -> None:
        """I8: versions applied and published between two batches of a scan do not show."""
        first = {b"%06d" % i: b"1" for i in range(3 * self.page_rows)}
        put(one_group, 1, {"t": first}, 1)
        writer = self.reopen(one_group)
        rows: dict[bytes, bytes] = {}
        for number, batch in enumerate(one_group.scan(ReadAt("t", 1), 0), start=2):
            rows.update(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
            changes = {"t": {key: None if i % 2 else b"new" for i, key in enumerate(first)}}
            put(writer, number, changes, 1)
        assert rows == first
        writer.close()

    def test_a_scan_holds_nothing_open(self, one_group: Store) -> None:
        """A reader that stops in the middle blocks nothing."""
        changes = {"t": {b"%06d" % i: b"1" for i in range(2 * self.page_rows)}}
        put(one_group, 1, changes, 1)
        abandoned = one_group.scan(ReadAt("t", 1), 0)
        next(abandoned)
        writer = self.reopen(one_group)
        put(writer, 2, changes, 1)
        assert writer.announce(2) == 2
        retire_version(writer, 2, [Chunk(0, runs_of(changes, 1))])
        assert writer.verify(stamp(2), counts_of(changes, 1)) == []
        writer.close()

    def test_a_scan_whose_version_is_retired_raises_in_the_middle(self, one_group: Store) -> None:
        """T28: refuse, never mix, never end early."""
        first = {b"%06d" % i: b"1" for i in range(3 * self.page_rows)}
        put(one_group, 1, {"t": first}, 1)
        second = {"t": dict.fromkeys(list(first)[: 10 + self.page_rows], b"2")}
        put(one_group, 2, second, 1)
        scan = one_group.scan(ReadAt("t", 1), 0)
        rows = next(scan)["key"].to_pylist()
        one_group.announce(2)
        retire_version(one_group, 2, [Chunk(0, runs_of(second, 1))])
        with pytest.raises(SnapshotExpiredError):
            for batch in scan:
                rows += batch["key"].to_pylist()
        assert len(rows) < len(first)
