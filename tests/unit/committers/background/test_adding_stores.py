"""Stores that are added, filled and removed beside a query that goes on."""

import pytest

import tidegate
from support.committers.many_stores import DAY_US, KEY_GROUPS, ROWS, Place, found_at, retired
from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.committers.background.membership import add_store, remove_store
from tidegate.committers.commit import commit
from tidegate.committers.operations.verify import verify
from tidegate.committers.repair.below_horizon import Repaired
from tidegate.errors import (
    ConfigError,
    CorruptError,
    StoreNotVerifiedError,
    StoreUnavailableError,
)
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import CatalogEntry, Stamp
from tidegate.testing.arrow_barrier import ArrowBarrier, batch


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    return Place(request.param, tmp_path)


@pytest.fixture
def in_memory(tmp_path):
    return Place("memory", tmp_path)


def test_a_store_is_added_and_filled_then_follows(place):
    driver, _ = place.opened("a")
    place.write(driver, 5)
    follower = place.add("b")
    assert follower.standing.visible == 5
    assert place.check("b") == 5
    assert place.ports["b"].published() == []  # filled at one version, not replayed
    driver, (follower,) = place.opened("a", "b")
    assert driver.folded.stores == ("a", "b")
    place.write(driver, 3)
    assert follower.step()
    assert place.check("b") == 8
    assert place.ports["b"].published() == [6, 7, 8]
    retired(driver, follower.store)
    assert place.check("b") == 8
    assert follower.store.verify(Stamp(8, 0), {}) == []


@pytest.mark.parametrize("filled_at", [2, 3, 4])
def test_a_store_that_is_added_before_a_drop_at_it_or_after_it_has_no_row_of_it(place, filled_at):
    """Version 3 drops a table, version 4 makes it again. A store that is behind follows over both."""
    batches = [({"t": {b"a": b"1"}, "u": {b"u": b"1"}}, ()), ({"t": {b"b": b"2"}}, ())]
    batches += [({"u": {b"u": b"3"}}, ("t",)), ({"t": {b"c": b"4"}}, ()), ({"u": {b"u": b"5"}}, ())]

    def write(driver, numbers):
        for number in numbers:
            rows, drops = batches[number]
            origin = batch("query-1", number)
            commit(driver, ArrowBarrier(driver.log, rows, origin, KEY_GROUPS, drops=frozenset(drops)))

    driver, _ = place.opened("a")
    write(driver, range(filled_at))
    assert place.add("b").standing.visible == filled_at
    driver, (follower,) = place.opened("a", "b")
    write(driver, range(filled_at, len(batches)))
    assert follower.step()
    for store in (driver.store, follower.store):
        for entry in store.catalog(filled_at, 3):
            tables = {"t", "u"} if entry.version < 3 else {"u"}
            assert found_at(store, entry).keys() == tables
        retired(driver, store)
        assert found_at(store, store.catalog(5, 5)[0]) == {"t": {b"c": b"4"}, "u": {b"u": b"5"}}
        assert verify(driver.log, store).findings == []
        assert store.vacuum(dry_run=True).rows == 0


def test_versions_go_on_while_a_store_is_filled_and_readers_see_no_mix(place):
    driver, _ = place.opened("a")
    place.write(driver, 4)
    adding = place.driver(["a"])
    adding.decisions.catch_up()
    add_store(adding, place.at("b"), place.store(place.at("b")))
    driver, (follower,) = place.opened("a", "b")
    driver.store.keep_versions_default = 2
    reader = open_store(place.at("b").url, "n", None, place.clock)
    seen = []

    def meanwhile():
        seen.append(reader.pointer().visible)
        assert reader.catalog() == []
        place.write(driver, 3)
        retired(driver, driver.store)

    follower._fill_first = True
    place.ports["b"].before("seal", meanwhile, nth=2)
    assert follower.step()
    assert seen == [0]
    assert place.ports["b"].published() == [5, 6, 7]
    assert place.check("b") == place.check("a") == 7
    reader.close()


FILL = ["follow.after_claim", "fill.after_begin", "fill.after_group", "publish.before", "publish.after"]


@pytest.mark.parametrize("later", [0, 5])
@pytest.mark.parametrize("name", FILL)
def test_an_addition_killed_anywhere_is_repeated(place, name, later):
    """Also when the version it was begun at was retired meanwhile."""
    driver, _ = place.opened("a")
    place.write(driver, 4)
    failpoints.arm(f"{name}=raise")
    with pytest.raises(FailpointError):
        place.add("b")
    failpoints.arm(None)
    if name != "publish.after":
        assert place.ports["b"].published() == []
    if later:
        place.clock.advance(100_000)  # the lease of who died runs out
        driver, _ = place.opened("a", "b")
        place.write(driver, later)
        retired(driver, driver.store)
        place.ports["b"].before("begin_fill", lambda: None)
    place.add("b")
    assert place.check("b") == place.check("a") == 4 + later


@pytest.mark.parametrize("records", [1, 2])
def test_an_addition_killed_between_its_records_is_repeated(in_memory, records):
    place = in_memory
    driver, _ = place.opened("a")
    place.write(driver, 3)
    adding = place.driver(["a"])
    adding.decisions.catch_up()
    appended, plain = [], adding.log.append_decision

    def append(content):
        if b"store_added" in content:
            appended.append(content)
            if len(appended) == records:
                raise KeyboardInterrupt
        return plain(content)

    adding.log.append_decision = append
    with pytest.raises(KeyboardInterrupt):
        add_store(adding, place.at("b"), place.store(place.at("b")))
    place.add("b")
    driver, _ = place.opened("a", "b")
    assert driver.folded.stores == ("a", "b")
    assert place.check("b") == 3


def test_what_an_older_filler_brings_late_is_not_written(place):
    """It slept while the store was filled again at a newer version: its rows are of keys long deleted."""
    driver, _ = place.opened("a")
    place.write(driver, 4)
    old = place.driver(["a"])
    old.decisions.catch_up()
    zombie = add_store(old, place.at("b"), place.store(place.at("b")))

    def overtaken():
        place.clock.advance(100_000)
        new, (follower,) = place.opened("a", "b")
        place.write(new, 6)
        retired(new, new.store)
        assert follower.step()
        assert place.check("b") == 10

    # The first chunk of the old fill is sent when all that has happened.
    place.ports["b"].before("apply", overtaken)
    with pytest.raises(Exception, match=r"retired|claimed epoch"):
        zombie.step()
    assert place.check("b") == 10
    new, (follower,) = place.opened("a", "b")
    place.write(new, 2)
    assert follower.step()
    assert place.check("b") == 12


def test_a_fill_that_was_begun_anew_meanwhile_is_left_to_whoever_begins_it_again(place):
    driver, _ = place.opened("a")
    place.write(driver, 4)
    adding = place.driver(["a"])
    adding.decisions.catch_up()
    follower = add_store(adding, place.at("b"), place.store(place.at("b")))
    direct = open_store(place.at("b").url, "n", None, place.clock)

    def begun_anew():
        place.write(adding)
        (begun,) = adding.store.catalog(5, 5)
        direct.begin_fill(begun, adding.epoch)

    place.ports["b"].before("begin_fill", begun_anew)
    with pytest.raises(StoreUnavailableError, match="is being filled at version 5, not 4"):
        follower.step()
    assert [call for call in place.ports["b"].calls if call[0] in ("apply", "publish_filled")] == []
    assert follower.step()
    assert place.check("b") == 5


@pytest.mark.parametrize("name", ["apply.after_chunk", "seal.after", "publish.before"])
def test_version_1_that_was_begun_from_the_log_is_not_filled(place, name):
    """Found by the simulation: both brought rows of it, in other chunks, and no seal ever added up."""
    driver, (follower,) = place.opened("a", "b")
    rows = {"t": {b"k%d" % n: None if n % 3 == 0 else b"v" for n in range(ROWS)}}
    commit(driver, ArrowBarrier(driver.log, rows, batch("query-1", 0), KEY_GROUPS, parallelism=3))
    failpoints.arm(f"{name}=raise")
    with pytest.raises(FailpointError):
        follower.step()
    failpoints.arm(None)
    driver, (follower,) = place.opened("a", "b")
    follower._fill_first = True
    assert follower.step()
    assert place.ports["b"].published() == [1]
    reader = open_store(place.at("b").url, "n", None, place.clock)
    assert found_at(reader, reader.catalog()[0])["t"] == {k: v for k, v in rows["t"].items() if v}
    reader.close()


def test_a_log_that_lost_version_1_is_waited_for_until_there_is_something_to_fill(place):
    driver, (follower,) = place.opened("a", "b")
    place.write(driver)
    place.clock.advance(5 * 86_400)
    driver.log.trim_blobs(set(), place.clock.now_us() - DAY_US)
    with pytest.raises(StoreUnavailableError, match="version 2 is not visible there yet"):
        follower.step()
    place.write(driver)
    assert follower.step()
    assert place.ports["b"].published() == []
    assert place.check("b") == 2


def test_a_store_that_is_empty_again_is_filled_anew(place):
    """Its disk was replaced: nobody has to do anything."""
    driver, (follower,) = place.opened("a", "b")
    place.write(driver, 3)
    follower.step()
    place.clock.advance(5 * 86_400)
    place.write(driver, 3)
    follower.step()
    retired(driver, driver.store)
    retired(driver, follower.store)
    driver.log.trim_blobs(
        {fact.manifest_address for fact in driver.folded.recent[-1:]}, place.clock.now_us() - DAY_US
    )
    follower.store.drop()
    driver, (follower,) = place.opened("a", "b")
    while not follower.step():
        pass
    assert place.check("b") == 6


def test_a_store_that_is_being_filled_cannot_be_the_primary(in_memory):
    place = in_memory
    driver, _ = place.opened("a")
    place.write(driver, 2)
    failpoints.arm("fill.after_begin=raise")
    with pytest.raises(FailpointError):
        place.add("b")
    failpoints.arm(None)
    place.clock.advance(5 * 86_400)
    driver.log.trim_blobs(set(), place.clock.now_us())
    with pytest.raises(ConfigError, match="being filled"):
        place.opened("b", "a")


def test_a_primary_that_was_being_filled_is_completed_from_the_log(in_memory):
    place = in_memory
    driver, _ = place.opened("a")
    place.write(driver, 2)
    failpoints.arm("fill.after_group=raise")
    with pytest.raises(FailpointError):
        place.add("b")
    failpoints.arm(None)
    place.write(place.opened("a", "b")[0], 3)
    place.opened("b", "a")
    assert place.check("b") == 5


def test_a_reader_of_a_store_that_is_being_filled_is_told_to_wait(in_memory):
    place = in_memory
    driver, _ = place.opened("a")
    place.write(driver, 2)
    failpoints.arm("fill.after_group=raise")
    with pytest.raises(FailpointError):
        place.add("b")
    failpoints.arm(None)
    with tidegate.connect(place.at("b").url, namespace="n") as gate:
        assert gate.version() == 0
        for ask in (gate.snapshot, lambda: gate.table("aircraft").get(b"N1")):
            with pytest.raises(StoreNotVerifiedError, match="is being rebuilt or filled"):
                ask()
        place.add("b")
        assert gate.wait_for(1) == 2
        with gate.snapshot() as snapshot:
            assert snapshot.version == 2


def test_a_repair_leaves_a_store_that_is_being_filled_alone(place):
    """The log has what the version changed, also deletes; the fill brings the rows that are live at it."""
    driver, _ = place.opened("a")
    place.write(driver, 4)
    failpoints.arm("fill.after_begin=raise")
    with pytest.raises(FailpointError):
        place.add("b")
    failpoints.arm(None)
    _, (follower,) = place.opened("a", "b")
    assert follower.repair() == Repaired([])
    place.add("b")
    assert place.check("b") == 4


def test_the_last_store_cannot_be_removed(in_memory):
    driver, _ = in_memory.opened("a", "b")
    in_memory.write(driver)
    driver.decisions.catch_up()
    with pytest.raises(ConfigError, match="another store has to remain"):
        remove_store(driver, "b")


def test_a_fill_whose_source_is_of_another_history_copies_nothing(in_memory):
    place = in_memory
    driver, _ = place.opened("a")
    place.write(driver, 2)
    plain = place.store(place.at("a"))
    (entry,) = plain.catalog(2, 2)
    adding = place.driver(["a"])
    adding.decisions.catch_up()
    follower = add_store(adding, place.at("b"), place.store(place.at("b")))
    changed = {**{name: getattr(entry, name) for name in CatalogEntry.__struct_fields__}, "digest": "x"}
    adding.store.catalog = lambda *_: [CatalogEntry(**changed)]
    with pytest.raises(CorruptError, match="two histories"):
        follower.step()
    assert place.ports["b"].published() == []
