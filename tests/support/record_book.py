"""A decision log in memory for tests of the fold, and what a valid and a void record do to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidegate.wal import record as r
from tidegate.wal.fold import (
    Entry,
    View,
    fold,
    fold_all,
    why_void,
)

UUID = "uuid-1"


class Book:
    """A decision log in memory; each method makes the record that is right at this place.

    Any field can be given otherwise. ``add`` appends whatever it is given, and folds.
    """

    def __init__(self) -> None:
        self.records: list[r.AnyRecord] = []
        self.state: Any = None

    def add(self, record: r.AnyRecord) -> Book:
        self.records.append(record)
        self.state = fold(self.state, record)
        return self

    def head(self, **changes: Any) -> dict[str, Any]:
        state = self.state
        fields = {"namespace": UUID, "writer": "w0", "epoch": 0, "prev_digest": ""}
        if state is not None:
            fields |= {"writer": state.writer, "epoch": state.epoch, "prev_digest": state.digest}
        return fields | changes

    def genesis(self, **changes: Any) -> r.Genesis:
        own = {"key_groups": 8, "name": "flights", "created_at_us": 1}
        return r.Genesis(**self.head() | own | changes)

    def open(self, **changes: Any) -> r.Open:
        state = self.state
        own = {"writer": f"w{state.epoch + 1}", "epoch": state.epoch + 1, "lineage": state.lineage or "q1"}
        return r.Open(**self.head() | own | changes)

    def batch(self, **changes: Any) -> r.BatchOrigin:
        last = self.state.last_batch
        batch_id = last[1] + 1 if last and last[0] == self.state.generation else 0
        of = {
            "lineage": self.state.lineage,
            "generation": self.state.generation,
            "batch_id": batch_id,
        } | changes
        return r.BatchOrigin(**{"fingerprint": f"f{of['batch_id']}"} | of)

    def decided(self, **changes: Any) -> r.Decided:
        version = self.state.last_version + 1
        own = {
            "attempt": f"a{len(self.records)}",
            "version": version,
            "origin": self.batch(),
            "base_version": version - 1,
            "manifest_address": f"m:{version}",
            "manifest_digest": "md",
            "tables": {"t": r.TableAt("s1")},
            "parallelism": {},
            "source_offsets": "",
            "decided_at_us": version,
        }
        return r.Decided(**self.head() | own | changes)

    def adopted(self, **changes: Any) -> r.Adopted:
        return r.Adopted(**self.head() | {"lineage": "q2"} | changes)

    def rewound(self, **changes: Any) -> r.Rewound:
        own = {"lineage": self.state.lineage, "generation": self.state.generation + 1}
        return r.Rewound(**self.head() | own | changes)

    def store_added(self, **changes: Any) -> r.StoreAdded:
        return r.StoreAdded(**self.head() | {"store": "redis"} | changes)

    def store_removed(self, **changes: Any) -> r.StoreRemoved:
        return r.StoreRemoved(**self.head() | {"store": "redis"} | changes)

    def summary(self, **changes: Any) -> r.Summary:
        return r.Summary(**self.head() | {"state": self.state} | changes)


def started() -> Book:
    book = Book()
    return book.add(book.genesis())


def opened(versions: int = 0) -> Book:
    book = started()
    book.add(book.open())
    for _ in range(versions):
        book.add(book.decided())
    return book


def entries(records: Iterable[r.AnyRecord]) -> list[Entry]:
    return [Entry(10 * at, 10 * at + 10, r.encode_record(record)) for at, record in enumerate(records)]


def assert_void(book: Book, record: r.AnyRecord, reason: str) -> None:
    before = book.state
    assert reason in (why_void(before, record) or "")
    assert fold(before, record) is before
    view = fold_all(View(before), entries([record]))
    assert view.state is before
    assert (view.void, view.position) == (1, 10)
    assert view.void_reasons == (f"position 0: {why_void(before, record)}",)


def assert_valid(book: Book, record: r.AnyRecord) -> Any:
    assert why_void(book.state, record) is None
    state = fold(book.state, record)
    before = book.state.digest if book.state else ""
    assert state is not None
    assert state.digest == r.digest_after(before, r.encode_record(record))
    view = fold_all(View(book.state), entries([record]))
    assert view == View(state, 10, 0, ())
    return state
