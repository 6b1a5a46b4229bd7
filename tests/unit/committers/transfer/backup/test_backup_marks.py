"""Records after the last decision: which query is followed, which batches are undone, which stores follow."""

import pytest

from support.committers.backups import place_in, stored
from tidegate.committers.opening.open import open_namespace, take_over
from tidegate.committers.opening.rekeyed import Moved
from tidegate.committers.opening.store_list import add_to_list, remove_from_list
from tidegate.committers.operations.verify import verify
from tidegate.committers.steps.append import append_adopted
from tidegate.committers.transfer.backup.chain import FULL, INCREMENT, read_chain
from tidegate.committers.transfer.backup.contents import reached_at
from tidegate.committers.transfer.backup.restore_from import Way
from tidegate.errors import ConfigError, LineageError
from tidegate.testing.arrow_barrier import batch
from tidegate.testing.example import LINEAGE
from tidegate.wal.fold import replay_of

NEW = "0e9d3f5c-9f2e-4f3f-8a63-7a0f7a2c9a10"
ROWS = {"aircraft": {"N1": {"carrier": "X", "flights": 1}}}


@pytest.fixture
def place(tmp_path):
    """Three batches, with a full backup at version 2."""
    made = place_in(tmp_path, "memory", keep_versions=9)
    for number in (1, 2, 3):
        made.write(number)
        if number == 2:
            made.backup()
    return made


def lose(place, way):
    if way is Way.AGAIN:  # after the mark, which the log keeps
        place.load("lost", ROWS)
        place.trim(place.driver.folded.last_version)
    if way is Way.NEW:
        place.lose_log()
    place.lose_store()


def is_refused(place, lineage, error, words):
    driver = place.unopened()
    with pytest.raises(error, match=words):
        open_namespace(driver, lineage)


@pytest.mark.parametrize("first", [True, False], ids=["unchanged", "with a version"])
@pytest.mark.parametrize("to", [None, 2], ids=["newest", "to"])
@pytest.mark.parametrize("way", Way, ids=lambda way: way.value)
def test_the_adopted_checkpoint_is_followed_and_the_replaced_one_is_refused(place, way, to, first):
    """Red before: a new log followed the checkpoint that had been replaced, and refused the adopted one."""
    if first:
        place.backup()  # version 3; the next run is at an unchanged version
    place.adopt(NEW)
    done = place.backup()
    assert (done.version, done.link.kind, done.link.version) == (3, INCREMENT, 3)
    assert done.link.after == (3 if first else 2)
    wanted = {3: stored(place.driver.store)}
    lose(place, way)
    place.restore(to)
    is_refused(place, LINEAGE, LineageError, f"follows the checkpoint of query {NEW}")
    driver = place.again().driver
    assert driver.folded.lineage == NEW
    assert stored(driver.store) == wanted.get(to or 3, stored(driver.store))
    assert verify(driver.log, driver.store).findings == []
    version = driver.folded.last_version
    assert place.example.write(ROWS, batch_id=0) == version + 1


def test_a_full_backup_has_what_follows_its_version(place, tmp_path):
    place.adopt(NEW)
    place.folder = tmp_path / "another"
    assert place.backup().link.kind == FULL
    lose(place, Way.NEW)
    place.restore()
    assert place.again().driver.folded.lineage == NEW


@pytest.mark.parametrize("way", Way, ids=lambda way: way.value)
def test_a_namespace_that_was_moved_stays_moved_and_may_be_taken_back(place, way):
    """Red before: a source whose rekey was finished took batches again, which its copy did not get."""
    place.backup()
    driver = place.unopened()
    take_over(driver, None, command="rekey")
    append_adopted(driver.decisions, Moved("flights_32", LINEAGE).as_lineage())
    assert place.backup_with(driver).link.after == 3
    before = stored(place.driver.store)
    if way is Way.NEW:
        place.lose_log()
    place.lose_store()
    place.restore(2 if way is Way.AGAIN else None)
    is_refused(place, LINEAGE, ConfigError, "was moved to namespace flights_32")
    assert place.adopt(LINEAGE).driver.folded.lineage == LINEAGE
    state = place.driver.folded
    if way is Way.AGAIN:  # its checkpoint was set back to the restored state
        assert replay_of(state, batch(LINEAGE, 1, generation=state.generation)).version == 2
        assert replay_of(state, batch(LINEAGE, 2, generation=state.generation)) is None
    else:
        assert stored(place.driver.store) == before
        assert place.example.write(ROWS, batch_id=3) == state.last_version + 1


@pytest.mark.parametrize("way", Way, ids=lambda way: way.value)
def test_undone_batches_stay_known(place, way):
    place.restore_older(2)
    place.backup()
    place.restore_older(2, reprocess=True)  # the version is there: Rewound alone follows
    assert place.driver.folded.generation == 1
    assert place.backup().link.after == 4
    wanted = stored(place.driver.store)
    lose(place, way)
    assert place.restore().kept == batch(LINEAGE, 1)
    driver = place.again().driver
    assert stored(driver.store) == wanted
    state = driver.folded
    assert state.generation == 1 or way is Way.AGAIN
    assert replay_of(state, batch(LINEAGE, 1, generation=state.generation)).version == 2
    assert replay_of(state, batch(LINEAGE, 2, generation=state.generation)) is None


@pytest.mark.parametrize("way", [Way.AGAIN, Way.NEW], ids=lambda way: way.value)
def test_a_query_that_is_taken_back_has_none_of_its_batches_twice_or_never(place, way):
    """Red before: a new log knew the versions from the last batch on, so an older query's counted twice."""
    place.adopt(NEW)
    place.write(4)
    place.write(5)
    place.adopt(LINEAGE)
    place.example.write(ROWS, batch_id=3)
    place.adopt("0c0ffee0-0000-4000-8000-000000000000")  # which never writes
    place.backup()
    lose(place, way)
    place.restore()
    state = place.again().driver.folded
    for lineage, number in ((NEW, 1), (LINEAGE, 3)):
        assert place.adopt(lineage)
        state = place.driver.folded
        held = replay_of(state, batch(lineage, number, generation=state.generation))
        assert held is not None
        assert held.origin == batch(lineage, number)
        assert replay_of(state, batch(lineage, number + 1, generation=state.generation)) is None


@pytest.mark.parametrize("way", [Way.AGAIN, Way.NEW], ids=lambda way: way.value)
def test_batches_after_an_older_version_may_be_replayed_after_another_query_was_adopted(place, way):
    place.backup()
    place.adopt(NEW)
    place.backup()
    if way is Way.NEW:
        place.lose_log()
    place.lose_store()
    place.restore(2)
    place.lineage = NEW
    place.again()
    place.adopt(LINEAGE)
    state = place.driver.folded
    assert replay_of(state, batch(LINEAGE, 1, generation=state.generation)).version == 2
    assert replay_of(state, batch(LINEAGE, 2, generation=state.generation)) is None


def test_the_list_of_stores_is_backed_up(place):
    place.backup()
    for name in ("main", "copy"):
        add_to_list(place.driver.decisions, name)
    assert place.backup().link.after == 3
    assert reached_at(place.folder, 3).state.stores == ("copy", "main")
    remove_from_list(place.driver.decisions, "copy")
    assert place.backup().link.after == 3
    assert reached_at(place.folder, 3).state.stores == ("main",)
    remove_from_list(place.driver.decisions, "main")
    place.backup()
    chain = read_chain(place.folder)
    assert [link.after for link in chain.links] == [0, 2, 3, 3, 3]
    assert len({link.name for link in chain.links}) == 5
    place.write(4)
    assert place.backup().link.after == 3
    assert place.backup().link is None


def test_drivers_that_come_and_go_make_no_link(place):
    place.backup()
    for _ in range(3):
        place.again()
        assert place.backup().link is None
    place.write(4)
    assert place.backup().link.kind == INCREMENT
    assert reached_at(place.folder, 4).state == place.driver.folded


def test_an_increment_has_only_the_records_after_the_link_before(place):
    """Red before: each increment had every record since the full backup again."""
    sizes = []
    for number in range(4, 9):
        place.write(number)
        place.backup()
        (index,) = place.folder.glob(f"increment-{number:020}/index")
        sizes.append(len(place.index(index).records))
    assert sizes[1:] == [1] * 4


def test_a_mark_that_the_log_no_longer_has_record_by_record_is_in_a_full_backup(place):
    """The log was cut after the mark: it begins with a state that has it."""
    place.backup()
    place.adopt(NEW)
    place.summarise()
    log = place.driver.log
    log.trim_decisions(list(log.decisions())[-1].position)
    done = place.backup()
    assert (done.link.kind, done.link.after, done.version) == (FULL, 3, 3)
    assert place.backup().link is None
    lose(place, Way.NEW)
    place.restore()
    assert place.again().driver.folded.lineage == NEW
