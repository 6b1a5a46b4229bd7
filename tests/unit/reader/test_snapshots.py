"""Snapshots: their version, their lease, and refusals."""

import datetime
import itertools

import pytest

import tidegate
import tidegate.aio
from tidegate.errors import (
    ConfigError,
    SnapshotExpiredError,
)
from tidegate.sinks.capabilities import SupportsReadWithPointer
from tidegate.sinks.rules.leases import Lease
from tidegate.testing.example import BATCHES, SCHEMAS

UTC = datetime.timezone.utc


def connect_to(writer, clock=None):
    return tidegate.connect(writer.driver.endpoints.store, namespace="flights", clock=clock)


# -- snapshots --------------------------------------------------------------------------------------


def test_a_snapshot_answers_the_same_while_the_writer_goes_on(writer):
    writer.write(BATCHES[0])
    with connect_to(writer) as gate, gate.snapshot() as snapshot:
        before = sorted(snapshot.table("airports").scan())
        scan = snapshot.table("airports").scan()
        first = next(scan)
        writer.write({"airports": {"EWR": None, "LGA": {"departures": 9, "delay": 0.0}, "SFO": None}})
        assert gate.version() == 2
        assert gate.table("airports").get("EWR") is None
        assert snapshot.table("airports").get("EWR") == {"departures": 1, "delay": 2.0}
        assert sorted([first, *scan]) == before == sorted(snapshot.table("airports").scan())


def test_a_version_that_is_not_visible_yet_is_refused(gate):
    with pytest.raises(ConfigError, match=r"version 4 .* not visible yet, .* is 3: .*wait_for\(4\)"):
        gate.snapshot(version=4)


@pytest.mark.parametrize("version", [0, -1, True, "3", 2.0])
def test_a_version_that_is_no_version_is_refused(gate, version):
    with pytest.raises(ConfigError, match="whole number, 1 or more"):
        gate.snapshot(version=version)
    with pytest.raises(ConfigError, match="whole number, 1 or more"):
        gate.wait_for(version)


@pytest.mark.parametrize("lease_s", [0, -1, 1e9, True, "60", float("nan")])
def test_a_lease_that_cannot_be_is_refused(gate, lease_s):
    with pytest.raises(ConfigError, match="lease_s"):
        gate.snapshot(lease_s=lease_s)


def test_as_of_takes_the_newest_version_decided_by_then(gate):
    decided = {info.version: info.decided_at for info in gate.history()}
    microsecond = datetime.timedelta(microseconds=1)
    for version, moment in decided.items():
        with gate.snapshot(as_of=moment) as snapshot:
            assert (snapshot.version, snapshot.decided_at) == (version, moment)
    elsewhere = datetime.timezone(datetime.timedelta(hours=-5))
    with gate.snapshot(as_of=(decided[2] - microsecond).astimezone(elsewhere)) as snapshot:
        assert snapshot.version == 1
    with pytest.raises(ConfigError, match="had no version at"):
        gate.snapshot(as_of=decided[1] - microsecond)


def test_as_of_reads_some_entries_of_the_catalog_alone(writer, monkeypatch):
    """An entry has a line for each table: of 1,000 tables, 100 versions are 5 MB."""
    for number in range(20):
        writer.write({"airports": {"EWR": {"departures": number, "delay": 0.5}}})
    with connect_to(writer) as gate:
        history, read = gate.history(), []
        store = gate._reader.store
        catalog = store.catalog

        def counted(oldest: int = 0, newest: int | None = None):
            entries = catalog(oldest, newest)
            read.extend(entry.version for entry in entries)
            return entries

        monkeypatch.setattr(store, "catalog", counted)
        for info in history:
            del read[:]
            with gate.snapshot(as_of=info.decided_at) as snapshot:
                assert snapshot.version == max(h.version for h in history if h.decided_at <= info.decided_at)
            assert len(read) <= 6


@pytest.mark.parametrize("as_of", [datetime.datetime(2026, 1, 1), "2026-01-01", datetime.date(2026, 1, 1)])  # noqa: DTZ001
def test_as_of_without_a_time_zone_is_refused(gate, as_of):
    with pytest.raises(ConfigError, match="time zone"):
        gate.snapshot(as_of=as_of)


def test_a_version_and_as_of_together_are_refused(gate):
    with pytest.raises(ConfigError, match="not both"):
        gate.snapshot(version=1, as_of=datetime.datetime.now(UTC))


def test_what_was_retired_is_refused_by_name_of_the_oldest(writer):
    for rows in BATCHES:
        writer.write(rows)
    with connect_to(writer) as gate:
        decided = {info.version: info.decided_at for info in gate.history()}
        assert writer.driver.store.announce(3) == 3
        with pytest.raises(SnapshotExpiredError, match=r"version 2.*oldest that can be read is 3"):
            gate.snapshot(version=2)
        with pytest.raises(SnapshotExpiredError, match=r"version 3.*oldest that can be read"):
            gate.snapshot(as_of=decided[2])
        assert [info.version for info in gate.history()] == [3]


def test_t28_the_tables_of_a_version_that_is_retired_meanwhile_are_those_of_a_newer_one(writer, monkeypatch):
    writer.write({"airports": BATCHES[0]["airports"]})
    with connect_to(writer) as gate:
        store, catalog = gate._reader.store, gate._reader.store.catalog

        def retired_meanwhile(oldest, newest):
            if newest != 1:
                return catalog(oldest, newest)
            writer.write(BATCHES[0])
            assert writer.driver.store.announce(2) == 2
            return []

        monkeypatch.setattr(store, "catalog", retired_meanwhile)
        assert gate.tables() == sorted(BATCHES[0])


@pytest.mark.parametrize("batches_before", [0, 1])
def test_i8_a_scan_leaves_a_version_that_is_retired_before_its_first_row(writer, monkeypatch, batches_before):
    """After a row it refuses: rows of two versions would be mixed."""
    writer.write(BATCHES[0])
    with connect_to(writer) as gate:
        store = gate._reader.store
        scan_groups = store.scan_groups

        def retired(at, groups):
            yield from itertools.islice(scan_groups(at, groups), batches_before)
            if at.version == 1:
                writer.write(BATCHES[1])
                raise SnapshotExpiredError("version 1 was retired")
            yield from itertools.islice(scan_groups(at, groups), batches_before, None)

        monkeypatch.setattr(store, "scan_groups", retired)
        scan = gate.table("airports").scan()
        if batches_before:
            with pytest.raises(SnapshotExpiredError, match="version 1 was retired"):
                list(scan)
        else:
            assert dict(scan)["EWR"] == {"departures": 2, "delay": 1.5}
    assert writer.driver.store.leases() == []


def test_i8_a_horizon_that_moved_while_the_lease_was_taken_gives_the_version_up(writer, monkeypatch):
    for rows in BATCHES:
        writer.write(rows)
    with connect_to(writer) as gate:
        store, released = gate._reader.store, []
        # A store whose lease is not atomic with the horizon: it grants, and the horizon has moved.
        monkeypatch.setattr(store, "lease", lambda *_: writer.driver.store.announce(3))
        monkeypatch.setattr(store, "release", released.append)
        with pytest.raises(SnapshotExpiredError, match="version 2"):
            gate.snapshot(version=2)
        assert len(released) == 1


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "retired"])
def test_a_version_published_since_the_last_read_is_read(kept, in_memory):
    writer = in_memory
    """A store that looks while it reads is asked at the version seen last: its answer is not that one's."""
    with connect_to(writer) as gate:
        assert isinstance(gate._reader.store, SupportsReadWithPointer)
        for rows in BATCHES:
            version = writer.write(rows)
            if not kept:
                assert writer.driver.store.announce(version) == version
            for table, of_table in rows.items():
                read = gate.table(table)
                assert {key: read.get(key) for key in of_table} == dict(of_table)
                assert read.get_many(of_table) == {
                    key: row for key, row in of_table.items() if row is not None
                }
                assert read.schema() == SCHEMAS[table]
            found = gate.get_many({table: list(of_table) for table, of_table in rows.items()})
            assert found == {
                table: {key: row for key, row in of_table.items() if row is not None}
                for table, of_table in rows.items()
            }


def test_an_answer_ahead_takes_one_look(in_memory, monkeypatch):
    writer = in_memory
    writer.write(BATCHES[0])
    with connect_to(writer) as gate:
        store = gate._reader.store
        asked = []
        gate.table("airports").get("EWR")
        for name in ("get_with_pointer", "get_many_with_pointer"):
            real = getattr(store, name)
            monkeypatch.setattr(store, name, lambda *of, real=real: asked.append(of) or real(*of))
        monkeypatch.setattr(gate, "_read_pointer", lambda: pytest.fail("it has looked already"))
        assert gate.table("airports").get("EWR") == BATCHES[0]["airports"]["EWR"]
        assert gate.table("airports").get_many(["EWR"]) == {"EWR": BATCHES[0]["airports"]["EWR"]}
        assert gate.get_many({"airports": ["EWR"]}) == {"airports": {"EWR": BATCHES[0]["airports"]["EWR"]}}
        assert len(asked) == 3


def test_t28_a_newest_version_retired_under_a_read_is_read_again_at_the_newer_one(writer, monkeypatch):
    writer.write(BATCHES[0])
    with connect_to(writer) as gate:
        found = gate._reader.store._looked_up

        def retired_meanwhile(reads):
            if reads[0][0].version == 1:
                writer.write(BATCHES[1])
                assert writer.driver.store.announce(2) == 2
            return found(reads)

        monkeypatch.setattr(gate._reader.store, "_looked_up", retired_meanwhile)
        assert gate.table("airports").get("EWR") == {"departures": 2, "delay": 1.5}


def test_t28_reading_again_has_an_end(gate, monkeypatch):
    tries = []

    def always(reads):
        tries.append(reads)
        raise SnapshotExpiredError("retired")

    monkeypatch.setattr(gate._reader.store, "_looked_up", always)
    with pytest.raises(SnapshotExpiredError):
        gate.table("airports").get("EWR")
    assert 1 < len(tries) < 10


# -- more leases than the store allows -------------------------------------------------------------------


def _in_snapshot(gate, version=None):
    with gate.snapshot(version) as snapshot:
        return len(list(snapshot.table("airports").scan()))


def _in_mirror(gate):
    with gate.mirror(["airports"]) as mirror:
        return len(list(mirror.table("airports").scan()))


READS = {
    "snapshot": _in_snapshot,
    "an older one": lambda gate: _in_snapshot(gate, 1),
    "scan": lambda gate: len(list(gate.table("airports").scan())),
    "diff": lambda gate: len(list(gate.diff(1, 2))),
    "mirror": _in_mirror,
}


@pytest.mark.parametrize("store", ["sqlite", "memory"])
@pytest.mark.parametrize("name", READS)
def test_a_reader_that_holds_all_leases_refuses_no_other_reader(name, store, request, monkeypatch, caplog):
    writer = request.getfixturevalue("writer" if store == "sqlite" else "in_memory")
    for rows in BATCHES[:2]:
        writer.write(rows)
    with connect_to(writer) as gate:
        expected = READS[name](gate)
    monkeypatch.setattr("tidegate.sinks.sqlite.leases.LEASES_MAX", 2)
    writer.driver.store.announce(0, max_leases=2)
    for taken in "ab":
        writer.driver.store.lease(Lease(taken, 2), 600)
    with connect_to(writer) as gate:
        assert READS[name](gate) == expected > 0
        assert "is read without leases, since it gives none" in caplog.text
        with gate.snapshot(1) as snapshot:
            assert writer.driver.store.announce(2) == 2, "no lease holds it"
            with pytest.raises(SnapshotExpiredError):
                list(snapshot.table("airports").scan())
