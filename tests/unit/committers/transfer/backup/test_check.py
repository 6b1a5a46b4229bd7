"""What `backup --check` promises: a backup that cannot be restored in each way is a finding."""

import shutil

import msgspec
import pytest

from support.committers.backups import place_in
from tidegate.committers.repair.log_state import LogState
from tidegate.committers.repair.lost_store import fill_and_follow
from tidegate.committers.transfer.backup import check as check_module
from tidegate.committers.transfer.backup import restore_from as restore_module
from tidegate.committers.transfer.backup.chain import (
    FULL,
    INDEX,
    PLACE,
    Index,
    Place,
    digest_of,
    read_chain,
    read_sealed,
    write_chain,
    write_sealed,
)
from tidegate.committers.transfer.backup.check import check
from tidegate.committers.transfer.backup.restore_from import Way
from tidegate.errors import ConfigError, CorruptError, TidegateError
from tidegate.sinks.memory import store as memory_store
from tidegate.wal import memory_log
from tidegate.wal.record import Summary, TableAt, decode_record, encode_record


@pytest.fixture
def place(tmp_path):
    """Full backups at versions 1 and 4, increments up to 2, 3 and 6."""
    made = place_in(tmp_path, "memory")
    for number in range(1, 7):
        made.write(number)
        if number != 5:
            made.backup(full_every=2)
    return made


def reseal(place, number, change):
    """Change the description of a link, and all checksums above it, as an author of it could."""
    chain = read_chain(place.folder)
    link = chain.links[number]
    path = place.folder / link.name
    name, kind = (PLACE, Place) if link.kind == FULL else (INDEX, Index)
    described = read_sealed(path / name, kind)
    (path / name).unlink()
    write_sealed(path / name, change(described))
    links = list(chain.links)
    links[number] = msgspec.structs.replace(link, digest=digest_of(path, link.kind))
    write_chain(place.folder, msgspec.structs.replace(chain, links=tuple(links)))


def with_state(change):
    def of_place(described):
        record = decode_record(described.state, "test")
        state = change(record.state)
        again = Summary(
            namespace=state.namespace,
            writer=state.writer,
            epoch=state.epoch,
            prev_digest=state.digest,
            state=state,
        )
        entry = msgspec.structs.replace(described.entry, tables=state.tables)
        return msgspec.structs.replace(described, state=encode_record(again), entry=entry)

    return of_place


def no_table(state):
    return msgspec.structs.replace(state, tables={})


def unknown_columns(state):
    return msgspec.structs.replace(
        state, tables={name: TableAt("f" * 16, at.start) for name, at in state.tables.items()}
    )


def later_start(state):
    """A table that starts above its version, which no writer makes."""
    at = {name: msgspec.structs.replace(at, start=99) for name, at in state.tables.items()}
    return msgspec.structs.replace(state, tables=at)


def other_stride(state):
    at = {name: msgspec.structs.replace(at, stride=3) for name, at in state.tables.items()}
    return msgspec.structs.replace(state, tables=at)


def no_history(state):
    return msgspec.structs.replace(state, recent=())


def with_gap(state):
    return msgspec.structs.replace(state, recent=(*state.recent[:1], *state.recent[2:]))


def other_namespace(state):
    return msgspec.structs.replace(state, namespace="another")


def another_name(state):
    return msgspec.structs.replace(state, name="../flights")


def far_future(state):
    return msgspec.structs.replace(state, decided_at_us=2**58)  # no time that can be printed


STATES = (
    no_table,
    unknown_columns,
    later_start,
    other_stride,
    no_history,
    with_gap,
    other_namespace,
    another_name,
    far_future,
)


@pytest.mark.parametrize("change", STATES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("number", [0, 3], ids=["first", "last"])
def test_an_impossible_state_with_right_checksums_is_a_finding(place, number, change):
    if number == 0 and change in (later_start, with_gap):
        pytest.skip("the first version is restored by a new one alone, and has no version before it")
    reseal(place, number, with_state(change))
    with pytest.raises(CorruptError):
        check(place.folder)


def no_records(index):
    return msgspec.structs.replace(index, records=())


def no_versions(index):
    return msgspec.structs.replace(index, versions=())


def first_version_gone(index):
    return msgspec.structs.replace(index, versions=index.versions[1:])


def no_frames(index):
    versions = tuple(msgspec.structs.replace(each, frames=()) for each in index.versions)
    return msgspec.structs.replace(index, versions=versions)


def frames_of_others(index):
    first, last = index.versions[0], index.versions[-1]
    last = msgspec.structs.replace(last, frames=first.frames)
    return msgspec.structs.replace(index, versions=(*index.versions[:-1], last))


def places_outside(index):
    versions = tuple(msgspec.structs.replace(each, manifest=(2**40, 10)) for each in index.versions)
    return msgspec.structs.replace(index, versions=versions)


def one_frame_more(index):
    *others, last = index.versions
    last = msgspec.structs.replace(last, frames=(*last.frames, (0, 1)))
    return msgspec.structs.replace(index, versions=(*others, last))


def one_frame_less(index):
    *others, last = index.versions
    return msgspec.structs.replace(
        index, versions=(*others, msgspec.structs.replace(last, frames=last.frames[:-1]))
    )


def sizes_without_end(index):
    versions = tuple(msgspec.structs.replace(each, manifest=(0, 2**50)) for each in index.versions)
    return msgspec.structs.replace(index, versions=versions, size=2**51)


def other_records(index):
    return msgspec.structs.replace(index, records=(b"\x01" * 30,))


INDEXES = (
    no_records,
    no_versions,
    first_version_gone,
    no_frames,
    frames_of_others,
    places_outside,
    one_frame_more,
    one_frame_less,
    sizes_without_end,
    other_records,
)


@pytest.mark.parametrize("change", INDEXES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("number", [1, 4], ids=["older", "last"])
def test_an_impossible_increment_with_right_checksums_is_a_finding(place, number, change):
    if change is frames_of_others and number == 1:
        pytest.skip("it has one version")
    reseal(place, number, change)
    with pytest.raises(CorruptError):
        check(place.folder)


def test_links_of_two_backups_are_a_finding(place, tmp_path):
    other = place_in(tmp_path / "other", "memory")
    for number in range(1, 7):
        other.write(number)
        if number != 5:
            other.backup(full_every=2)
    name = read_chain(place.folder).links[-1].name
    shutil.rmtree(place.folder / name)
    shutil.copytree(other.folder / name, place.folder / name)
    with pytest.raises(CorruptError):
        check(place.folder)
    reseal(place, 4, lambda index: index)
    with pytest.raises(CorruptError):
        check(place.folder)


@pytest.mark.parametrize("way", Way, ids=lambda way: way.value)
def test_a_restore_that_fails_in_one_way_is_a_finding_with_the_way(place, monkeypatch, way):
    """Red before: the check read bytes, and a backup that could not be restored passed."""
    restore = check_module.restore_from

    def failing(coordinator, contents, plan):
        if plan.way is way:
            raise TidegateError("the manifest of version 3 cannot be right")
        return restore(coordinator, contents, plan)

    monkeypatch.setattr(check_module, "restore_from", failing)
    words = f"cannot be restored where {check_module.LOG_HAS[way]}: TidegateError: the manifest of version 3"
    with pytest.raises(CorruptError, match=words):
        check(place.folder)
    place.write(7)
    before = read_chain(place.folder)
    with pytest.raises(CorruptError, match=words):
        place.backup(full_every=2)
    assert read_chain(place.folder) == before
    monkeypatch.undo()
    assert place.backup(full_every=2).link.version == 7


def test_the_defect_of_tables_that_start_later_would_be_found(place, monkeypatch):
    """The builder as it was: each version without rows listed the tables of the last one."""
    make = restore_module.Manifest

    def with_tables(*fields):
        tables = {"airports": TableAt("a" * 16, 6)}
        return make(*fields[:6], tables, *fields[7:])

    monkeypatch.setattr(restore_module, "Manifest", with_tables)
    with pytest.raises(CorruptError, match=r"where the log is gone: .* starts at version 6"):
        check(place.folder)
    place.write(7)
    with pytest.raises(CorruptError, match="cannot be right"):
        place.backup(full_every=2)


def test_rows_that_a_restore_loses_are_a_finding(place, monkeypatch):
    scan = LogState.scan_groups_stored

    class Fewer(LogState):
        def __init__(self, rows):
            vars(self).update(vars(rows))

        def scan_groups_stored(self, *which):
            yield from ((group, batch.slice(1)) for group, batch in scan(self, *which))

    monkeypatch.setattr(
        restore_module,
        "fill_and_follow",
        lambda driver, rows, newer: fill_and_follow(driver, Fewer(rows), newer),
    )
    with pytest.raises(CorruptError, match="the rows of table aircraft are not the backup's"):
        check(place.folder)


def test_every_link_is_restored_and_all_rows_at_the_ends(place, monkeypatch):
    seen = []
    rehearse = check_module.rehearse

    def noted(folder, chain, version, *, sample):
        seen.append((version, sample))
        rehearse(folder, chain, version, sample=sample)

    monkeypatch.setattr(check_module, "rehearse", noted)
    check(place.folder)
    assert seen == [(1, True), (2, True), (3, False), (4, True), (6, False)]


def test_a_backup_of_any_size_is_restored_some_rows_at_a_time(place, monkeypatch):
    monkeypatch.setattr(check_module, "SLICE_ROWS", 2)
    parts = []
    restore = check_module._rehearse

    def noted(folder, contents, part):
        parts.append({table: sum(batch.num_rows for batch in batches) for table, batches in part.items()})
        restore(folder, contents, part)

    monkeypatch.setattr(check_module, "_rehearse", noted)
    check(place.folder)
    assert len(parts) > 8
    spaces = len(memory_store._spaces), len(memory_log._contents)
    check(place.folder)
    assert (len(memory_store._spaces), len(memory_log._contents)) == spaces


def test_each_run_restores_a_sample_of_what_it_wrote(place, monkeypatch):
    seen = []
    contents_of = check_module.contents_of

    def noted(folder, version, chain=None, *, sample=False):
        seen.append((version, sample))
        return contents_of(folder, version, chain, sample=sample)

    monkeypatch.setattr(check_module, "contents_of", noted)
    place.write(7)
    place.backup(full_every=9)
    assert seen == [(7, True)]
    chain = read_chain(place.folder)
    full = next(link for link in reversed(chain.links) if link.kind == FULL)
    (place.folder / full.name / "table=aircraft" / "part-00000.parquet").unlink()  # of an older link
    place.write(8)
    assert place.backup(full_every=9).link.version == 8
    with pytest.raises(CorruptError):
        check(place.folder)


def test_a_temporary_folder_without_room_is_no_finding(place, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="the temporary folder takes no copy"):
        check(place.folder)


def test_an_older_format_of_increments_is_read(place):
    """Until November 2026 an increment had all records since the full backup; the repeated ones are void."""
    chain = read_chain(place.folder)
    records = [
        record
        for link in chain.links[1:2]
        for record in read_sealed(place.folder / link.name / INDEX, Index).records
    ]
    reseal(place, 2, lambda index: msgspec.structs.replace(index, records=(*records, *index.records)))
    check(place.folder)
