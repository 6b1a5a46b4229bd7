"""The fold of Summaries, valid and each way to be void; views, which go on where they ended."""

import msgspec
import pytest

from support.record_book import UUID, Book, assert_valid, assert_void, entries, opened
from tidegate.errors import ConfigError, CorruptError
from tidegate.wal import record as r
from tidegate.wal.fold import (
    Entry,
    SummaryPlace,
    View,
    fold,
    fold_all,
    why_void,
)

# -- Summary ----------------------------------------------------------------------------------------


def assert_says_nothing_new(book, record):
    """It is valid, noted, and leaves the state as it was, the digest included."""
    assert why_void(book.state, record) is None
    assert fold(book.state, record) is book.state
    place = SummaryPlace(0, book.state.last_version, book.state.decided_at_us, book.state.digest)
    assert fold_all(View(book.state), entries([record])) == View(book.state, 10, 0, (), (place,))


def test_a_summary_in_the_middle_must_be_the_fold_at_its_place():
    book = opened(2)
    assert_says_nothing_new(book, book.summary())
    late = book.summary()
    book.add(book.decided())
    assert_void(book, late, "not the fold at its place")


def test_a_summary_that_lands_late_or_twice_voids_no_other_record():
    """I6, T17: it may come between what a driver folded and what it decides on that; from anyone."""
    book = opened(2)
    decided, summary = book.decided(), book.summary()
    book.add(summary).add(summary)
    assert_valid(book, decided)
    book.add(decided).add(summary)
    assert book.state.last_version == 3


def test_a_view_remembers_where_the_last_summaries_stand(monkeypatch):
    monkeypatch.setattr("tidegate.wal.fold.SUMMARIES_MAX", 3)
    book = opened()
    for _ in range(5):
        book.add(book.decided()).add(book.summary())
    view = fold_all(View(), entries(book.records))
    assert [(place.position, place.version) for place in view.summaries] == [(70, 3), (90, 4), (110, 5)]
    facts = {fact.version: fact for fact in book.state.recent}
    assert all(place.digest == facts[place.version].digest for place in view.summaries)
    assert all(place.decided_at_us == facts[place.version].decided_at_us for place in view.summaries)


@pytest.mark.parametrize(
    "changes",
    [
        {"last_version": 3},
        {"epoch": 9},
        {"digest": ""},
        {"once": ("load:t",)},
        {"recent": ()},
        {"batches": {}},
    ],
)
def test_a_summary_that_says_otherwise_is_void(changes):
    book = opened(2)
    state = msgspec.structs.replace(book.state, **changes)
    assert_void(book, book.summary(state=state), "not the fold at its place")


@pytest.mark.parametrize(
    "changes,reason",
    [
        ({"namespace": "uuid-2"}, "namespace uuid-2"),
        ({"namespace": ""}, "namespace "),
        ({"digest": ""}, "digest ''"),
        ({"last_version": 3}, "last version, 3"),
        ({"last_version": 0}, "last version, 0"),
        ({"recent": ()}, "last version, 2"),
    ],
)
def test_a_summary_that_is_no_ones_state_does_not_start_a_log(changes, reason):
    """I10: after a cut nothing else could tell that it is wrong."""
    book = opened(2)
    bad = book.summary(namespace=UUID, state=msgspec.structs.replace(book.state, **changes))
    if "namespace" in changes:
        bad = book.summary(state=msgspec.structs.replace(book.state, namespace="x"), **changes)
        reason = "of namespace 'x'"
    assert reason in why_void(None, bad)
    with pytest.raises(CorruptError, match="starts with a Summary that cannot start one"):
        fold_all(View(), entries([bad, book.decided(), book.genesis()]))


def test_a_summary_with_a_hole_in_its_facts_does_not_start_a_log():
    book = opened(4)
    facts = book.state.recent
    for recent in (facts[:1] + facts[2:], facts[:-1], facts[::-1], (*facts, facts[-1])):
        bad = book.summary(state=msgspec.structs.replace(book.state, recent=recent))
        assert "do not lead up to" in why_void(None, bad)
    assert why_void(None, book.summary(state=msgspec.structs.replace(book.state, recent=facts[1:]))) is None


def test_an_unknown_first_record_is_refused():
    """A newer release may have cut the log behind a kind of record that this one does not know."""
    body = b'{"kind":"summary2","state":{}}'
    content = bytes([r.FORMAT]) + r.checksum(body) + body
    with pytest.raises(ConfigError, match=r"position 500: record kind 'summary2' .*upgrade"):
        fold_all(View(), [Entry(500, 600, content)])


# -- the view -----------------------------------------------------------------------------------------


def test_a_view_goes_on_where_it_ended():
    book = opened(3)
    all_entries = entries(book.records)
    for at in range(len(all_entries) + 1):
        view = fold_all(View(), all_entries[:at])
        assert view.position == 10 * at
        assert fold_all(view, all_entries[at:]) == fold_all(View(), all_entries)
    assert fold_all(View(), []) == View()


def test_the_reasons_of_the_last_ten_void_records_are_kept():
    view = fold_all(View(), entries([Book().genesis()] * 40))
    assert view.void == 39
    assert view.void_reasons == tuple(
        f"position {10 * at}: the namespace has started already" for at in range(30, 40)
    )


def test_a_record_that_cannot_be_read_stops_the_fold_and_names_its_place():
    good = entries(opened(1).records)
    bad = bytearray(good[1].content)
    bad[-1] ^= 1
    with pytest.raises(CorruptError, match="the log, position 10"):
        fold_all(View(), [good[0], good[1]._replace(content=bytes(bad))], "the log")
    newer = bytes([r.FORMAT + 1]) + good[1].content[1:]
    with pytest.raises(ConfigError, match="decision log, position 10"):
        fold_all(View(), [good[0], good[1]._replace(content=newer)])
