"""One log, many stores: order, a store that is down, zombies, trimming, adding and removing, filling."""

import contextlib
import logging
import uuid

import pytest

import tidegate
from support.clocks import HandClock
from support.driver_process import expected_at, rows_of
from support.faulty import FaultyStore
from tidegate.base import failpoints
from tidegate.base.clock import Clock
from tidegate.base.failpoints import FailpointError
from tidegate.committers.background.follower import followers_of
from tidegate.committers.background.membership import add_store, remove_store
from tidegate.committers.background.worker import Background
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.repair.below_horizon import Repaired
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer
from tidegate.errors import (
    BadRecordError,
    ConfigError,
    CorruptError,
    FencedError,
    StoreUnavailableError,
    WalGapError,
)
from tidegate.observe.events import Labels
from tidegate.options import Endpoints, Options, StoreRef, parse_store, parse_stores
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import CatalogEntry, Identity, Stamp
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import View
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Summary, decode_record

SEED, ROWS, KEY_GROUPS = 5, 12, 4
DAY_US = 86_400 * 1_000_000


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.arm(None)


class Port:
    """Notes the calls of one store; takes it down; does something before the n-th call of a name."""

    def __init__(self):
        self.calls, self.down, self.does = [], False, {}

    def before(self, name, does, nth=1):
        self.does[name] = [nth, does]

    def call(self, call, effect):
        if self.down:
            raise StoreUnavailableError("the store is down")
        if call.name in self.does:
            self.does[call.name][0] -= 1
            if self.does[call.name][0] == 0:
                self.does.pop(call.name)[1]()
        self.calls.append((call.name, call.shown) if call.writes else (call.name,))
        return effect()

    def published(self):
        return [
            int(shown[1:].split()[0]) for name, *rest in self.calls if name == "publish" for shown in rest
        ]


class Place:
    """A log and stores by name; each store of kind memory or sqlite, behind a port of its own."""

    def __init__(self, kind, folder, **options):
        self.name, self.kind, self.folder = uuid.uuid4().hex, kind, folder
        self.clock = HandClock(1_800_000_000_000_000, tick_us=1)
        self.ports = {}
        defaults = {"key_groups": KEY_GROUPS, "summary_every": 3, "keep_versions": 2}
        self.options = Options(**defaults | options)
        self.wal = f"memory://{self.name}" if kind == "memory" else f"file://{folder}/wal"

    def at(self, name):
        url = f"memory://{self.name}-{name}" if self.kind == "memory" else f"sqlite://{self.folder}/{name}"
        return StoreRef(name, url)

    def store(self, at):
        port = self.ports.setdefault(at.name, Port())
        return FaultyStore(open_store(at.url, "n", None, self.clock), port)

    def driver(self, names):
        stores = [self.at(name) for name in names]
        where = Endpoints.of("n", self.wal, stores)
        log = open_log(self.wal, "n")
        return Coordinator(where, log, self.store(stores[0]), self.options, self.clock)

    def opened(self, *names):
        driver = self.driver(names)
        open_namespace(driver, "query-1")
        return driver, self.followers(driver)

    def followers(self, driver):
        return followers_of(driver, open_one=self.store)

    def write(self, driver, versions=1):
        for _ in range(versions):
            last = driver.folded.last_batch
            batch_id = last[1] + 1 if last else 0
            rows = rows_of(SEED, batch_id, ROWS)
            commit(driver, ArrowBarrier(driver.log, rows, batch("query-1", batch_id), KEY_GROUPS))
        return driver.folded.last_version

    def check(self, name):
        """What a reader finds is exactly the batches up to the visible version (I1); that version."""
        store = open_store(self.at(name).url, "n", None, self.clock)
        with contextlib.closing(store):
            pointer = store.pointer()
            for entry in store.catalog():
                if entry.version >= pointer.horizon:
                    assert found_at(store, entry) == expected_at(SEED, entry.version, ROWS), entry.version
            return pointer.visible

    def add(self, name, there=("a",)):
        driver = self.driver(there)
        assert driver.decisions.catch_up() is not None
        follower = add_store(driver, self.at(name), self.store(self.at(name)))
        while not follower.step():
            pass
        return follower


def found_at(store, entry):
    return {
        table: {
            key: value
            for group in range(KEY_GROUPS)
            for rows in store.scan(table, group, entry.version, at.start)
            for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
        }
        for table, at in entry.tables.items()
    }


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    return Place(request.param, tmp_path)


@pytest.fixture
def in_memory(tmp_path):
    return Place("memory", tmp_path)


# -- following ------------------------------------------------------------------------------------


def test_each_store_gets_every_version_in_order_from_one_log(place):
    driver, (follower,) = place.opened("a", "b")
    assert driver.folded.stores == ("a", "b")
    for _ in range(3):
        place.write(driver)
        assert follower.step()
    place.write(driver, 3)
    assert follower.step()
    assert place.ports["b"].published() == [1, 2, 3, 4, 5, 6]
    assert place.check("a") == place.check("b") == 6
    assert (follower.standing.visible, follower.standing.behind_s, follower.standing.error) == (6, 0.0, "")


def test_the_epoch_is_claimed_in_a_secondary_before_anything_else_is_written_there(in_memory):
    """I6: after its making, the first write of every driver is the claim."""
    driver, (follower,) = in_memory.opened("a", "b")
    in_memory.write(driver)
    follower.step()
    writes = [call[0] for call in in_memory.ports["b"].calls if len(call) == 2]
    assert writes[:2] == ["store.create", "claim"]
    in_memory.ports["b"].calls.clear()
    driver, (follower,) = in_memory.opened("a", "b")
    in_memory.write(driver)
    follower.step()
    assert next(call for call in in_memory.ports["b"].calls if len(call) == 2) == ("claim", "epoch 2")


def test_a_batch_does_not_ask_a_secondary_anything(in_memory):
    driver, (follower,) = in_memory.opened("a", "b")
    in_memory.write(driver)
    follower.step()
    in_memory.ports["b"].calls.clear()
    in_memory.write(driver, 2)
    assert in_memory.ports["b"].calls == []


def test_the_smallest_limit_of_all_stores_is_what_a_value_may_take(in_memory):
    """Else a version could be decided that one of them can never hold."""
    driver, (follower,) = in_memory.opened("a", "b")
    follower.store.value_bytes_max = 100
    rows = {"t": {b"k": b"x" * 101}}
    with pytest.raises(BadRecordError):
        commit(driver, ArrowBarrier(driver.log, rows, batch("query-1", 0), KEY_GROUPS))
    assert driver.folded.last_version == 0


def test_a_secondary_that_was_down_catches_up_in_order(place, caplog):
    driver, (follower,) = place.opened("a", "b")
    place.write(driver)
    follower.step()
    place.ports["b"].down = True
    for _ in range(3):
        place.write(driver)
        with pytest.raises(StoreUnavailableError) as raised:
            follower.step()
        follower.retried(raised.value)
    assert place.check("a") == 4
    standing = follower.standing
    assert (standing.visible, standing.decided) == (1, 4)
    assert standing.behind_s > 0
    assert "StoreUnavailableError: the store is down" in standing.error
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # once, not at each try
    place.ports["b"].down = False
    follower.went_well(level=follower.step())
    assert place.check("b") == 4
    assert place.ports["b"].published() == [1, 2, 3, 4]
    assert follower.standing.error == ""
    assert "follows again" in caplog.text


def test_an_alarm_names_the_store_the_cause_and_what_to_do(in_memory, caplog):
    driver, (follower,) = in_memory.opened("a", "b")
    in_memory.write(driver)
    follower.step()
    in_memory.ports["b"].down = True
    for _ in range(30):
        in_memory.clock.advance(100)
        follower.retried(StoreUnavailableError("the store is down"))
    alarms = [record.getMessage() for record in caplog.records if "ALARM" in record.getMessage()]
    assert len(alarms) == 3  # 3,000 s, one for every 900 s
    assert "store b" in alarms[0]
    assert "tidegate store remove b" in alarms[0]
    assert alarms[0].endswith("the store is down")


def test_a_store_that_only_ever_runs_behind_alarms_too(in_memory, caplog):
    driver, (follower,) = in_memory.opened("a", "b")
    in_memory.write(driver, 3)
    in_memory.ports["b"].before("publish", lambda: in_memory.clock.advance(1_000))
    in_memory.write(driver, 3)
    follower.step()
    assert "it is catching up" in caplog.text


@pytest.mark.parametrize("name", ["apply.after_chunk", "seal.after", "publish.before", "publish.after"])
def test_a_driver_killed_with_the_secondary_behind(place, name):
    driver, (follower,) = place.opened("a", "b")
    place.write(driver)
    follower.step()
    place.write(driver, 3)
    failpoints.arm(f"{name}=raise@2")
    with pytest.raises(FailpointError):
        follower.step()
    failpoints.arm(None)
    place.check("b")
    driver, (follower,) = place.opened("a", "b")
    place.write(driver)
    assert follower.step()
    assert place.check("a") == place.check("b") == 5


def test_an_older_driver_is_fenced_in_each_store(place):
    """I6: also where it had not been yet."""
    old, (behind,) = place.opened("a", "b")
    place.write(old, 2)
    behind.step()
    new, (follower,) = place.opened("a", "b")
    follower.step()
    place.write(new)
    old.decisions.catch_up()
    with pytest.raises(FencedError):
        behind.step()  # version 3 is decided, by the new one: it may not flip it
    assert place.check("b") == 2
    behind.retried(FencedError("fenced"))
    assert isinstance(behind.failed, FencedError)
    late = place.followers(old)[0]
    before = place.ports["b"].calls[:]
    with pytest.raises(FencedError, match="carries epoch 2"):
        late.step()
    since = [call for call in place.ports["b"].calls[len(before) :] if len(call) == 2]
    assert since == [("claim", "epoch 1")]
    assert follower.step()
    assert place.check("b") == 3


@pytest.mark.parametrize("kind", [FencedError, CorruptError])
def test_what_must_be_seen_is_raised_at_the_next_batch(in_memory, kind):
    """I10: a follower keeps no fence and no damage to itself."""
    driver, (follower,) = in_memory.opened("a", "b")
    background = Background(
        driver.log, driver.store, in_memory.options, lambda: 0, clock=in_memory.clock, followers=[follower]
    )
    background.stop()
    background.check()
    follower.retried(StoreUnavailableError("down"))
    background.check()
    follower.retried(kind("seen"))
    with pytest.raises(kind, match="seen"):
        background.check()


def test_the_background_drives_the_followers(tmp_path):
    """Beside the batches, and once more when the query has ended: nothing is left behind."""
    place = Place("sqlite", tmp_path, heartbeat_s=0.05)
    place.clock = Clock()
    driver, followers = place.opened("a", "b", "c")
    background = Background(
        driver.log,
        driver.store,
        place.options,
        lambda: driver.epoch,
        followers=followers,
        at=Labels("n", "a"),
    )
    place.ports["b"].down = True
    try:
        place.write(driver, 2)
        background.published()
        place.ports["b"].down = False
        place.write(driver, 2)
        background.published()
    finally:
        background.drain(60)
    driver.store.close()
    # The one that was down may have ended in its pause: the next driver brings it to the end.
    assert place.check("c") == 4
    _, (follower, _) = place.opened("a", "b", "c")
    assert follower.step()
    assert place.check("b") == 4


def test_a_store_of_another_namespace_or_history_is_not_written(in_memory):
    other = in_memory.store(in_memory.at("b"))
    other.create(Identity("another", "n", KEY_GROUPS))
    driver, (follower,) = in_memory.opened("a", "b")
    in_memory.write(driver)
    with pytest.raises(WalGapError, match="another"):
        follower.step()
    assert in_memory.check("a") == 1
    assert other.pointer().epoch == 0


def test_what_a_newer_driver_published_while_a_follower_opened_is_not_a_log_that_is_behind(in_memory):
    """Found by the simulation: the pointer is read before the log, never after it."""
    old, (follower,) = in_memory.opened("a", "b")
    in_memory.write(old)

    def meanwhile():
        new, (newer,) = in_memory.opened("a", "b")
        in_memory.write(new)
        assert newer.step()

    in_memory.ports["b"].before("identity", meanwhile)
    with pytest.raises(FencedError):
        follower.step()
    assert in_memory.check("b") == 2


def test_another_order_makes_another_primary(place):
    driver, (follower,) = place.opened("a", "b")
    place.write(driver, 3)
    driver, (follower,) = place.opened("b", "a")
    assert place.check("b") == 3
    place.write(driver)
    follower.step()
    assert place.check("a") == place.check("b") == 4


# -- the list ---------------------------------------------------------------------------------------


def test_one_store_needs_no_list_and_no_name(in_memory):
    driver, _ = in_memory.opened("a")
    in_memory.write(driver)
    assert driver.folded.stores == ()
    driver, _ = in_memory.opened("a")  # under any name
    assert driver.folded.stores == ()


def test_a_store_that_is_listed_and_not_given_is_refused(in_memory):
    in_memory.write(in_memory.opened("a", "b")[0])
    with pytest.raises(ConfigError, match=r"b is not given.*tidegate store remove b"):
        in_memory.opened("a")


def test_a_store_that_is_given_and_not_listed_is_refused(in_memory):
    in_memory.write(in_memory.opened("a", "b")[0])
    with pytest.raises(ConfigError, match=r"c is not in the list.*tidegate store add c=URL"):
        in_memory.opened("a", "b", "c")


def test_a_second_store_of_a_namespace_that_has_versions_is_refused(in_memory):
    driver, _ = in_memory.opened("a")
    in_memory.write(driver)
    position = driver.decisions.view.position
    with pytest.raises(ConfigError, match="tidegate store add b=URL"):
        in_memory.opened("a", "b")
    driver.decisions.catch_up()
    assert driver.decisions.view.position == position  # nothing was appended


def test_a_namespace_without_versions_may_still_get_its_first_stores(in_memory):
    in_memory.opened("a")
    driver, _ = in_memory.opened("a", "b")
    assert driver.folded.stores == ("a", "b")


def test_stores_are_named_by_kind_never_by_host():
    assert parse_store("redis://user:secret@old-host:6379/0").name == "redis"
    assert parse_store("rediss+sentinel://h1,h2/main").name == "redis"
    assert parse_store("copy=redis://new-host/0?x=1") == StoreRef("copy", "redis://new-host/0?x=1")
    assert "secret" not in repr(parse_stores(["redis://user:secret@h/0"]))


@pytest.mark.parametrize(
    "stores,options,says",
    [
        ([], {}, "at least one"),
        (["sqlite:///x", "sqlite:///y"], {}, "two stores are called sqlite: .*sqlite=URL"),
        (["a=sqlite:///x", "b=sqlite:////x/"], {}, "stores a and b are one, .*of its own"),
        (["a=redis://u:secret@h/0", "b=redis://u:secret@h/0"], {}, r"a and b are one, redis://\*\*\*@h/0:"),
        (["A=sqlite:///x"], {}, "cannot name a store"),
        (["=sqlite:///x"], {}, "cannot name a store"),
        (["a=sqlite:///x"], {"timeout_s": 1}, "by name"),
        ([7], {}, "must be text"),
    ],
)
def test_stores_that_cannot_be(stores, options, says):
    with pytest.raises(ConfigError, match=says):
        parse_stores(stores, options)


# -- trimming ---------------------------------------------------------------------------------------


def trimmed(place, driver, *others):
    """Trim with every store, a day later; the first record's version that is left in the log."""
    stores = {at.name: place.store(at) for at in driver.endpoints.also}
    trimmer = Trimmer(
        driver.log, driver.store, place.options, place.clock, stores, driver.endpoints.stores[0].name
    )
    view = catch_up(View(), driver.log)
    # Decisions are old when the log was read long after them.
    place.clock.advance(2 * 86_400)
    place.write(driver)
    view = catch_up(view, driver.log)
    trimmer.trim(view, place.clock.now_us())
    record = decode_record(next(driver.log.decisions()).content, "first")
    return record.state.last_version if isinstance(record, Summary) else 0


def retired(driver, store):
    retire_up_to(driver.log, store, driver.folded, driver.options, lambda: False)


def test_a_secondary_that_is_behind_or_down_holds_the_trimming_back(in_memory):
    place = in_memory
    driver, (follower,) = place.opened("a", "b")
    place.write(driver, 4)
    follower.step()
    place.ports["b"].down = True
    place.write(driver, 8)
    retired(driver, driver.store)
    assert trimmed(place, driver) == 0  # it cannot be asked
    place.ports["b"].down = False
    assert trimmed(place, driver) == 3  # the Summary below which all is published in both
    follower.step()
    assert place.check("b") == driver.folded.last_version


def test_removing_the_store_releases_the_log(in_memory):
    place = in_memory
    driver, (follower,) = place.opened("a", "b")
    place.write(driver, 4)
    follower.step()
    place.write(driver, 8)
    retired(driver, driver.store)
    remaining = place.driver(["a"])
    remaining.decisions.catch_up()
    assert remove_store(remaining, "b")
    assert remaining.folded.stores == ("a",)
    assert not remove_store(remaining, "b")  # may be repeated
    open_namespace(remaining, "query-1")
    assert trimmed(place, remaining) > 4
    with pytest.raises(FencedError):
        place.write(driver)


def test_a_driver_that_does_not_know_a_store_does_not_trim(in_memory):
    """A zombie from before the store was added: what the store needs, it cannot ask."""
    place = in_memory
    driver, _ = place.opened("a")
    place.write(driver, 8)
    retired(driver, driver.store)
    place.add("b")
    new, (follower,) = place.opened("a", "b")
    follower.step()
    place.clock.advance(2 * 86_400)
    place.write(new)
    view = catch_up(View(), driver.log)
    Trimmer(driver.log, driver.store, place.options, place.clock, name="a").trim(view, place.clock.now_us())
    assert not isinstance(decode_record(next(driver.log.decisions()).content, "first"), Summary)


# -- adding -----------------------------------------------------------------------------------------


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


def test_an_older_driver_can_neither_begin_nor_finish_a_fill(place):
    driver, _ = place.opened("a")
    place.write(driver, 4)
    follower = place.add("b")
    store = open_store(place.at("c").url, "n", None, place.clock)
    store.create(Identity(driver.folded.namespace, "n", KEY_GROUPS))
    store.claim(9, "newer")
    (entry,) = follower.store.catalog(4, 4)
    assert store.begin_fill(entry, 8) == 0
    assert store.begin_fill(entry, 9) == 4
    assert store.publish_filled(entry, 8) is False
    assert store.pointer().visible == 0


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
    with pytest.raises(ConfigError, match="being filled"):
        place.opened("b", "a")


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
            with pytest.raises(ConfigError, match="no visible version yet"):
                ask()
        place.add("b")
        assert gate.wait_for(1) == 2
        with gate.snapshot() as snapshot:
            assert snapshot.version == 2


def test_a_vacuum_leaves_a_store_that_is_being_filled_alone(place):
    driver, _ = place.opened("a")
    place.write(driver, 3)
    failpoints.arm("fill.after_group=raise@2")
    with pytest.raises(FailpointError):
        place.add("b")
    failpoints.arm(None)
    open_store(place.at("b").url, "n", None, place.clock).vacuum()
    place.add("b")
    assert place.check("b") == 3


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


def test_what_is_met_is_logged_as_one_line(in_memory, caplog):
    caplog.set_level(logging.WARNING)
    _, (follower,) = in_memory.opened("a", "b")
    follower.retried(StoreUnavailableError("two\nlines"))
    assert "two lines" in caplog.text
