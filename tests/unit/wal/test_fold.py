"""The fold: every row of the table of records, valid and each way to be void."""

import pytest

from support.record_book import UUID, Book, assert_valid, assert_void, entries, opened, started
from tidegate.errors import CorruptError
from tidegate.wal import record as r
from tidegate.wal.fold import (
    View,
    fold,
    fold_all,
    once_key,
    why_void,
)

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
