"""Backups: increments over every kind of change, damage that is noticed, runs that were killed."""

import datetime
import shutil

import pytest

from support.committers.backups import backed_up, place_in, stored
from tidegate.base.clock import Clock
from tidegate.committers.background.pin import VersionPin
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.transfer.backup import backup as backup_module
from tidegate.committers.transfer.backup import chain as chain_module
from tidegate.committers.transfer.backup.backup import backup
from tidegate.committers.transfer.backup.chain import CHAIN, FULL, INCREMENT, LOCK, locked, read_chain
from tidegate.committers.transfer.backup.check import check
from tidegate.committers.transfer.backup.contents import contents_of, reached_at, version_in
from tidegate.errors import ConfigError, CorruptError, WalGapError


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    made = place_in(tmp_path, request.param)
    yield made
    made.example.close()


@pytest.fixture
def files(tmp_path):
    """A namespace with a full backup at version 2, and increments up to versions 4 and 6."""
    place = place_in(tmp_path, "sqlite")
    for number in range(1, 7):
        place.write(number)
        if number % 2 == 0:
            place.backup(full_every=9)
    yield place
    place.example.close()


def test_a_full_backup_and_increments_hold_every_version_row_by_row(place):
    wanted = {}
    for number in range(1, 13):
        version = place.write(number)
        wanted[version] = stored(place.driver.store)
        if number in {2, 3, 7, 12}:
            done = place.backup(full_every=9)
            assert done.link.kind == (FULL if number == 2 else INCREMENT)
    assert [link.version for link in check(place.folder).links] == [2, 3, 7, 12]
    for version in range(2, 13):
        assert backed_up(place.folder, version) == wanted[version]
        reached = reached_at(place.folder, version)
        assert (reached.state.last_version, reached.state.last_batch) == (version, (0, version - 1))
        ends = max(number for number in range(1, version + 1) if number == version or number % 5 != 4)
        assert reached.source_offsets in ("", f'[{{"orders":{{"0":{ends}}}}}]')
    assert place.backup().link is None


def test_expired_rows_are_no_rows_of_a_full_backup_and_keep_their_expiry_in_increments(tmp_path):
    place = place_in(tmp_path, "memory", ttl={"aircraft": 3600.0})
    for number in range(1, 4):
        place.write(number)
        place.backup()
    rows = backed_up(place.folder, 3)
    assert rows == stored(place.driver.store)
    assert all(value[:1] in {b"e", b"x"} for (table, *_), value in rows.items() if table == "aircraft")


def test_a_version_is_found_by_its_number_or_time(files):
    history = {entry.version: entry for entry in files.driver.store.catalog()}
    assert version_in(files.folder) == 6
    assert version_in(files.folder, 5) == 5
    for version in range(2, 7):
        decided_at_us = files.driver.folded.recent[version - 1].decided_at_us
        moment = datetime.datetime.fromtimestamp((decided_at_us + 1) / 1e6, datetime.timezone.utc)
        assert version_in(files.folder, moment) == version
    assert history
    with pytest.raises(ConfigError, match="does not have version 1; it has the versions 2 to 6"):
        version_in(files.folder, 1)
    with pytest.raises(ConfigError, match="no version of the backup"):
        version_in(files.folder, datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc))


def test_full_backups_follow_n_increments_and_old_ones_are_removed(place):
    kinds, removed = [], []
    for number in range(1, 10):
        place.write(number)
        done = place.backup(full_every=2, keep=2)
        kinds.append(done.link.kind)
        removed += done.removed
    assert kinds == [FULL, INCREMENT, INCREMENT] * 3
    assert removed == ["full-00000000000000000001"] + [f"increment-{number:020}" for number in (2, 3)]
    assert {path.name for path in place.folder.iterdir()} == {
        CHAIN,
        LOCK,
        *(link.name for link in check(place.folder).links),
    }


def test_increments_larger_than_the_full_backup_end_in_a_new_one(place, monkeypatch):
    monkeypatch.setattr(backup_module, "SMALL_BYTES", 0)
    place.example.write({"notes": {b"a": b"1"}})
    place.backup()
    place.example.write({"notes": {b"b": bytes(range(256)) * 400}})
    assert place.backup().link.kind == INCREMENT
    assert place.backup().link is None
    place.example.write({"notes": {b"c": b"1"}})
    done = place.backup()
    assert done.link.kind == FULL
    assert "larger" in done.cause


def test_a_log_that_no_longer_has_the_versions_is_noticed_and_a_full_backup_follows(place, caplog):
    place.write(1)
    place.backup()
    place.write(2)
    place.write(3)
    driver = place.driver
    driver.log.trim_blobs(set(), Clock().now_us() + 10**9)
    (link,) = [place.backup().link]
    assert link.kind == FULL
    assert "no longer has all versions after 1" in caplog.text
    assert backed_up(place.folder, 3) == stored(driver.store)


def test_another_namespace_and_a_foreign_folder_are_refused(place, tmp_path):
    place.write(1)
    place.backup()
    other = place_in(tmp_path / "other", "memory")
    other.write(1)
    other.folder = place.folder
    with pytest.raises(ConfigError, match="holds backups of namespace flights"):
        other.backup()
    other.folder = tmp_path / "foreign"
    other.folder.mkdir()
    (other.folder / "mine").touch()
    with pytest.raises(ConfigError, match="is not empty, and holds no backup"):
        other.backup()


def test_one_backup_at_a_time(place):
    place.write(1)
    with locked(place.folder), pytest.raises(ConfigError, match="another backup is being written"):
        place.backup()
    assert place.backup().link is not None


def test_a_log_of_another_place_is_refused(place, tmp_path):
    place.write(1)
    other = place_in(tmp_path / "other", "memory")
    other.write(1)
    driver = place.driver
    with pytest.raises(WalGapError, match="check --wal and --store"):
        backup(other.driver.log, driver.store, driver.store.identity(), place.folder)
    assert read_chain(place.folder) is None


def test_a_pin_of_a_full_backup_does_not_outlive_it(place, monkeypatch):
    given_back = []
    monkeypatch.setattr(VersionPin, "give_back", lambda self: given_back.append(self.version))
    place.write(1)
    place.backup()
    assert given_back == [1, 1]


@pytest.mark.parametrize("step", ["_fold_to", "copy_blobs"])
def test_versions_that_are_retired_while_the_log_is_read_do_not_end_a_full_backup(place, monkeypatch, step):
    place.write(1)
    if step == "copy_blobs":
        place.backup()
        place.write(2)

    def after_others(*args):
        driver = place.driver
        for number in range(3, 9):
            place.write(number)
            retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)
        if step == "copy_blobs":
            raise WalGapError("trimmed")
        return read(*args)

    read = getattr(backup_module, step)
    monkeypatch.setattr(backup_module, step, after_others)
    done = place.backup()
    assert done.link.kind == FULL
    driver = place.driver
    assert (
        retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)
        > done.version - 3
    )
    check(place.folder)


class Killed(BaseException):
    """The end of the process."""


def steps_of(monkeypatch):
    """Count the durable steps of a backup, and end the process at one of them."""
    state = {"step": 0, "kill_at": 0}

    def counted(function, *, after):
        def call(*args, **kwargs):
            state["step"] += 1
            here = state["step"] == state["kill_at"]
            if here and not after:
                raise Killed
            result = function(*args, **kwargs)
            if here:
                raise Killed
            return result

        return call

    for module, name in (
        (backup_module, "make_folder"),
        (backup_module, "copy_blobs"),
        (backup_module, "export"),
        (backup_module, "write_sealed"),
        (backup_module, "check_link"),
        (backup_module, "sync_folder"),
        (backup_module, "write_chain"),
        (backup_module, "remove_leftovers"),
        (chain_module, "write_sealed"),
        (chain_module, "remove_folder"),
    ):
        for after in (False, True):
            monkeypatch.setattr(module, name, counted(getattr(module, name), after=after))
    return state


@pytest.mark.parametrize("full_every", [1, 9])
def test_a_backup_that_is_killed_at_any_step_leaves_the_chain_good_and_is_continued(
    tmp_path, monkeypatch, full_every
):
    place = place_in(tmp_path, "memory")
    place.write(1)
    place.backup(full_every=full_every, keep=1)
    place.write(2)
    place.backup(full_every=full_every, keep=1)
    version = place.write(3)
    before, wanted = shutil.copytree(place.folder, tmp_path / "before"), stored(place.driver.store)
    state = steps_of(monkeypatch)
    killed = 0
    while True:
        shutil.rmtree(place.folder)
        shutil.copytree(before, place.folder)
        killed += 1
        state.update(step=0, kill_at=killed)
        try:
            place.backup(full_every=full_every, keep=1)
        except Killed:
            state.update(step=0, kill_at=0)
            last = check(place.folder).links[-1].version
            assert last in {2, 3}
            backed_up(place.folder, last)
            place.backup(full_every=full_every, keep=1)
        else:
            break
        assert check(place.folder).links[-1].version == version
        assert backed_up(place.folder, version) == wanted
        assert {path.name for path in place.folder.iterdir()} == {
            CHAIN,
            LOCK,
            *(link.name for link in read_chain(place.folder).links),
        }
    assert killed > 8


def test_a_first_backup_that_is_killed_at_any_step_is_continued(tmp_path, monkeypatch):
    place = place_in(tmp_path, "memory")
    place.write(1)
    state, kill_at = steps_of(monkeypatch), 0
    while True:
        kill_at += 1
        state.update(step=0, kill_at=kill_at)
        try:
            place.backup()
        except Killed:
            state.update(step=0, kill_at=0)
            place.backup()
        else:
            break
        assert [link.version for link in check(place.folder).links] == [1]
        shutil.rmtree(place.folder)
    assert kill_at > 8


def test_a_folder_that_lost_its_chain_keeps_its_links_after_a_killed_run(files):
    (files.folder / CHAIN).unlink()
    (files.folder / chain_module.PART).mkdir()
    before = {path.name for path in files.folder.iterdir()}
    with pytest.raises(ConfigError, match="holds no backup"):
        files.backup()
    assert {path.name for path in files.folder.iterdir()} == before


def test_older_copies_of_log_and_store_are_noticed_and_their_history_gets_another_folder(files, tmp_path):
    files.backup(full_every=9)
    files.example.close()
    for name in ("wal", "store"):
        shutil.copytree(tmp_path / name, tmp_path / "older" / name)
    files.again()
    files.write(7)
    files.backup(full_every=9)
    files.example.close()
    for name in ("wal", "store"):
        shutil.rmtree(tmp_path / name)
        (tmp_path / "older" / name).rename(tmp_path / name)
    files.again()
    with pytest.raises(ConfigError, match="older copies of log and store were put back, give a new folder"):
        files.backup(full_every=9)
    files.write(8)
    with pytest.raises(ConfigError, match=r"version 7 has digest .* give a new folder"):
        files.backup(full_every=9)
    files.write(9)
    for full_every in (1, 9):  # the next link is a full one, or an increment
        with pytest.raises(ConfigError, match=r"version 7 has digest .* put back, .* give a new folder"):
            files.backup(full_every=full_every)
    files.folder = tmp_path / "another"
    assert files.backup().link.kind == FULL
    assert backed_up(files.folder, 8) == stored(files.driver.store)


def test_a_full_disk_leaves_the_chain_good(files, monkeypatch):
    before = check(files.folder)
    files.write(7)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(backup_module, "write_sealed", full)
        with pytest.raises(ConfigError, match="No space left on device; the backups before are as they were"):
            files.backup(full_every=9)
    assert check(files.folder) == before
    assert files.backup(full_every=9).link.after == 6


def damaged(path):
    content = bytearray(path.read_bytes())
    for place in sorted({0, len(content) // 3, len(content) // 2, len(content) - 1}):
        content[place] ^= 0x10
        yield bytes(content)
        content[place] ^= 0x10


def test_a_flipped_byte_in_any_file_is_noticed_by_check_and_by_a_restore(files):
    paths = [path for path in files.folder.rglob("*") if path.is_file() and path.name != LOCK]
    assert {path.name for path in paths} >= {CHAIN, "manifest.json", "place", "index", "blobs"}
    for path in paths:
        whole = path.read_bytes()
        for content in damaged(path):
            path.write_bytes(content)
            with pytest.raises((CorruptError, ConfigError)):
                check(files.folder)
            with pytest.raises((CorruptError, ConfigError)), contents_of(files.folder, 6):
                pass
        path.write_bytes(whole)
    check(files.folder)


def test_a_missing_file_or_link_is_noticed_by_check(files, tmp_path):
    paths = [path for path in files.folder.rglob("*") if path.name not in {LOCK, "backup"}]
    for path in paths:
        beside = tmp_path / "beside"
        path.rename(beside)
        with pytest.raises((CorruptError, ConfigError)):
            check(files.folder)
        beside.rename(path)
    check(files.folder)


def test_an_increment_continues_while_the_writer_goes_on_and_others_read_the_folder(files):
    files.write(7)
    with contents_of(files.folder, 6) as contents:
        files.backup(full_every=9)
        assert contents.reached.state.last_version == 6
    assert version_in(files.folder) == 7


@pytest.mark.parametrize(
    "name", ["full-of-links", ".part", "full-00000000000000000009", "increment-00000000000000000002"]
)
def test_a_backup_removes_nothing_that_is_not_its_own(tmp_path, name):
    """Red before: it removed what a link led to, and a folder whose name only begins like a backup's."""
    place = place_in(tmp_path, "memory")
    place.write(1)
    place.backup()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "precious").write_text("mine")
    (place.folder / name).symlink_to(theirs)
    own, notes = place.folder / "full-of-rows", place.folder / "full-notes.txt"
    own.mkdir()
    notes.write_text("mine")
    for version in (2, 3):
        place.write(version)
        place.backup()
    assert (theirs / "precious").read_text() == "mine"
    assert own.is_dir()
    assert notes.exists()
