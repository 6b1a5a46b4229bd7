"""Properties of the fold that hold for every log."""

from hypothesis import assume, given
from hypothesis import strategies as st

from support.record_book import UUID, entries, started
from tidegate.wal import record as r
from tidegate.wal.fold import (
    View,
    fold,
    fold_all,
    same_barrier,
    why_void,
)

KINDS = ["open", "decided", "adopted", "rewound", "store_added", "store_removed", "summary", "genesis"]


@st.composite
def logs(draw):
    """A log of mostly valid records, with late, repeated and foreign ones among them."""
    book, made = started(), []
    for _ in range(draw(st.integers(0, 25))):
        if made and draw(st.integers(0, 3)) == 0:
            record = draw(st.sampled_from(made))  # a producer's retry, or a driver that was slow
        else:
            kind = draw(st.sampled_from([*KINDS, "decided", "decided", "open"]))
            changes = draw(
                st.sampled_from([{}] * 6 + [{"epoch": 1}, {"writer": "w1"}, {"namespace": "other"}])
            )
            if kind == "decided" and draw(st.integers(0, 3)) == 0:
                origins = [r.LoadOrigin("t"), r.ImportOrigin("d"), r.RestoreOrigin(0)]
                changes = changes | {"origin": draw(st.sampled_from(origins))}
            if kind == "decided" and "origin" not in changes and book.state.lineage is None:
                continue
            if kind == "rewound" and book.state.lineage is None:
                continue
            record = getattr(book, kind)(**changes)
        made.append(record)
        if draw(st.integers(0, 4)):  # else it was sent, and lands later or never
            book.add(record)
    return book.records


def validity(records):
    state, found = None, []
    for record in records:
        found.append(why_void(state, record))
        state = fold(state, record)
    return found


@given(logs(), st.integers(0, 30))
def test_validity_never_changes_when_records_are_appended(records, at):
    assert validity(records[:at]) == validity(records)[:at]


@given(logs(), st.data())
def test_a_copy_of_a_record_is_void_wherever_it_lands(records, data):
    """T17: "possibly persisted" may mean twice, and the second time late."""
    at = data.draw(st.integers(0, len(records) - 1))
    assume(validity(records)[at] is None and not isinstance(records[at], r.Summary))
    later = data.draw(st.integers(at + 1, len(records)))
    twice = [*records[:later], records[at], *records[later:]]
    assert validity(twice)[later] is not None
    assert fold_all(View(), entries(twice)).state == fold_all(View(), entries(records)).state


@given(logs())
def test_versions_follow_each_other_and_every_barrier_is_decided_once(records):
    """I2, I7."""
    state, facts = None, []
    for record in records:
        before, state = state, fold(state, record)
        if state is not before and state.recent and (before is None or state.recent != before.recent):
            facts.append(state.recent[-1])
    assert [fact.version for fact in facts] == list(range(1, len(facts) + 1))
    barriers = [fact.origin for fact in facts if not isinstance(fact.origin, r.RestoreOrigin)]
    assert not any(same_barrier(one, other) for at, one in enumerate(barriers) for other in barriers[:at])
    assert state.recent == tuple(facts)


@given(logs(), st.sets(st.integers(0, 25), max_size=6))
def test_a_log_cut_behind_any_valid_summary_gives_the_same_state(records, places):
    """With the digest in it: what is appended behind the cut is valid on the one if on the other."""
    records = with_summaries(records, places)
    whole = fold_all(View(), entries(records))
    for at, (record, reason) in enumerate(zip(records, validity(records), strict=True)):
        if isinstance(record, r.Summary) and reason is None:
            cut = fold_all(View(), entries(records)[at:])
            assert cut.state == whole.state
            assert validity(records[at:]) == validity(records)[at:]
            assert cut.summaries == tuple(s for s in whole.summaries if s.position >= 10 * at)


@given(logs(), st.sets(st.integers(0, 25), max_size=6))
def test_summaries_change_nothing(records, places):
    """Whoever sends how many, whenever they land."""
    more = with_summaries(records, places)
    added = {id(record) for record in more} - {id(record) for record in records}
    reasons = [why for record, why in zip(more, validity(more), strict=True) if id(record) not in added]
    assert reasons == validity(records)
    assert fold_all(View(), entries(more)).state == fold_all(View(), entries(records)).state


def with_summaries(records, places):
    """The same log with a right Summary behind each of these places."""
    state, made = None, []
    for at, record in enumerate(records):
        state = fold(state, record)
        made.append(record)
        if at in places:
            made.append(r.Summary(namespace=UUID, writer="any", epoch=0, prev_digest="", state=state))
    return made


@given(logs())
def test_the_state_survives_its_bytes(records):
    state = fold_all(View(), entries(records)).state
    summary = r.Summary(namespace=UUID, writer="", epoch=0, prev_digest="", state=state)
    assert r.decode_record(r.encode_record(summary), "here").state == state
