"""A restore of a version that the store has retired: its rows come from the log, or from an export."""

import itertools
import random
from pathlib import Path

import pytest

from support.clocks import HandClock
from support.places import appended_nothing, new_place
from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.exports.export import export
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.restore import restore
from tidegate.committers.operations.restore_plan import plan_restore
from tidegate.committers.operations.verify import verify
from tidegate.committers.steps.decided_versions import decided_versions
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.transfer.backup.backup import backup
from tidegate.errors import ConfigError, SnapshotExpiredError, WalGapError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.expiry import is_hidden
from tidegate.sinks.rules.visible import moment
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.open_log import open_log
from tidegate.wal.record import LoadOrigin

VERSIONS, KEPT, GROUPS = 30, 2, 4
TTL_S = 6


class Place:
    """A namespace and the content of each of its versions, as readers got it when the version was new."""

    def __init__(self, wal, store):
        self.wal, self.store, self.clock = wal, store, HandClock(tick_us=1)
        self.contents = {}
        self.batches = itertools.count()

    def driver(self):
        """A driver that is not open."""
        options = Options(key_groups=GROUPS, keep_versions=KEPT, ttl={"e": TTL_S})
        where = Endpoints("n", self.wal, self.store)
        return Coordinator(
            where,
            open_log(self.wal, "n"),
            open_store(self.store, "n", None, self.clock),
            options,
            self.clock,
        )

    def opened(self):
        driver = self.driver()
        open_namespace(driver, "q")
        return driver

    def write(self, driver, rows, *, starts=(), drops=(), origin=None):
        self.clock.advance(1)
        origin = origin or batch("q", next(self.batches), generation=driver.folded.generation)
        how = {"starts": frozenset(starts), "drops": frozenset(drops)}
        offsets = f'[{{"orders":{{"0":{next(self.batches)}}}}}]'
        version = commit(
            driver, ArrowBarrier(driver.log, rows, origin, GROUPS, source_offsets=offsets, **how)
        ).version
        self.contents[version] = self.live()
        return version

    def live(self, version=None):
        """The live rows of every table, as they are stored, by table."""
        driver = self.driver()
        version = version or driver.store.pointer().visible
        (entry,) = driver.store.catalog(version, version)
        return {
            table: {
                key: value
                for _, rows in driver.store.scan_groups_stored(
                    ReadAt(table, version, at.start), range(GROUPS)
                )
                for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
                if not is_hidden(value, entry.decided_at_us)
            }
            for table, at in entry.tables.items()
        }

    def retire(self):
        driver = self.driver()
        driver.decisions.catch_up()
        retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)
        return driver.store.pointer().horizon

    def restore(self, to, **how):
        driver = self.driver()
        self.clock.advance(1)
        plan = plan_restore(driver, to, **how)
        done = restore(driver, plan)
        if done.made is not None:
            self.contents[done.made] = self.live()
        return plan, done

    def trim(self, first):
        """Drop the frames and manifests of all versions before ``first``."""
        driver = self.driver()
        state = driver.decisions.catch_up()
        needed = set()
        for decided in decided_versions(driver.log, state, first):
            frames = read_manifest(driver.log, decided).frames()
            needed |= {decided.manifest_address, *(frame.address for frame in frames)}
        driver.log.trim_blobs(needed, 2**62)

    def expected(self, version):
        """The content of an older version without what has expired by the visible one."""
        driver = self.driver()
        visible = driver.store.pointer().visible
        (entry,) = driver.store.catalog(visible, visible)
        none = {table: {} for table in entry.tables}
        return none | {
            table: {key: value for key, value in rows.items() if not is_hidden(value, entry.decided_at_us)}
            for table, rows in self.contents[version].items()
        }

    def version_at(self, version):
        driver = self.driver()
        state = driver.decisions.catch_up()
        return next(each for each in decided_versions(driver.log, state, version))


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    name = f"memory://{new_place()}"
    urls = (name, name) if request.param == "memory" else (f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/s")
    return Place(*urls)


def rows_of(chance, sums):
    """Upserts and deletes of some keys; the values of ``sums`` follow from those before, as reduce's."""
    keys = [b"%d" % key for key in chance.sample(range(12), 4)]
    rows = {"t": {key: chance.choice([None, b"%d" % chance.randrange(99)]) for key in keys}}
    if chance.random() < 0.6:
        for key in keys[:2]:
            sums[key] = sums.get(key, 0) + 1
        rows["sums"] = {key: b"%d" % sums[key] for key in keys[:2]}
    if chance.random() < 0.6:
        rows["e"] = {keys[0]: b"expires", keys[1]: None}
    return rows


def write_history(place, seed):
    """Write a random history of upserts, sums, deletes, replacements, drops, expiry, loads and restores."""
    chance, sums, driver = random.Random(seed), {}, place.opened()
    while (version := driver.folded.last_version) < VERSIONS:
        rows, step = rows_of(chance, sums), chance.randrange(10)
        if step == 0 and version > 2:
            place.restore(chance.randrange(max(version - KEPT, 1), version))
            driver = place.opened()
        elif step == 1 and "t" in driver.folded.tables:
            place.write(driver, {"other": {b"x": b"%d" % version}}, drops={"t"})
        elif step == 2:
            place.write(driver, rows, starts=rows.keys() - {"sums"})
        elif step == 3:
            place.write(driver, rows, origin=LoadOrigin(f"{version}"))
        else:
            place.write(driver, rows)


def each_comes_back(place, seed, versions):
    write_history(place, seed)
    for version in versions:
        assert place.retire() > version, "the store has retired it"
        plan, done = place.restore(version)
        assert (plan.first >= 1, done.made) == (True, done.visible), f"seed {seed}"
        assert place.live() == place.expected(version), f"seed {seed}, version {version}"
    driver = place.driver()
    assert verify(driver.log, driver.store).findings == []


def test_versions_come_back_from_the_log_alone(place):
    each_comes_back(place, 0, range(2, VERSIONS - KEPT, 5))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_each_version_comes_back_from_the_log_alone(place, seed):
    each_comes_back(place, seed, range(1, VERSIONS - KEPT))


def refuses_to_plan(place, to, error, words, **how):
    driver = place.driver()
    appended_nothing(driver, lambda: plan_restore(driver, to, **how), error, words)


def write_plain(place, versions=10):
    """Write versions of tables ``t`` and ``u``, and retire all but the kept ones."""
    driver = place.opened()
    for number in range(versions):
        place.write(driver, {"t": {b"k": b"%d" % number, b"%d" % number: b""}, "u": {b"%d" % number: b"u"}})
    place.retire()


def test_a_time_means_the_newest_version_that_was_decided_by_then(place):
    write_plain(place)
    decided = place.version_at(4)
    assert plan_restore(place.driver(), moment(decided.decided_at_us)).target == decided
    assert plan_restore(place.driver(), moment(decided.decided_at_us - 1)).target.version == 3
    first = place.version_at(1)
    for time, words in (
        (moment(first.decided_at_us - 1), "had no version at .*: version 1, decided at .*, is its first"),
        (moment(2**51), "shows version 10 already"),
    ):
        refuses_to_plan(place, time, ConfigError, words)


def test_what_the_log_does_not_reach_is_refused_with_the_oldest_version_and_its_time(place):
    write_plain(place)
    place.trim(4)
    oldest = moment(place.version_at(9).decided_at_us).isoformat().replace("+", r"\+")
    words = rf"the oldest that can be restored is 9, decided at {oldest}.*versions 4 to 10.*--base"
    refuses_to_plan(place, 3, SnapshotExpiredError, f"version 3 .* was retired, {words}")
    time = moment(place.version_at(8).decided_at_us)
    refuses_to_plan(place, time, SnapshotExpiredError, f"version 8 .* was retired, {words}")
    assert place.restore(9)[0].first == 0


def test_a_replaced_table_needs_no_older_version_of_the_log(place):
    driver = place.opened()
    place.write(driver, {"t": {b"a": b"1"}})
    place.write(driver, {"t": {b"b": b"2"}}, starts={"t"})
    place.write(driver, {"u": {b"x": b"3"}, "t": {b"c": b"3"}})
    for number in range(4):
        place.write(driver, {"t": {b"a": b"%d" % number, b"b": None}})
    place.retire()
    place.trim(2)
    with pytest.raises(SnapshotExpiredError, match=r"the oldest that can be restored is 2, decided"):
        plan_restore(place.driver(), 1)
    for version in (3, 2):
        assert place.restore(version)[0].first == 2
        assert place.live() == place.expected(version)


def exported(place, folder, version, tables=None):
    driver = place.driver()
    export(driver.store, driver.store.identity(), version, folder, tables)
    return folder


def backed_up(place, folder):
    driver = place.driver()
    backup(driver.log, driver.store, driver.store.identity(), folder)
    return folder


@pytest.mark.parametrize("to", [5, 6, 8])
@pytest.mark.parametrize("kind", ["an export", "a folder of backups"])
def test_an_export_reaches_what_the_log_alone_does_not(place, tmp_path, to, kind):
    driver = place.opened()
    rows = {
        number: {"t": {b"k": b"%d" % number, b"%d" % number: b""}, "e": {b"x": b""}} for number in range(12)
    }
    for number in range(5):
        place.write(driver, rows[number])
    whole = kind == "an export"
    folder = exported(place, tmp_path / "base", 5) if whole else backed_up(place, tmp_path / "base")
    for number in range(5, 12):
        place.write(driver, rows[number] | {"u": {b"made": b"later"}}, starts={"t"} if number == 6 else ())
        if not whole:
            backed_up(place, folder)
    place.retire()
    place.trim(5)
    plan, _ = place.restore(to, base=folder)
    assert (plan.first, plan.base.manifest.version) == (6, 5)
    assert place.live() == place.expected(to)


def test_an_export_that_does_not_fit_is_refused(place, tmp_path):
    driver = place.opened()
    for number in range(3):
        place.write(driver, {"t": {b"%d" % number: b""}, "u": {b"": b""}})
    folder = exported(place, tmp_path / "export", 3)
    part = exported(place, tmp_path / "part", 3, ["t"])
    for number in range(3, 9):
        place.write(driver, {"t": {b"%d" % number: b""}, "u": {b"": b""}})
    other = Place(f"{place.wal}-other", f"{place.store}-other")
    other.write(other.opened(), {"t": {b"": b""}})
    foreign = exported(other, tmp_path / "foreign", 1)
    place.retire()
    place.trim(4)
    for to, base, words in (
        (2, folder, "version 3, which is newer than 2"),
        (5, part, "has no table u, which version 5 has"),
        (5, foreign, "is an export of namespace n .*, not of n"),
        (5, Path(tmp_path / "none"), "no whole export"),
        (5, backed_up(place, tmp_path / "late"), "no full backup of version 5 or .* oldest is of version 9"),
    ):
        refuses_to_plan(place, to, ConfigError, words, base=base)
    assert place.restore(5, base=folder)[0].first == 4
    place.trim(6)
    with pytest.raises(
        SnapshotExpiredError, match=r"version 4 .* was retired, .*export has version 3, and the"
    ):
        place.restore(4, base=folder)


def test_a_backup_whose_increments_would_reach_a_version_names_the_way(place, tmp_path):
    """The error asked for an export, and the folder that was given has the version as an increment."""
    driver = place.opened()
    folder = None
    for number in range(4):
        place.write(driver, {"t": {b"%d" % number: b""}})
        folder = backed_up(place, tmp_path / "backups")
    place.write(driver, {"t": {b"9": b""}})
    place.write(driver, {"t": {b"9": b""}})
    place.retire()
    place.trim(4)
    with pytest.raises(
        SnapshotExpiredError, match=r"full backups only.* `tidegate restore-from .*backups --to"
    ):
        place.restore(3, base=folder)


def test_an_export_of_the_version_itself_needs_its_manifest_only(place, tmp_path):
    driver = place.opened()
    for number in range(3):
        place.write(driver, {"t": {b"%d" % number: b""}})
    folder = exported(place, tmp_path / "export", 3)
    for number in range(3, 9):
        place.write(driver, {"t": {b"%d" % number: b""}})
    place.retire()
    place.trim(3)
    assert place.restore(3, base=folder)[0].first == 4
    assert place.live() == place.expected(3)


@pytest.mark.parametrize(
    "step",
    ["decide.before_append", "decide.after_append", "apply.after_begin", "seal.after", "publish.before"],
)
def test_a_restore_that_was_killed_is_run_again_and_makes_one_version(place, step):
    write_plain(place)
    failpoints.arm(f"{step}=raise")
    with pytest.raises(FailpointError):
        place.restore(3)
    failpoints.arm(None)
    _, done = place.restore(3)
    assert (done.visible, place.live()) == (11, place.contents[3])
    with pytest.raises(ConfigError, match="shows version 3 already"):
        place.restore(3)


def test_a_version_that_was_decided_after_the_preview_is_not_undone(place):
    write_plain(place)
    driver = place.driver()
    plan = plan_restore(driver, 3)
    place.write(place.opened(), {"t": {b"new": b""}})
    with pytest.raises(ConfigError, match="has version 11 now, it was 10 before: nothing was restored"):
        restore(driver, plan)
    assert place.live() == place.contents[11]


def test_a_log_that_was_trimmed_after_the_preview_is_named_and_nothing_is_written(place):
    write_plain(place)
    driver = place.driver()
    plan = plan_restore(driver, 3)
    place.trim(3)
    appended_nothing(
        driver, lambda: restore(driver, plan), WalGapError, "version 3 cannot be restored any more"
    )


# -- undone and returned batches --------------------------------------------------------------------


def test_the_undone_and_the_returned_versions_are_those_of_the_two_branches(place):
    write_plain(place, 6)
    place.restore(2)  # version 7
    place.write(place.opened(), {"t": {b"after": b"7"}})
    place.write(place.opened(), {"t": {b"load": b""}}, origin=LoadOrigin("once"))
    plan = plan_restore(place.driver(), 4)
    assert [each.version for each in plan.undone] == [8, 9]
    assert [each.version for each in plan.returned] == [3, 4]
    assert plan.undone[0].changes == {"t": 1}
    assert plan.kept.version == 4
    assert plan.kept.source_offsets
    place.restore(4)  # version 10
    plan = plan_restore(place.driver(), 8)
    assert ([each.version for each in plan.undone], plan.kept.version) == ([3, 4], 8)


def test_a_replay_after_a_batch_that_the_fold_forgot_is_refused_i2(place, monkeypatch):
    """The fold could not refuse a batch that the restored state holds, from an older checkpoint."""
    monkeypatch.setattr("tidegate.committers.operations.restore_plan.RECENT_MAX", 6)
    write_plain(place)
    with pytest.raises(ConfigError, match="safe only after one of the last 6 versions, from 6 on"):
        place.restore(5, reprocess=True)
    assert not plan_restore(place.driver(), 5).replayable
    assert place.restore(6, reprocess=True)[1].generation == 1
