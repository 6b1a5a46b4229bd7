"""Questions to the state of the fold: recent versions, replays, barriers and tokens."""

import pytest

from support.record_book import Book, opened
from tidegate.errors import LineageError
from tidegate.wal import record as r
from tidegate.wal.fold import (
    RECENT_MAX,
    decided_for,
    fold,
    once_key,
    recent_version,
    replay_of,
    same_barrier,
    undone_by,
    why_void,
)
from tidegate.wal.tokens import Tokens


def test_facts_are_kept_of_the_last_thousand_versions():
    book = opened(RECENT_MAX + 5)
    assert book.state.last_version == RECENT_MAX + 5
    assert [fact.version for fact in book.state.recent] == list(range(6, RECENT_MAX + 6))
    assert recent_version(book.state, 5) is None
    assert recent_version(book.state, RECENT_MAX + 6) is None
    for version in (6, 7, 500, RECENT_MAX + 5):
        assert recent_version(book.state, version).version == version
    replayed = replay_of(book.state, book.batch(batch_id=5))
    assert replayed.version == 6
    with pytest.raises(LineageError, match=r"batch 4 .* no longer kept"):
        replay_of(book.state, book.batch(batch_id=4))
    assert replay_of(book.state, book.batch()) is None


def test_facts_of_no_version():
    state = opened().state
    assert [recent_version(state, version) for version in (-1, 0, 1)] == [None] * 3
    assert [recent_version(opened(2).state, version) for version in (-1, 0, 3)] == [None] * 3


def test_the_question_is_which_attempt_the_fold_gives():
    """Append rule 3, T25: the second of two attempts learns that the first one won."""
    book = opened(1)
    first, second = book.decided(attempt="first"), book.decided(attempt="second")
    book.add(first).add(second).add(first)
    assert decided_for(book.state, second.origin).attempt == "first"
    assert book.state.last_version == 2
    assert decided_for(book.state, book.batch()) is None


def test_a_replay_with_the_same_offsets_is_the_version_it_made():
    book = opened(3)
    for batch_id in range(3):
        assert replay_of(book.state, book.batch(batch_id=batch_id)).version == batch_id + 1
    assert replay_of(book.state, book.batch(batch_id=3)) is None
    assert replay_of(opened().state, opened().batch()) is None


def test_a_replay_with_other_offsets_is_refused():
    """T5: a checkpoint restored from an older copy was planned anew."""
    book = opened(3)
    with pytest.raises(LineageError, match=r"version 2 .*f1.*other.*tidegate adopt"):
        replay_of(book.state, book.batch(batch_id=1, fingerprint="other"))


def test_a_replay_of_a_batch_that_was_skipped_is_refused():
    book = opened(1)
    book.add(book.decided(origin=book.batch(batch_id=5)))
    with pytest.raises(LineageError, match="batch 3"):
        replay_of(book.state, book.batch(batch_id=3))


def test_a_batch_of_an_earlier_generation_is_no_replay_of_this_one():
    book = opened(3)
    book.add(book.decided(origin=r.RestoreOrigin(1)))
    book.add(book.rewound())
    assert replay_of(book.state, book.batch(batch_id=1)) is None
    book.add(book.decided(origin=book.batch(batch_id=1)))
    assert replay_of(book.state, book.batch(batch_id=1, fingerprint="f1")).version == 5
    assert decided_for(book.state, r.BatchOrigin("q1", 0, 1, "f1")).version == 2


def test_a_batch_that_a_restored_state_still_holds_is_a_replay_in_the_next_generation_i2():
    book = opened(3)
    book.add(book.decided(origin=r.LoadOrigin("t")))
    for restored in (3, 4, 5, 6):  # the restores of restores too
        book.add(book.decided(origin=r.RestoreOrigin(restored)))
    book.add(book.rewound())
    assert replay_of(book.state, book.batch(batch_id=1)).version == 2
    assert replay_of(book.state, book.batch(batch_id=3)) is None
    with pytest.raises(LineageError, match="set it back to right behind batch 2"):
        replay_of(book.state, book.batch(batch_id=2, fingerprint="other"))


def test_same_barrier():
    one = r.BatchOrigin("q", 0, 1, "f")
    assert same_barrier(one, r.BatchOrigin("q", 0, 1, "other"))
    assert not same_barrier(one, r.BatchOrigin("q", 1, 1, "f"))
    assert not same_barrier(one, r.BatchOrigin("p", 0, 1, "f"))
    assert not same_barrier(one, r.LoadOrigin("q"))
    assert same_barrier(r.LoadOrigin("t"), r.LoadOrigin("t"))
    assert not same_barrier(r.LoadOrigin("t"), r.ImportOrigin("t"))


def test_only_loads_and_imports_have_a_key():
    for origin in (r.BatchOrigin("q", 0, 0, "f"), r.RestoreOrigin(1)):
        with pytest.raises(ValueError, match="more than once"):
            once_key(origin)


def test_tokens_of_states_that_part_are_separate():
    base = Tokens.of(("load:a",))
    one, other = base.followed_by("load:b"), base.followed_by("load:c")
    assert one == ("load:a", "load:b")
    assert other == ("load:a", "load:c")
    assert [token in one for token in ("load:a", "load:b", "load:c")] == [True, True, False]
    assert [token in other for token in ("load:a", "load:b", "load:c")] == [True, False, True]
    assert [token in base for token in ("load:a", "load:b", "load:c")] == [True, False, False]
    assert "load:d" in one.followed_by("load:d")
    assert "load:d" not in one


def test_tokens_are_looked_up_without_comparing_each():
    """30,000 loads took 9 s: each was compared with all before it, twice."""
    tokens, compared = Tokens.of(()), []

    class Key(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            compared.append(other)
            return str.__eq__(self, other)

    for nth in range(1_000):
        assert Key(nth) not in tokens
        tokens = tokens.followed_by(Key(nth))
    assert len(compared) < 100


def test_a_summary_after_loads_reads_back_as_the_state():
    book = Book()
    book.add(book.genesis())
    book.add(book.open())
    for nth in range(3):
        book.add(book.decided(origin=r.LoadOrigin(f"token-{nth}")))
    summary = r.decode_record(r.encode_record(book.summary()), "here")
    assert summary.state == book.state
    assert book.state == summary.state
    fresh = fold(None, summary)
    assert list(fresh.once) == list(book.state.once)
    again = book.decided(origin=r.LoadOrigin("token-1"))
    assert why_void(fresh, again) == why_void(book.state, again) == "load:token-1 was decided already"


def test_a_version_is_undone_by_the_restore_that_left_it_out():
    """Of seven versions, 4 restores 2, 6 restores 5: 3 is undone by 4, and 4 and 5 are held."""
    book = opened(3)
    for number, restored in enumerate((2, None, 5, None), 4):
        origin = book.batch(batch_id=number) if restored is None else r.RestoreOrigin(restored)
        book.add(book.decided(version=number, base_version=number - 1, origin=origin))
    assert [undone_by(book.state, version) for version in range(1, 8)] == [
        None,
        None,
        4,
        None,
        None,
        None,
        None,
    ]
    book.add(book.decided(version=8, base_version=7, origin=r.RestoreOrigin(3)))
    assert [undone_by(book.state, version) for version in range(1, 9)] == [None] * 3 + [8] * 4 + [None]
