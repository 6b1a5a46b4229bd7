"""A store that lost every row is rebuilt from the log: one base, then the kept versions, visible at once."""

from __future__ import annotations

import shutil
import tempfile

import msgspec
import pytest

import tidegate
from support.places import new_place
from support.wait import wait_until
from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.committers.apply.apply import chunks_of, plan, read_manifest, stamp_of
from tidegate.committers.background.finish import finish_decided
from tidegate.committers.background.worker import Background
from tidegate.committers.coordinator import Coordinator, OpenRequest
from tidegate.committers.operations.drop import drop_namespace
from tidegate.committers.operations.verify import verify
from tidegate.committers.repair.lost_store import make_again, rebuild_lost
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import (
    ConfigError,
    FencedError,
    StoreLostError,
    StoreNotVerifiedError,
    StoreUnavailableError,
    TidegateError,
    WalGapError,
)
from tidegate.observe.events import Labels
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity
from tidegate.status.fit import passing_misfit
from tidegate.testing.example import Example
from tidegate.wal.open_log import open_log

VERSIONS, KEPT, GROUPS = 12, 3, 4


def raising(error):
    def call(*_):
        raise error

    return call


class Place:
    """A namespace with ``VERSIONS`` versions of one table, on SQLite or in memory."""

    def __init__(self, wal: str, store: str) -> None:
        self.wal, self.store = wal, store

    def writer(self) -> Example:
        options = Options(key_groups=GROUPS, keep_versions=KEPT, summary_every=1)
        return Example(self.wal, self.store, options=options)

    def unopened(self) -> Coordinator:
        where = Endpoints("flights", self.wal, self.store)
        return Coordinator(where, open_log(self.wal, "flights"), open_store(self.store, "flights"))

    def write(self, example: Example, versions: int) -> None:
        for _ in range(versions):
            number = example.driver.folded.last_version + 1
            rows = {f"N{key}": {"carrier": "UA", "flights": number} for key in range(number % 7 + 1)}
            rows |= {f"M{number}": {"carrier": "M", "flights": number}, f"M{number - 1}": None}
            starts = frozenset({"airports"}) if number == 5 else frozenset[str]()
            once = {"notes": {b"n": b"in one version only"}} if number == 2 else {}
            example.write({"aircraft": rows} | once | self.airport(number), starts)

    @staticmethod
    def airport(number: int) -> dict:
        return {"airports": {f"A{number}": {"departures": number, "delay": 1.0}}}

    def answers(self, version: int | None = None) -> dict:
        with tidegate.connect(self.store, namespace="flights") as gate, gate.snapshot(version) as snapshot:
            return {
                table: dict(snapshot.table(table).scan()) for table in ("aircraft", "airports", "notes")
            } | {"version": snapshot.version}

    def lose(self) -> None:
        if self.store.startswith("memory"):
            MemoryStore(self.store.removeprefix("memory://"), "flights").drop()
        else:
            shutil.rmtree(f"{self.store.removeprefix('sqlite://')}/flights")


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    name = new_place()
    where = (f"memory://{name}", f"memory://{name}")
    made = (
        Place(*where)
        if request.param == "memory"
        else Place(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/s")
    )
    example = made.writer()
    made.write(example, VERSIONS)
    example.close()
    return made


def test_the_state_and_the_kept_versions_are_back_at_once(place):
    before = {version: place.answers(version) for version in range(VERSIONS - KEPT + 1, VERSIONS + 1)}
    place.lose()
    example = place.writer()
    pointer = example.driver.store.pointer()
    assert (pointer.visible, pointer.horizon) == (VERSIONS, VERSIONS - KEPT + 1)
    assert {version: place.answers(version) for version in before} == before
    assert [entry.version for entry in example.driver.store.catalog()] == [*before]
    place.write(example, 2)
    assert place.answers()["version"] == VERSIONS + 2


@pytest.mark.parametrize("between", [0, KEPT + 1])
def test_a_dropped_table_that_was_made_again_gets_none_of_its_older_rows_back_i1(place, between):
    """The new table starts at the drop, so only the drop itself empties it in the log."""
    example = place.writer()
    example.write(place.airport(1), drops=frozenset({"aircraft"}))
    for number in range(between):
        example.write(place.airport(number))
    for number in range(KEPT + 1):
        example.write({"aircraft": {"new": {"carrier": "N", "flights": number}}})
    example.close()
    before = place.answers()
    assert list(before["aircraft"]) == ["new"]
    place.lose()
    example = place.writer()
    assert place.answers() == before
    assert verify(example.driver.log, example.driver.store).findings == []
    example.close()


def test_a_rebuilt_store_holds_one_base_and_the_kept_versions(place):
    place.lose()
    example = place.writer()
    versions = {count.version for count in example.driver.store.row_counts(["aircraft", "airports", "notes"])}
    assert versions == {*range(VERSIONS - KEPT + 1, VERSIONS + 1)}


@pytest.mark.parametrize("lost", [2, KEPT, VERSIONS - 1])
def test_a_log_without_a_version_in_the_middle_rebuilds_nothing(tmp_path, lost):
    """A clock that went back makes a later version look older, so that it is trimmed before the others."""
    name = new_place()
    place = Place(f"memory://{name}", f"memory://{name}")
    example = place.writer()
    place.write(example, VERSIONS)
    decided = next(each for each in example.driver.folded.recent if each.version == lost)
    example.driver.log._content.segments.pop(decided.manifest_address.partition(":")[0])
    example.close()
    place.lose()
    with pytest.raises(WalGapError, match=rf"versions {lost + 1} to {VERSIONS} only.* no log can rebuild"):
        place.writer()


@pytest.mark.parametrize("name", ["fill.after_begin", "fill.after_group", "seal.after", "publish.before"])
def test_no_reader_sees_the_past_as_the_present(place, name):
    """Killed at each step, a rebuild shows nothing; the next driver ends it at the same version."""
    before = place.answers()
    place.lose()
    failpoints.arm(f"{name}=raise")
    with pytest.raises(FailpointError):
        place.writer()
    failpoints.arm(None)
    with tidegate.connect(place.store, namespace="flights") as gate:
        assert gate.version() == 0
        assert gate.history() == []
        with pytest.raises(StoreNotVerifiedError, match="is being rebuilt or filled, at version 10"):
            gate.table("aircraft").get("N1")
    example = place.writer()
    assert place.answers() == before
    place.write(example, 1)
    assert place.answers()["version"] == VERSIONS + 1


@pytest.mark.parametrize(
    "name, step", [("fill.after_group", "the state at its first version"), ("seal.after", "version 11")]
)
def test_the_progress_of_a_rebuild_is_shown(place, name, step):
    place.lose()
    failpoints.arm(f"{name}=raise")
    with pytest.raises(FailpointError):
        place.writer()
    failpoints.arm(None)
    driver = place.unopened()
    store = driver.store
    shown = passing_misfit(driver.decisions.catch_up(), store, store.identity(), store.pointer())
    assert f"at version 10 of 12, and shows nothing until it is complete; {step} is being written" in shown


@pytest.mark.parametrize("kept", [KEPT, 2 * KEPT])
def test_a_folder_without_its_meta_file_is_rebuilt_too(tmp_path, kept):
    """The rows that are left have no horizon, and their floors may be above the new one."""
    place = Place(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/s")
    example = place.writer()
    place.write(example, VERSIONS)
    driver = example.driver
    retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)
    example.close()
    before = {version: place.answers(version) for version in range(VERSIONS - KEPT + 1, VERSIONS + 1)}
    for path in tmp_path.glob("s/flights/meta.sqlite*"):
        path.unlink()
    options = Options(key_groups=GROUPS, keep_versions=kept)
    failpoints.arm("publish.before=raise")
    with pytest.raises(FailpointError):
        Example(place.wal, place.store, options=options)
    failpoints.arm(None)
    with tidegate.connect(place.store, namespace="flights") as gate:
        assert gate.version() == 0
    example = Example(place.wal, place.store, options=options)
    pointer = example.driver.store.pointer()
    assert (pointer.visible, pointer.horizon) == (VERSIONS, VERSIONS - kept + 1)
    assert {version: place.answers(version) for version in before} == before
    assert place.answers(pointer.horizon)["airports"][f"A{pointer.horizon}"]
    place.write(example, 1)


def test_a_version_that_was_begun_before_the_mark_does_not_hide_the_loss(place):
    """A batch in flight may begin its version, and write rows of it, between the making and the mark."""
    before = place.answers()
    place.lose()
    driver = place.unopened()
    state = driver.decisions.catch_up()
    driver.store.create(Identity(state.namespace, state.name, state.key_groups))
    decided = state.recent[-1]
    manifest = read_manifest(driver.log, decided)
    stamp = stamp_of(decided)
    driver.store.claim(state.epoch, state.writer)
    driver.store.begin(stamp, manifest.schemas.values(), state.epoch)
    for work in plan(manifest, decided, 1):
        for chunk in chunks_of(work, driver.log):
            driver.store.apply(stamp, chunk)
    example = place.writer()
    pointer = example.driver.store.pointer()
    assert (pointer.visible, pointer.horizon) == (VERSIONS, VERSIONS - KEPT + 1)
    assert place.answers() == before


def test_a_cut_log_is_noticed_before_anything_is_written(place):
    example = place.writer()
    decided = example.driver.folded.recent
    kept = {decided[-1].manifest_address}
    example.driver.log.trim_blobs(kept, example.driver.clock.now_us() + 86_400_000_000)
    example.close()
    place.lose()
    with pytest.raises(WalGapError, match=r"holds no row, and .* no log can rebuild this store"):
        place.writer()
    with pytest.raises(TidegateError, match="no namespace"):
        tidegate.connect(place.store, namespace="flights")


def test_a_query_without_batches_rebuilds_its_store(place):
    """The heartbeat notices the loss, and the background work rebuilds the store under the driver's epoch."""
    before = place.answers()
    example = place.writer()
    driver, clock = example.driver, example.driver.clock
    place.lose()
    with pytest.raises(StoreLostError, match=r"is not there any more\. If nobody dropped it"):
        driver.store.heartbeat(driver.epoch)
    background = Background(
        driver.log, driver.store, driver.options, lambda: driver.epoch, clock=clock, at=Labels("flights")
    )
    try:
        wait_until(lambda: driver.store.identity() and driver.store.pointer().visible == VERSIONS)
    finally:
        background.stop()
    assert place.answers() == before
    place.write(example, 1)


def test_a_lost_store_that_was_made_again_is_no_empty_namespace_i9(place, monkeypatch):
    """Readers are refused from the creation on, also when the driver cannot go on."""
    before = place.answers()
    place.lose()
    store = type(place.unopened().store)
    with monkeypatch.context() as patch:
        patch.setattr(store, "claim", raising(StoreUnavailableError("away")))
        with pytest.raises(StoreUnavailableError, match="away"):
            place.writer()
    with pytest.raises(StoreNotVerifiedError, match="is being rebuilt or filled, at version 10"):
        place.answers()
    place.writer()
    assert place.answers() == before


def test_a_store_that_was_dropped_is_not_rebuilt(place, monkeypatch):
    example = place.writer()
    dropper = place.unopened()
    monkeypatch.setattr(dropper.log, "drop", lambda: False)
    drop_namespace(dropper)
    monkeypatch.undo()
    with pytest.raises(FencedError, match="a drop does so"):
        make_again(example.driver)
    assert example.driver.store.identity() is None
    dropper.log.drop()
    with pytest.raises(ConfigError, match="the namespace is gone, and so is its log"):
        make_again(example.driver)


def test_a_drop_right_before_the_creation_leaves_no_empty_namespace(place, monkeypatch):
    driver = place.writer().driver
    place.lose()
    create = driver.store.create

    def dropped_before(identity, lost_at):
        drop_namespace(place.unopened())
        return create(identity, lost_at)

    monkeypatch.setattr(driver.store, "create", dropped_before)
    with pytest.raises(ConfigError, match="the namespace is gone, and so is its log"):
        make_again(driver)
    assert driver.store.identity() is None
    place.writer()


def test_a_temporary_folder_without_room_is_named_before_anything_is_written(place, monkeypatch, tmp_path):
    place.lose()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"the temporary folder takes no copy of the rows .* set TMPDIR"):
        place.writer()
    monkeypatch.undo()
    example = place.writer()
    assert example.driver.store.pointer().visible == VERSIONS


def test_a_folder_that_is_not_mounted_gets_no_second_store(tmp_path):
    """A rebuilt store there would be hidden by the mounted one, and readers would get old versions (I9)."""
    place = Place(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/s")
    example = place.writer()
    place.write(example, VERSIONS)
    folder, away = tmp_path / "s", tmp_path / "away"
    for make in (folder.mkdir, lambda: None):  # an empty mount point, or a folder that is gone with the mount
        folder.rename(away)
        make()
        with pytest.raises(StoreLostError, match=r"is its disk mounted.*Mount it, then start the query"):
            place.writer()
        with pytest.raises(StoreLostError, match="Nothing was made there"):
            make_again(example.driver)
        assert not folder.exists() or not list(folder.iterdir())
        shutil.rmtree(folder, ignore_errors=True)
        away.rename(folder)
        example = place.writer()
    shutil.rmtree(folder)
    with pytest.raises(StoreLostError, match="`tidegate recover` makes it again"):
        place.writer()
    by_command = place.unopened()
    by_command.request = OpenRequest(may_make_again=True)
    finish_decided(by_command, [], "tidegate recover", force=True)
    assert place.answers()["version"] == VERSIONS


def test_a_store_of_an_older_release_gets_its_mark_from_the_next_driver(tmp_path):
    place = Place(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/s")
    place.write(place.writer(), VERSIONS)
    (tmp_path / "s/.tidegate").unlink()
    place.writer()
    place.lose()
    assert place.writer().driver.store.pointer().visible == VERSIONS


@pytest.mark.parametrize(
    "later, error, words",
    [
        (1, FencedError, "fills it"),
        (0, WalGapError, r"ends at version 12: .* `tidegate drop --only-stores --store \w+=URL --force`"),
    ],
)
def test_a_rebuild_that_knows_more_versions_is_left_alone(place, later, error, words):
    """It is a newer driver's; or the log has lost its versions, so that nobody ends it.

    Red before: the second was tried again, at every start.
    """
    driver = place.writer().driver
    (entry,), state, epoch = driver.store.catalog(VERSIONS, VERSIONS), driver.folded, driver.epoch + later
    place.lose()
    driver.store.create(Identity(state.namespace, state.name, state.key_groups))
    driver.store.claim(epoch, "newer")
    newer = msgspec.structs.replace(entry, version=VERSIONS + 1)
    assert driver.store.begin_fill(newer, epoch) == VERSIONS + 1
    with pytest.raises(error, match=words):
        rebuild_lost(driver)
    assert list(driver.store.row_counts(["aircraft", "airports", "notes"])) == []
