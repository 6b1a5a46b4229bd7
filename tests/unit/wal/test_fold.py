"""The fold: every row of the table of records, valid and each way to be void, and what holds for all logs."""

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidegate.errors import ConfigError, CorruptError, LineageError
from tidegate.wal import record as r
from tidegate.wal.fold import (
    RECENT_MAX,
    Entry,
    SummaryPlace,
    View,
    decided_for,
    fold,
    fold_all,
    once_key,
    recent_version,
    replay_of,
    same_barrier,
    why_void,
)
from tidegate.wal.tokens import Tokens

UUID = "uuid-1"


class Book:
    """A decision log in memory; each method makes the record that is right at this place.

    Any field can be given otherwise. ``add`` appends whatever it is given, and folds.
    """

    def __init__(self):
        self.records = []
        self.state = None

    def add(self, record):
        self.records.append(record)
        self.state = fold(self.state, record)
        return self

    def head(self, **changes):
        state = self.state
        fields = {"namespace": UUID, "writer": "w0", "epoch": 0, "prev_digest": ""}
        if state is not None:
            fields |= {"writer": state.writer, "epoch": state.epoch, "prev_digest": state.digest}
        return fields | changes

    def genesis(self, **changes):
        own = {"key_groups": 8, "name": "flights", "created_at_us": 1}
        return r.Genesis(**self.head() | own | changes)

    def open(self, **changes):
        state = self.state
        own = {"writer": f"w{state.epoch + 1}", "epoch": state.epoch + 1, "lineage": state.lineage or "q1"}
        return r.Open(**self.head() | own | changes)

    def batch(self, **changes):
        last = self.state.last_batch
        batch_id = last[1] + 1 if last and last[0] == self.state.generation else 0
        of = {
            "lineage": self.state.lineage,
            "generation": self.state.generation,
            "batch_id": batch_id,
        } | changes
        return r.BatchOrigin(**{"fingerprint": f"f{of['batch_id']}"} | of)

    def decided(self, **changes):
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

    def adopted(self, **changes):
        return r.Adopted(**self.head() | {"lineage": "q2"} | changes)

    def rewound(self, **changes):
        own = {"lineage": self.state.lineage, "generation": self.state.generation + 1}
        return r.Rewound(**self.head() | own | changes)

    def store_added(self, **changes):
        return r.StoreAdded(**self.head() | {"store": "redis"} | changes)

    def store_removed(self, **changes):
        return r.StoreRemoved(**self.head() | {"store": "redis"} | changes)

    def summary(self, **changes):
        return r.Summary(**self.head() | {"state": self.state} | changes)


def started():
    book = Book()
    return book.add(book.genesis())


def opened(versions=0):
    book = started()
    book.add(book.open())
    for _ in range(versions):
        book.add(book.decided())
    return book


def entries(records):
    return [Entry(10 * at, 10 * at + 10, r.encode_record(record)) for at, record in enumerate(records)]


def assert_void(book, record, reason):
    before = book.state
    assert reason in why_void(before, record)
    assert fold(before, record) is before
    view = fold_all(View(before), entries([record]))
    assert view.state is before
    assert (view.void, view.position) == (1, 10)
    assert view.void_reasons == (f"position 0: {why_void(before, record)}",)


def assert_valid(book, record):
    assert why_void(book.state, record) is None
    state = fold(book.state, record)
    before = book.state.digest if book.state else ""
    assert state.digest == r.digest_after(before, r.encode_record(record))
    view = fold_all(View(book.state), entries([record]))
    assert view == View(state, 10, 0, ())
    return state


# -- Genesis ------------------------------------------------------------------------------------


def test_genesis_is_valid_as_the_first_record():
    state = assert_valid(Book(), Book().genesis())
    assert (state.namespace, state.name, state.key_groups) == (UUID, "flights", 8)
    assert (state.epoch, state.last_version, state.lineage) == (0, 0, None)


@pytest.mark.parametrize("kind", ["open", "decided", "adopted", "rewound", "store_added", "store_removed"])
def test_a_log_starts_with_genesis_or_a_summary(kind):
    record = getattr(opened(), kind)()
    assert "does not start" in why_void(None, record)
    assert fold(None, record) is None
    rest = entries([record, Book().genesis()])
    with pytest.raises(CorruptError, match=r"here, position 0: the log starts with a .* cannot start one"):
        fold_all(View(), rest, "here")


def test_a_second_genesis_is_void():
    assert_void(started(), Book().genesis(), "started already")
    assert_void(opened(2), Book().genesis(key_groups=16), "started already")


@pytest.mark.parametrize(
    "kind", ["genesis", "open", "decided", "adopted", "rewound", "store_added", "store_removed", "summary"]
)
def test_a_record_of_another_namespace_is_void(kind):
    book = opened(1)
    assert_void(book, getattr(book, kind)(namespace="uuid-2"), "uuid-2")


# -- Open ---------------------------------------------------------------------------------------


def test_an_open_takes_epoch_writer_and_lineage():
    book = started()
    state = assert_valid(book, book.open(epoch=5, writer="me", lineage="q1"))
    assert (state.epoch, state.writer, state.lineage) == (5, "me", "q1")


def test_an_open_must_be_above_every_earlier_epoch():
    book = opened()
    book.add(book.open(epoch=7))
    for epoch in (0, 1, 6, 7):
        assert_void(book, book.open(epoch=epoch), "not above 7")
    assert_valid(book, book.open(epoch=8))


def test_an_open_of_another_lineage_is_void_once_there_are_versions():
    """T4: a checkpoint that was replaced starts a new query id."""
    book = opened(1)
    assert_void(book, book.open(lineage="q2"), "lineage q2 is not the current one, q1")
    assert_void(book, book.open(lineage=None), "lineage None")
    assert assert_valid(book, book.open(lineage="q1")).lineage == "q1"


def test_an_open_of_another_lineage_is_valid_before_the_first_version():
    assert assert_valid(opened(), opened().open(lineage="q2")).lineage == "q2"
    assert assert_valid(opened(), opened().open(lineage=None)).lineage == "q1"


def test_an_open_of_any_lineage_is_valid_while_none_is_set():
    book = started()
    book.add(book.open(lineage=None))
    book.add(book.decided(origin=r.LoadOrigin("t")))
    assert (book.state.last_version, book.state.lineage) == (1, None)
    assert assert_valid(book, book.open(lineage="q9")).lineage == "q9"


def test_a_void_open_takes_nothing():
    """The epoch of a refused Open is not the current one."""
    book = opened(1)
    book.add(book.open(epoch=9, writer="other", lineage="q2"))
    assert (book.state.epoch, book.state.writer) == (1, "w1")
    assert_valid(book, book.decided())
    assert_valid(book, book.open(epoch=2))


# -- records that need the current epoch -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["decided", "adopted", "rewound", "store_added", "store_removed"])
def test_a_record_of_an_older_driver_is_void(kind):
    """I6, T1: after a higher Open nothing that an older driver appends counts."""
    book = opened(1)
    late = getattr(book, kind)()
    assert_valid(book, late)
    book.add(book.open())
    assert_void(book, late, "epoch 1 is not the current one, 2")


@pytest.mark.parametrize("kind", ["decided", "adopted", "rewound", "store_added", "store_removed"])
@pytest.mark.parametrize("changes", [{"epoch": 0}, {"epoch": 2}, {"writer": "somebody"}])
def test_epoch_and_writer_must_both_be_the_current_ones(kind, changes):
    book = opened(1)
    assert_void(book, getattr(book, kind)(**changes), "is not the current one")


@pytest.mark.parametrize("kind", ["decided", "adopted", "rewound", "store_added", "store_removed"])
def test_nothing_is_valid_before_the_first_open(kind):
    book = started()
    own = {"origin": r.LoadOrigin("t")} if kind == "decided" else {}
    own |= {"lineage": "q1"} if kind == "rewound" else {}
    assert_void(book, getattr(book, kind)(epoch=0, writer="", **own), "no driver has opened")


# -- Decided ----------------------------------------------------------------------------------------


def test_a_decided_makes_the_next_version():
    book = opened(2)
    record = book.decided(tables={"t": r.TableAt("s2", start=3)}, decided_at_us=99)
    state = assert_valid(book, record)
    assert state.last_version == 3
    assert state.last_batch == (0, 2)
    assert state.tables == {"t": r.TableAt("s2", start=3)}
    assert state.decided_at_us == 99
    assert state.recent[-1] == r.DecidedVersion(
        3, record.attempt, record.origin, 2, "m:3", "md", 99, digest=state.digest
    )
    assert state.recent[:-1] == book.state.recent


@pytest.mark.parametrize("version", [0, 1, 2, 4, 5])
def test_a_version_that_does_not_follow_is_void(version):
    book = opened(2)
    assert_void(book, book.decided(version=version, base_version=2), "does not follow 2")


@pytest.mark.parametrize("base_version", [0, 1, 3])
def test_a_version_whose_state_was_read_elsewhere_is_void(base_version):
    book = opened(2)
    assert_void(book, book.decided(base_version=base_version), "was read at version")


@pytest.mark.parametrize("kind", ["decided", "adopted", "rewound", "store_added", "store_removed"])
def test_a_record_that_saw_another_log_is_void(kind):
    book = opened(1)
    assert_void(book, getattr(book, kind)(prev_digest=""), "prev_digest")
    record = getattr(book, kind)()
    book.add(book.store_added(store="another"))  # valid, so the digest moved on
    assert_void(book, record, "prev_digest")
    assert_valid(book, getattr(book, kind)())


def test_a_late_copy_does_not_undo_what_came_after_it():
    """T17: a producer's retry of the first of each pair lands after the second."""
    book = opened(1)
    added = book.store_added()
    book.add(added).add(book.store_removed()).add(added)
    assert book.state.stores == ()
    adopted = book.adopted(lineage="q2")
    book.add(adopted).add(book.adopted(lineage="q3")).add(adopted)
    assert book.state.lineage == "q3"


def test_a_void_record_does_not_move_the_digest():
    book = opened(1)
    record = book.decided()
    book.add(book.genesis()).add(book.open(epoch=1)).add(book.summary(prev_digest="x", state=opened().state))
    assert_valid(book, record)


@pytest.mark.parametrize("batch_id", [0, 1, 2])
def test_a_batch_that_was_decided_is_void(batch_id):
    """I2: a barrier makes exactly one version, whatever is replayed."""
    book = opened(3)
    assert_void(book, book.decided(origin=book.batch(batch_id=batch_id)), "does not follow 2")
    other = book.batch(batch_id=batch_id, fingerprint="other")
    assert_void(book, book.decided(origin=other), "does not follow 2")


def test_a_gap_upward_in_the_batch_ids_is_legal():
    book = opened(1)
    book.add(book.decided(origin=book.batch(batch_id=40)))
    assert book.state.last_batch == (0, 40)
    assert_void(book, book.decided(origin=book.batch(batch_id=39)), "does not follow 40")


@pytest.mark.parametrize("changes", [{"lineage": "q2"}, {"generation": 1}])
def test_a_batch_of_another_lineage_or_generation_is_void(changes):
    book = opened(1)
    assert_void(book, book.decided(origin=book.batch(**changes)), "another lineage or generation")


def test_a_batch_without_a_lineage_is_void():
    book = started()
    book.add(book.open(lineage=None))
    origin = r.BatchOrigin("q1", 0, 0, "f")
    assert_void(book, book.decided(origin=origin), "another lineage")


@pytest.mark.parametrize("origin", [r.LoadOrigin("t"), r.ImportOrigin("d")])
def test_a_load_or_an_import_counts_once(origin):
    book = opened(1)
    book.add(book.decided(origin=origin))
    assert book.state.once == (once_key(origin),)
    assert book.state.last_batch == (0, 0)
    assert_void(book, book.decided(origin=origin), "was decided already")
    book.add(book.decided()).add(book.open())
    assert_void(book, book.decided(origin=origin), "was decided already")
    assert_valid(book, book.decided(origin=type(origin)("another")))


def test_a_token_and_a_digest_of_the_same_text_are_two_things():
    book = opened()
    book.add(book.decided(origin=r.LoadOrigin("same")))
    assert_valid(book, book.decided(origin=r.ImportOrigin("same")))


def test_a_restore_names_a_version_that_was_made():
    book = opened(3)
    for version in (0, 1, 3):
        assert_valid(book, book.decided(origin=r.RestoreOrigin(version)))
    for version in (4, 9):
        assert_void(book, book.decided(origin=r.RestoreOrigin(version)), "was never made")
    book.add(book.decided(origin=r.RestoreOrigin(1)))
    assert_valid(book, book.decided(origin=r.RestoreOrigin(1)))


# -- Adopted, Rewound, stores ----------------------------------------------------------------------


def test_an_adopted_lineage_takes_over_and_starts_its_own_batches():
    book = opened(3)
    state = assert_valid(book, book.adopted(lineage="q2"))
    assert (state.lineage, state.last_batch, state.last_version) == ("q2", None, 3)
    book.add(book.adopted(lineage="q2"))
    assert_void(book, book.decided(origin=r.BatchOrigin("q1", 0, 3, "f")), "another lineage")
    book.add(book.decided())
    assert book.state.batches == {"q1": (0, 2), "q2": (0, 0)}


def test_a_lineage_adopted_again_goes_on_after_its_own_last_batch():
    book = opened(3)
    book.add(book.adopted(lineage="q2")).add(book.adopted(lineage="q1"))
    assert_void(book, book.decided(origin=book.batch(batch_id=2)), "does not follow 2")
    assert_valid(book, book.decided(origin=book.batch(batch_id=3)))


def test_after_a_rewind_the_batches_come_again_in_the_next_generation():
    """T42."""
    book = opened(3)
    undone = book.batch(batch_id=1)
    assert_void(book, book.decided(origin=undone), "does not follow")
    state = assert_valid(book, book.rewound())
    assert (state.generation, state.last_batch) == (1, (0, 2))
    book.add(book.rewound())
    assert_void(book, book.decided(origin=undone), "another lineage or generation")
    book.add(book.decided(origin=book.batch(batch_id=1)))
    assert book.state.last_batch == (1, 1)


@pytest.mark.parametrize("changes", [{"generation": 0}, {"generation": 2}, {"lineage": "q2"}])
def test_a_rewind_must_follow_the_current_generation_of_the_lineage(changes):
    book = opened(1)
    assert_void(book, book.rewound(**changes), "does not follow the current generation")


def test_stores_are_added_and_removed():
    book = opened()
    for store in ("redis", "cassandra", "redis"):
        book.add(book.store_added(store=store))
    assert book.state.stores == ("cassandra", "redis")
    for store in ("redis", "never"):
        book.add(book.store_removed(store=store))
    assert book.state.stores == ("cassandra",)


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


def test_a_summary_needs_no_epoch():
    """It says only what the log says already, so any driver's may stand."""
    book = opened(2)
    assert_says_nothing_new(book, book.summary(epoch=0, writer="old"))


def test_a_log_that_starts_with_a_summary_gives_the_same_state():
    book = opened(2)
    at = len(book.records)
    book.add(book.summary()).add(book.decided()).add(book.open()).add(book.decided())
    whole = fold_all(View(), entries(book.records))
    cut = fold_all(View(), entries(book.records)[at:])
    assert cut.state == whole.state == book.state
    assert (cut.void, cut.position) == (whole.void, whole.position) == (0, 10 * len(book.records))


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


# -- questions to the state -------------------------------------------------------------------------


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


# -- what holds for every log ---------------------------------------------------------------------------

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
