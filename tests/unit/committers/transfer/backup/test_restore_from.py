"""A namespace whose store is gone, restored from a backup: with its log, a part of it, or without it."""

import pytest

import tidegate
from support.committers.backups import place_in, stored
from support.places import new_place
from tidegate.base import failpoints
from tidegate.base.clock import Clock
from tidegate.base.failpoints import FailpointError
from tidegate.committers.operations import restore_plan
from tidegate.committers.operations.resume import last_batch
from tidegate.committers.operations.verify import verify
from tidegate.committers.repair.below_horizon import repair_all
from tidegate.committers.repair.log_reach import oldest_whole
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer
from tidegate.committers.transfer.backup.restore_from import Way
from tidegate.errors import ConfigError, LineageError, SnapshotExpiredError, WalGapError
from tidegate.options import Options
from tidegate.testing.arrow_barrier import batch
from tidegate.testing.example import LINEAGE
from tidegate.wal.fold import replay_of

LAST, FULL, INCREMENT = 9, 3, 5


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    """A full backup at version 3, an increment up to 5, four versions after it; batch N makes version N+1."""
    place = place_in(tmp_path, request.param)
    place.wanted = {}
    for number in range(1, LAST + 1):
        version = place.write(number)
        place.wanted[version] = stored(place.driver.store)
        if number in {FULL, INCREMENT}:
            place.backup()
    yield place
    place.example.close()


def is_whole(place, version, wanted):
    """Whether the query's next driver finds this version visible, with these rows, and no finding."""
    driver = place.again().driver
    assert driver.store.pointer().visible == version
    assert stored(driver.store) == place.wanted[wanted]
    report = verify(driver.log, driver.store)
    assert report.findings == []
    return driver


def replayed(place, first):
    """Write the batches again from this one on, as a checkpoint that was set back does."""
    for number in range(first, LAST + 1):
        version = place.write(number)
    assert stored(place.driver.store) == place.wanted[LAST]
    return version


def test_a_log_that_was_trimmed_up_to_the_backup_goes_on_and_nothing_is_lost_i2(place):
    place.trim(INCREMENT)
    uuid, epoch = place.driver.folded.namespace, place.driver.epoch
    place.lose_store()
    with pytest.raises(WalGapError, match="tidegate restore-from"):
        place.again()
    plan = place.restore()
    assert (plan.way, plan.version, plan.last, plan.lost) == (Way.CONTINUE, INCREMENT, LAST, [])
    driver = is_whole(place, LAST, LAST)
    assert (driver.folded.namespace, driver.folded.last_version) == (uuid, LAST)
    assert driver.epoch > epoch
    assert driver.store.pointer().horizon == LAST - 1
    assert [entry.version for entry in driver.store.catalog()] == [LAST - 1, LAST]
    for number in range(LAST):
        assert replay_of(driver.folded, batch(LINEAGE, number)).version == number + 1
    assert place.write(LAST + 1) == LAST + 1
    assert place.backup().link.after == INCREMENT


def test_a_backup_of_the_newest_version_needs_no_rows_of_the_log(place):
    place.backup()
    place.trim(LAST)
    place.lose_store()
    assert place.restore().way is Way.CONTINUE
    is_whole(place, LAST, LAST)
    assert place.write(LAST + 1) == LAST + 1


def test_a_log_that_was_cut_after_the_backup_gets_its_rows_as_one_new_version(place):
    place.trim(INCREMENT + 1)
    uuid = place.driver.folded.namespace
    place.lose_store()
    plan = place.restore()
    assert (plan.way, [decided.version for decided in plan.lost]) == (Way.AGAIN, [6, 7, 8, 9])
    assert plan.kept == batch(LINEAGE, INCREMENT - 1)
    driver = is_whole(place, LAST + 1, INCREMENT)
    assert driver.folded.namespace == uuid
    assert last_batch(driver.decisions)[:2] == (plan.kept, INCREMENT)
    generation = driver.folded.generation
    assert replay_of(driver.folded, batch(LINEAGE, INCREMENT - 1, generation=generation)).version == INCREMENT
    assert replay_of(driver.folded, batch(LINEAGE, INCREMENT, generation=generation)) is None
    driver.folded.batches[LINEAGE] = (0, INCREMENT - 1)  # the next number of a checkpoint that was set back
    assert replayed(place, INCREMENT + 1) == LAST + 1 + (LAST - INCREMENT)


@pytest.mark.parametrize("to", [None, 4])
def test_without_a_log_a_new_one_begins_with_the_backups_state_i2(place, to):
    uuid = place.driver.folded.namespace
    place.lose_log()
    place.lose_store()
    version = to or INCREMENT
    plan = place.restore(to)
    assert (plan.way, plan.version, plan.lost) == (Way.NEW, version, [])
    driver = is_whole(place, version + 1, version)
    state = driver.folded
    assert state.namespace != uuid
    assert (state.lineage, state.last_version, state.stores) == (LINEAGE, version + 1, ())
    identity = driver.store.identity()
    assert (identity.uuid, identity.name) == (state.namespace, "flights")
    assert identity.key_groups == state.key_groups
    last = last_batch(driver.decisions)
    assert last.origin.batch_id == version - 1
    assert last.source_offsets == ("" if version % 5 == 4 else f'[{{"orders":{{"0":{version}}}}}]')
    assert replay_of(state, batch(LINEAGE, version - 1, generation=1)).version == version
    assert replay_of(state, batch(LINEAGE, 0, generation=1)).version == 1
    with pytest.raises(LineageError, match="set back too far, or is another one"):
        replay_of(state, batch(LINEAGE, 0, "other", generation=1))
    driver.folded.batches[LINEAGE] = (0, version - 1)
    assert replayed(place, version + 1) == LAST + 1
    with pytest.raises(ConfigError, match="holds backups of namespace"):
        place.backup()


def test_a_new_log_never_had_the_rows_of_the_backups_versions_i10(place):
    """They were read as versions without changes: `restore --to` made empty tables of them, silently."""
    place.lose_log()
    place.lose_store()
    place.restore()
    driver, first = place.again().driver, INCREMENT + 1
    place.driver.folded.batches[LINEAGE] = (0, INCREMENT - 1)
    for number in range(INCREMENT + 1, LAST + 1):
        place.write(number)
    retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)
    with pytest.raises(
        SnapshotExpiredError, match=f"the oldest that can be restored is {first}, .* --base DIR"
    ):
        restore_plan.plan_restore(driver, INCREMENT)
    assert restore_plan.plan_restore(driver, first).first == first
    assert oldest_whole(driver.log, driver.folded, 1) == first
    with tidegate.connect(place.store, "flights", wal=place.wal) as gate:
        with pytest.raises(WalGapError, match="the log began from a backup, after version 5, and never had"):
            gate.changes(INCREMENT, "aircraft")
        assert gate.changes(first, "aircraft").to_arrow().num_rows
    assert verify(driver.log, driver.store).findings == []


def test_an_older_version_of_the_backup_becomes_a_new_version(place):
    place.lose_store()
    plan = place.restore(FULL)
    assert (plan.way, len(plan.lost)) == (Way.AGAIN, LAST - FULL)
    is_whole(place, LAST + 1, FULL)


def test_a_table_that_was_made_again_with_other_key_groups_is_refused_before_anything_is_written(tmp_path):
    """Red before: its Open was appended, and no command drops a table of a namespace without a store."""
    place = place_in(tmp_path, "memory", table_key_groups={"airports": 2})
    place.write(1)
    place.backup()
    rows = stored(place.driver.store)
    place.write(4)  # it drops the table
    place.options = Options(key_groups=4, keep_versions=2)
    place.again().write({"airports": {"A": {"departures": 1, "delay": 0.0}}})
    place.trim(3)
    place.lose_store()
    before = [entry.content for entry in place.driver.log.decisions()]
    with pytest.raises(
        ConfigError, match=r"had 2 key groups at version 1, .*: restore under a --namespace that"
    ):
        place.restore()
    assert [entry.content for entry in place.driver.log.decisions()] == before
    place.wal = place.store = f"memory://{new_place()}"
    assert place.restore().way is Way.NEW
    assert stored(place.again().driver.store) == rows


def test_a_restored_namespace_can_be_restored_from_the_same_backup_again(place):
    place.lose_log()
    place.lose_store()
    place.restore()
    place.again()
    place.driver.folded.batches[LINEAGE] = (0, INCREMENT - 1)
    replayed(place, INCREMENT + 1)
    place.lose_store()
    assert place.restore().way is Way.CONTINUE
    is_whole(place, LAST + 1, LAST)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_version_from_before_the_log_can_be_the_oldest_that_readers_get(tmp_path, kind):
    """Its rows are the backup's. It does not keep the log from being trimmed."""
    place = place_in(tmp_path, kind, keep_versions=5)
    for number in (1, 2, 3):
        place.write(number)
    place.backup()
    before = place.rows()
    place.lose_log()
    place.lose_store()
    place.restore()
    place.again()
    assert last_batch(place.driver.decisions).source_offsets
    place.write(4)
    place.lose_store()
    assert place.restore().way is Way.CONTINUE
    driver = place.again().driver
    assert driver.store.pointer().horizon == 3
    assert place.rows(3) == before
    assert verify(driver.log, driver.store).findings == []
    Trimmer(driver.log, driver.store, driver.options).trim(driver.decisions.view, Clock().now_us())
    place.example.close()


@pytest.mark.parametrize("lacks", ["it never had them", "they were trimmed"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_repair_passes_a_horizon_of_which_the_log_has_no_rows(tmp_path, kind, lacks):
    """The rows of the horizon's version are the backup's. Those of later versions are compared."""
    place = place_in(tmp_path, kind, keep_versions=5)
    for number in (1, 2, 3):
        place.write(number)
    place.backup()
    if lacks == "it never had them":
        place.lose_log()
        place.lose_store()
        place.restore()
        place.again()
    else:
        place.trim(3)
    place.write(4)
    place.lose_store()
    assert place.restore().way is Way.CONTINUE
    driver = place.again().driver
    rows = stored(driver.store)
    assert driver.store.pointer().horizon == 3
    repaired = repair_all(driver)
    assert repaired.put_back == []
    assert "versions before 4 wrote were not compared" in repaired.not_compared
    assert stored(driver.store) == rows
    place.example.close()


def test_a_store_that_shows_a_version_is_refused(place):
    before = [entry.content for entry in place.driver.log.decisions()]
    with pytest.raises(ConfigError, match=f"shows version {LAST} .* nothing was lost there"):
        place.restore()
    assert [entry.content for entry in place.driver.log.decisions()] == before


@pytest.mark.parametrize("has", [True, False])
def test_a_store_that_lags_is_refused_with_the_command_that_shows_the_rest_if_the_log_has_it(place, has):
    failpoints.arm("publish.before=raise")
    with pytest.raises(FailpointError):
        place.write(LAST + 1)
    failpoints.arm(None)
    if not has:
        place.trim(LAST + 1)
    with pytest.raises(ConfigError) as refused:
        place.restore()
    assert (f"`tidegate recover` makes it show version {LAST + 1}" in str(refused.value)) is has


def test_another_namespace_s_log_is_refused(place, tmp_path):
    other = place_in(tmp_path / "other", "memory")
    other.write(1)
    other.lose_store()
    other.folder = place.folder
    with pytest.raises(ConfigError, match="give a --namespace that does not exist yet"):
        other.restore()


def test_a_log_that_lost_its_end_is_refused(place, monkeypatch):
    place.lose_store()
    whole = type(place.driver.log).decisions
    monkeypatch.setattr(
        type(place.driver.log), "decisions", lambda log, position=0: list(whole(log, position))[:4]
    )
    with pytest.raises(WalGapError, match="before the backup's version 5"):
        place.restore()


@pytest.mark.parametrize("gone", ["nothing", "a part", "the log"])
@pytest.mark.parametrize(
    "name",
    [
        "open.before_append",
        "open.after_append",
        "open.after_claim",
        "stage.before_ack",
        "manifest.after_write",
        "decide.before_append",
        "decide.after_append",
        "fill.after_begin",
        "fill.after_group",
        "apply.after_chunk",
        "seal.after",
        "publish.before",
        "publish.after",
    ],
)
def test_a_restore_that_is_killed_at_any_step_is_continued(tmp_path, name, gone):
    place = place_in(tmp_path, "memory")
    place.wanted = {}
    for number in range(1, LAST + 1):
        place.write(number)
        place.wanted[number] = stored(place.driver.store)
        if number == FULL:
            place.backup()
    if gone == "the log":
        place.lose_log()
    else:
        place.trim(FULL + 1 if gone == "a part" else FULL)
    place.lose_store()
    failpoints.arm(f"{name}=raise")
    try:
        place.restore()
    except FailpointError:
        failpoints.arm(None)
        if place.unopened().store.identity() is None or not place.unopened().store.pointer().visible:
            place.restore()
    failpoints.arm(None)
    wanted = LAST if gone == "nothing" else FULL
    driver = place.again().driver
    assert stored(driver.store) == place.wanted[wanted]
    assert verify(driver.log, driver.store).findings == []
    if gone != "nothing":
        assert driver.folded.recent[-1].version == (LAST if gone == "a part" else FULL) + 1
