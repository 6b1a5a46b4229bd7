"""Verify finds damage of every kind, says where, and writes nothing."""

import contextlib
import sqlite3
import uuid
from collections import Counter

import msgspec
import pytest

from support.checked_place import OPTIONS, Place
from support.places import fails, new_place, opened
from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.operations.verify import Progress, verify
from tidegate.committers.repair import compare_rows
from tidegate.committers.repair.compare_rows import KEYS_NAMED
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import ConfigError, CorruptError, SnapshotExpiredError
from tidegate.options import Options
from tidegate.sinks.memory import store as memory_store
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import BATCHES, Example
from tidegate.wal import fold, memory_log
from tidegate.wal.file.format import frame_prefix
from tidegate.wal.open_log import open_log


@pytest.fixture(params=[False, True], ids=["all kept", "retired"])
def place(request, tmp_path):
    return Place(tmp_path).write(retire=request.param)


@pytest.fixture
def kept(tmp_path):
    return Place(tmp_path).write()


# -- nothing wrong ----------------------------------------------------------------------------------


def test_a_whole_namespace_has_no_findings_and_is_left_as_it_was(place):
    before = place.content()
    seen = []
    report = place.verify(seen.append)
    assert report.findings == []
    assert (report.visible, report.oldest in (1, 2)) == (3, True)
    assert report.frames == sum(len(manifest.frames()) for manifest in place.manifests.values())
    assert report.rows == sum(len(rows) for batch in BATCHES for rows in batch.values())
    assert report.records == 5  # Genesis, Open, three decided
    assert report.notes == []
    assert place.content() == before
    assert {step.step for step in seen} >= {"store files", "versions"}
    assert all(isinstance(step, Progress) and step.done <= step.total for step in seen)


@pytest.mark.parametrize("retire", [False, True])
def test_deletes_emptied_tables_and_many_versions(tmp_path, retire):
    """Whatever is retired, what is left is what the log says."""
    place = Place(tmp_path)
    place.write(
        [*BATCHES, {"airports": {"EWR": None}}, {"airports": {"EWR": {"departures": 3, "delay": 1.0}}}]
    )
    example = Example(place.wal, place.store, options=OPTIONS)
    example.write({"airports": {"SFO": {"departures": 1, "delay": 0.0}}}, frozenset(["airports"]))
    example.write({"airports": {"LGA": {"departures": 1, "delay": 0.0}, "SFO": None}})
    example.write({"legs": {}}, frozenset(["legs"]))
    driver = example.driver
    for keep in range(8, 0, -1) if retire else ():
        options = Options(keep_versions=keep)
        retire_up_to(driver.log, driver.store, driver.folded, options, lambda: False)
        assert place.found() == ""
    driver.store.vacuum()
    assert place.found() == ""
    example.close()


def test_what_is_decided_and_not_visible_is_no_finding(kept, monkeypatch):
    example = Example(kept.wal, kept.store, options=Options(key_groups=4, apply_deadline_s=0.01))
    monkeypatch.setattr(example.driver.store, "publish", lambda *_: False)
    with pytest.raises(Exception, match="stays decided"):
        example.write(BATCHES[1])
    example.close()
    report = kept.verify()
    assert (report.findings, report.visible) == ([], 3)
    kept.flip_in_segment(kept.manifests[3].frames()[0].address)
    assert "version 3" in kept.found()


def test_in_memory_as_well():
    name = uuid.uuid4().hex
    example = Example(f"memory://{name}", f"memory://{name}", options=OPTIONS)
    for rows in BATCHES:
        example.write(rows)
    assert verify(example.driver.log, example.driver.store).findings == []
    rows = memory_store._spaces[name, "flights"].rows
    (at, key) = next((at, key) for at, of_group in rows.items() for key in of_group if at[0] == "legs")
    rows[at][key][1] = b"+{}"
    (finding,) = verify(example.driver.log, example.driver.store).findings
    assert "table legs" in finding.where
    memory_store.forget(name)
    memory_log.forget(name)


def test_where_nothing_was_made(tmp_path):
    report = Place(tmp_path).verify()
    assert report.findings == []
    assert "nothing was made" in report.notes[0]
    assert list(tmp_path.iterdir()) == []


def test_what_is_retired_during_the_check_is_no_finding(kept):
    """A writer runs meanwhile."""
    log, store = open_log(kept.wal, "flights"), open_store(kept.store, "flights")
    example = Example(kept.wal, kept.store, options=OPTIONS)
    plain, done = store.rows_of, []

    def retired_first(at, keys):
        if not done:
            done.append(at.version)
            example.write({"airports": {"EWR": None, "LGA": None, "JFK": None}})
            driver = example.driver
            retire_up_to(driver.log, driver.store, driver.folded, Options(keep_versions=1), lambda: False)
        return plain(at, keys)

    store.rows_of = retired_first
    report = verify(log, store)
    assert report.findings == []
    assert any("retired during the check" in note for note in report.notes)
    example.close()
    store.close()


# -- the log ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_corrupted_frame(place, version):
    ref = place.manifests[version].frames()[0]
    place.flip_in_segment(ref.address)
    found = place.found()
    assert f"version {version}, frame at {ref.address}" in found
    assert str(place.segment(ref.address)[0]) in found
    assert len(place.verify().findings) == 1


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_corrupted_manifest(place, version):
    address = place.facts[version - 1].manifest_address
    place.flip_in_segment(address)
    assert f"version {version}, manifest at {address}" in place.found()


def test_a_frame_that_is_another_whole_one(kept):
    """The log's own checksum fits; the manifest's does not."""
    ref = kept.manifests[1].frames()[0]
    path, offset, length = kept.segment(ref.address)
    whole = path.read_bytes()
    other = bytearray(whole[offset + 16 : offset + 16 + length])
    other[-20] ^= 1
    path.write_bytes(
        whole[:offset] + frame_prefix(bytes(other)) + bytes(other) + whole[offset + 16 + length :]
    )
    assert f"frame at {ref.address}" in kept.found()
    assert "the frame's checksum does not fit" in kept.found()


def test_a_lost_segment_above_the_horizon_and_below(tmp_path):
    place = Place(tmp_path).write(retire=True)  # versions 2 and 3 are kept
    for version, missed in ((1, False), (3, True)):
        for ref in place.manifests[version].frames():
            place.segment(ref.address)[0].unlink(missing_ok=True)
        found = place.found()
        assert (f"version {version}" in found) == missed
    assert any("trimmed" in note for note in place.verify().notes)


@pytest.mark.parametrize("nth", [0, 1, 3])
def test_a_corrupted_record(kept, nth):
    content = bytearray(kept.decisions.read_bytes())
    at = -1
    for _ in range(nth + 1):
        at = content.index(b'"namespace"', at + 1)
    content[at + 15] ^= 1
    kept.decisions.write_bytes(content)
    found = kept.found()
    assert "decision log" in found
    assert str(kept.decisions) in found


def test_a_record_whose_own_checksum_does_not_fit(kept):
    """Bytes that the log took for whole, and the records do not."""
    log = open_log(kept.wal, "flights")
    entry = list(log.decisions())[-1]
    log.append_decision(entry.content[:-2] + b"!}")
    log.close()
    assert f"position {entry.next_position}" in kept.found()


# -- the store ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_corrupted_row(place, version):
    place.in_shards(f"UPDATE t_airports SET value = CAST('+{{}}' AS BLOB) WHERE version = {version}")
    found = place.found()
    assert "table airports, key '" in found
    assert "shard-" in found
    assert "key group" in found


def test_a_lost_row(place):
    place.in_shards("DELETE FROM t_legs")
    found = place.found()
    assert "table legs, key ('" in found
    assert "no row" in found


def test_a_row_too_many(place):
    """One that no batch has written: at a version's own count, or by counting keys at the horizon."""
    place.in_shards(
        "INSERT INTO t_legs SELECT kg, CAST(key || 'x' AS BLOB), version, value FROM t_legs WHERE version = 1"
    )
    assert "table legs" in place.found()


def test_a_delete_marker_that_was_lost(kept):
    kept.in_shards("DELETE FROM t_aircraft WHERE version = 3")
    found = kept.found()
    assert "version 3" in found
    assert "a row of 1 bytes, found no row" in found


def test_a_version_that_is_not_sealed(kept):
    kept.in_shards("DELETE FROM sealed WHERE version = 3")
    assert "version 3 was sealed there" in kept.found()
    driver = opened(new_place(), 2)
    driver.store._space.sealed.clear()
    found = [finding.found for finding in verify(driver.log, driver.store).findings]
    assert found
    assert all("not sealed" in each for each in found)


@pytest.mark.parametrize("name", ["digest", "attempt", "changes", "tables", "decided_at_us"])
def test_a_corrupted_catalog_entry(place, name):
    with contextlib.closing(sqlite3.connect(place.folder / "meta.sqlite")) as connection:
        ((content,),) = connection.execute("SELECT entry FROM catalog WHERE version = 3").fetchall()
        entry = msgspec.json.decode(content)
        other = {"digest": "00", "attempt": "00", "changes": {"legs": 9}, "tables": {}, "decided_at_us": 1}
        entry[name] = other[name]
        connection.execute(
            "UPDATE catalog SET entry = ? WHERE version = 3", (msgspec.json.encode(entry).decode(),)
        )
        connection.commit()
    assert f"catalog, version 3, {name}" in place.found()


@pytest.mark.parametrize(
    "statement,expected",
    [
        ("DELETE FROM catalog WHERE version = 2", "catalog, version 2: an entry, found none"),
        ("UPDATE catalog SET entry = '{' WHERE version = 2", "CatalogEntry cannot be read"),
        ("UPDATE pointer SET digest = 'x'", "pointer: digest"),
        ("UPDATE pointer SET visible = 9", "at most version 3"),
        ("UPDATE pointer SET horizon = 9", "a horizon up to 3"),
        ("DELETE FROM schemas", "schemas: schema "),
        ("UPDATE schemas SET schema = replace(schema, 'carrier', 'barrier')", "one whose id is"),
        ("UPDATE namespace SET identity = replace(identity, 'uuid\":\"', 'uuid\":\"x')", "the log's"),
    ],
)
def test_a_corrupted_pointer_catalog_or_schema(kept, statement, expected):
    assert kept.sql("meta.sqlite", statement) > 0
    assert expected in kept.found()


@pytest.mark.parametrize("name", ["meta.sqlite", "shard-00.sqlite", "shard-03.sqlite"])
@pytest.mark.parametrize("damage", ["page", "header", "missing"])
def test_a_corrupted_database_file(kept, name, damage):
    path = kept.folder / name
    for beside in ("-wal", "-shm"):
        (kept.folder / (name + beside)).unlink(missing_ok=True)
    content = bytearray(path.read_bytes())
    if damage == "page":
        page = 4096
        for at in range(page, len(content)):
            content[at] ^= 0x55
    else:
        content[:16] = b"no SQLite file.."
    path.write_bytes(content)
    if damage == "missing":
        path.unlink()
    if name == "meta.sqlite" and damage == "missing":
        assert "nothing: check --store" in kept.found()  # no version is decided before a store is made
    else:
        assert str(path) in kept.found()


def test_an_index_that_does_not_fit_its_table(kept):
    """SQLite's own check: rows that a look-up by key would not find."""
    with contextlib.closing(sqlite3.connect(kept.folder / "shard-00.sqlite")) as connection:
        connection.execute("CREATE TABLE extra (a, b)")
        connection.execute("CREATE INDEX by_a ON extra (a)")
        connection.execute("INSERT INTO extra VALUES (1, 2)")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = 'CREATE INDEX by_a ON extra (b)' WHERE name = 'by_a'"
        )
        connection.commit()
    assert "shard-00.sqlite" in kept.found()


def test_an_unknown_kind_of_record_is_refused_not_ignored(kept):
    log = open_log(kept.wal, "flights")
    entry = next(iter(log.decisions()))
    log.append_decision(b"\x04" + entry.content[1:])
    log.close()
    with pytest.raises(ConfigError, match="upgrade"):
        kept.verify()


# -- in memory: what changes or fails meanwhile, and what is much --------------------------------------


def test_a_pointer_that_cannot_be_read_is_a_finding_and_the_log_is_checked_all_the_same(monkeypatch):
    driver = opened(new_place(), 2)
    monkeypatch.setattr(driver.store, "pointer", fails(CorruptError("damaged")))
    report = verify(driver.log, driver.store)
    assert [finding.expected for finding in report.findings] == ["a pointer that can be read"]
    assert (report.frames > 0, report.visible) == (True, 0)


def test_what_is_retired_while_it_is_verified_is_no_finding(monkeypatch):
    driver = opened(new_place(), 2)
    driver.store.announce(2, max_lease_s=0.0, max_layers=10)
    monkeypatch.setattr(driver.store, "get_stored", fails(SnapshotExpiredError("retired")))
    report = verify(driver.log, driver.store)
    assert not report.findings
    assert any("was retired during the check" in note for note in report.notes)


def test_what_a_store_refuses_because_it_was_retired_is_no_finding(monkeypatch):
    driver = opened(new_place(), 2)
    monkeypatch.setattr(driver.store, "rows_of", fails(SnapshotExpiredError("retired")))
    assert not verify(driver.log, driver.store).findings


def test_rows_that_cannot_be_read_at_the_horizon_are_a_finding(monkeypatch):
    driver = opened(new_place(), 2)
    driver.store.announce(1, max_lease_s=0.0, max_layers=10)
    monkeypatch.setattr(driver.store, "get_stored", fails(CorruptError("damaged")))
    (finding,) = verify(driver.log, driver.store).findings
    assert (finding.expected, finding.found) == ("rows that can be read", "damaged")


def test_many_wrong_rows_of_a_run_are_counted_and_some_are_named():
    driver = opened(new_place(), 2)
    for of_group in driver.store._space.rows.values():
        for of_key in of_group.values():
            of_key[2] = b"+wrong"
    found = verify(driver.log, driver.store).findings
    assert any(f"others, {KEYS_NAMED} of them named" in finding.found for finding in found)


def test_a_log_that_is_damaged_while_it_is_verified_is_checked_as_far_as_it_is_known(monkeypatch):
    monkeypatch.setattr(fold, "RECENT_MAX", 2)
    driver = opened(new_place(), 4)
    read, times = driver.log.decisions, []

    def decisions(*at):
        times.append(1)
        if len(times) > 1:
            raise CorruptError("damaged")
        return read(*at)

    monkeypatch.setattr(driver.log, "decisions", decisions)
    report = verify(driver.log, driver.store)
    assert len(times) == 2
    assert report.frames > 0


def test_a_manifest_that_is_gone_above_the_horizon_is_a_finding():
    driver = opened(new_place(), 1)
    driver.log.trim_blobs([], driver.clock.now_us() + 3_600_000_000)
    found = verify(driver.log, driver.store).findings
    assert [finding.expected for finding in found] == ["to be there: the version is not retired"]


def test_a_long_log_tells_how_far_its_check_is():
    driver = opened(new_place(), 1)
    first = next(iter(driver.log.decisions())).content
    for _ in range(1_000):
        driver.log.append_decision(first)  # void behind the first one
    steps = []
    report = verify(driver.log, driver.store, steps.append)
    assert report.void == 1_000
    assert ("decision log", 1_000) in [(step.step, step.done) for step in steps]


def test_keys_are_compared_in_several_passes_where_they_are_many(monkeypatch):
    monkeypatch.setattr(compare_rows, "KEYS_PER_PASS", 5)
    driver = opened(new_place(), 3)
    driver.store.announce(3, max_lease_s=0.0, max_layers=10)
    steps = []
    assert not verify(driver.log, driver.store, steps.append).findings
    assert len([step for step in steps if step.step == "rows at the horizon"]) == 4


def test_a_pass_reads_the_frames_of_its_key_groups_alone(monkeypatch):
    """Each pass read every frame: a check of N changes read the log N / 2,000,000 times."""
    monkeypatch.setattr(compare_rows, "KEYS_PER_PASS", 5)
    driver = opened(new_place(), 3)
    driver.store.announce(3, max_lease_s=0.0, max_layers=10)
    groups_of = {
        ref.address: set(ref.groups)
        for decided in driver.folded.recent
        for ref in read_manifest(driver.log, decided).frames()
    }
    reads, read = Counter(), driver.log.read
    monkeypatch.setattr(driver.log, "read", lambda addresses: [reads.update(addresses), *read(addresses)][1:])
    assert not verify(driver.log, driver.store).findings
    key_groups = driver.folded.key_groups
    passes = [range(key_groups * at // 4, key_groups * (at + 1) // 4) for at in range(4)]
    for address, groups in groups_of.items():
        assert reads[address] == 1 + sum(any(group in each for group in groups) for each in passes)
    assert any(reads[address] < 1 + len(passes) for address in groups_of), "each frame has all key groups"
