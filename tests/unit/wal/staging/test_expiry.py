"""Rows that expire: what is written, who sees it when, what comes back; clocks moved by hand."""

import asyncio
import datetime
import uuid

import pyarrow as pa
import pytest

import tidegate.aio
from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.committers.background.fill import fill
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.verify import verify
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import ConfigError
from tidegate.options import Options
from tidegate.options.durations import duration_us
from tidegate.sinks.memory import store as memory_store
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.layout import unpack
from tidegate.testing.example import Example
from tidegate.testing.store.harness import ManualClock
from tidegate.wal import memory_log
from tidegate.wal.staging.expiry import add_expiry
from tidegate.wal.staging.spec import CHANGES, StageSpec

DAY_S = 86_400
WEEK = Options(key_groups=2, keep_versions=2, ttl={"airports": "7 days"})
NO_TTL = Options(key_groups=2, keep_versions=2)
EWR, LGA, JFK = ({"departures": n, "delay": 0.0} for n in (1, 2, 3))


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.arm(None)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    name = uuid.uuid4().hex
    store = f"memory://{name}" if request.param == "memory" else f"sqlite://{tmp_path}/store"
    yield f"memory://{name}", store
    memory_store.forget(name)
    memory_log.forget(name)


@pytest.fixture
def opened(place, clock):
    """Opens a writer with such options; closed at the end."""
    writers = []

    def open_writer(options=WEEK):
        writers.append(Example(*place, options=options, clock=clock))
        return writers[-1]

    yield open_writer
    for writer in writers:
        writer.close()


def tick(writer):
    """A version that changes nothing of the table."""
    return writer.write({"notes": {b"\0": b"now"}})


def stored(writer, key, version=None):
    visible = writer.driver.store.pointer().visible
    return writer.driver.store.get_stored_one(ReadAt("airports", version or visible), key.encode())


def shown(writer, version=None):
    """The keys that are there, by every way of reading."""
    keys = ["EWR", "LGA", "JFK"]
    gate = tidegate.connect(writer.driver.endpoints.store, "flights")
    with gate, gate.snapshot(version=version) as snapshot:
        table = snapshot.table("airports")
        rows = dict(table.scan())
        assert table.get_many(keys) == rows
        assert {key for key in keys if table.get(key) is not None} == rows.keys()
        assert table.scan().to_arrow().num_rows == len(rows)
        return set(rows)


# -- durations and options -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given,seconds",
    [
        ("7 days", 7 * DAY_S),
        ("1 week", 7 * DAY_S),
        ("1.5 h", 5_400),
        ("90min", 5_400),
        (" 2 minutes ", 120),
        ("30 s", 30),
        (1, 1),
        (2.5, 2.5),
        (datetime.timedelta(days=1), DAY_S),
        ("36525 d", 36_525 * DAY_S),
    ],
)
def test_durations(given, seconds):
    assert duration_us("ttl", given) == seconds * 1_000_000


@pytest.mark.parametrize(
    "given", ["", "7", "days", "7 months", "7 m", "-1 day", "1e3 s", "7 Days", True, None, [1], b"7 days"]
)
def test_what_is_no_duration_is_refused_with_an_example(given):
    with pytest.raises(ConfigError, match="as in '7 days'"):
        duration_us("ttl", given)


@pytest.mark.parametrize("given", [0, -1, 0.5, "0 s", "0.9 s", "36526 d", float("nan"), float("inf")])
def test_a_duration_that_is_too_short_or_too_long_is_refused(given):
    with pytest.raises(ConfigError, match="1 second to"):
        duration_us("ttl", given)


@pytest.mark.parametrize(
    "given,match",
    [
        ("7 days", "per table, as in"),
        ({"a b": "7 days"}, "a b"),
        ({"t": "soon"}, "ttl of table t is 'soon'"),
        ({"t": 0}, "ttl of table t is 0"),
    ],
)
def test_an_option_that_cannot_be_is_refused(given, match):
    with pytest.raises(ConfigError, match=match):
        Options(ttl=given)


def test_a_table_without_a_time_to_live_has_none():
    options = Options(ttl={"t": 60, "u": None})
    assert [options.ttl_us(table) for table in ("t", "u", "v")] == [60_000_000, 0, 0]


# -- what is written -------------------------------------------------------------------------------------


def test_values_of_such_tables_get_the_expiry_and_nothing_else_does():
    spec = StageSpec("u", "a", ("t", "u", "v"), ((), (), ()), 1, 1, 1, 1, None, 1_000, (0, 5, 7))
    values = [b"+", b"+x", b"-", b"+y", b"d\x01a", b"+z", b"+" * 20]
    tables = [0, 1, 1, 2, 2, 0, 1]
    keys = [b"%d" % n for n in range(7)]
    batch = pa.record_batch([pa.array([0] * 7, pa.int32()), tables, keys, values], schema=CHANGES)
    (found,) = add_expiry([batch], spec)
    at = [(1_000 + ttl).to_bytes(8, "big") for ttl in (0, 5, 7)]
    assert found.schema == CHANGES
    assert found["v"].to_pylist() == [
        *(b"+", b"e" + at[1] + b"x", b"-", b"e" + at[2] + b"y", b"d\x01a", b"+z"),
        b"e" + at[1] + b"+" * 19,
    ]
    assert found.slice(0, 0).num_rows == 0
    assert next(add_expiry([batch.slice(1, 1)], spec))["v"].to_pylist() == [b"e" + at[1] + b"x"]


def test_a_change_counts_for_what_is_written_from_then_on(opened, clock):
    writer = opened()
    writer.write({"airports": {"EWR": EWR, "LGA": LGA}})
    began_us = unpack(stored(writer, "EWR")).expiry_us - 7 * DAY_S * 1_000_000
    assert began_us <= writer.driver.folded.decided_at_us
    shorter = opened(Options(key_groups=2, keep_versions=2, ttl={"airports": 3_600}))
    shorter.write({"airports": {"LGA": LGA}})
    ended = opened(NO_TTL)
    ended.write({"airports": {"JFK": JFK}})
    assert ended.driver.folded.tables["airports"].expires is True
    clock.advance(3_700)
    tick(ended)
    assert shown(ended) == {"EWR", "JFK"}
    clock.advance(7 * DAY_S)
    tick(ended)
    assert shown(ended) == {"JFK"}
    ended.write({"airports": {"EWR": EWR}})
    clock.advance(70 * DAY_S)
    tick(ended)
    assert shown(ended) == {"EWR", "JFK"}


def test_tables_without_one_look_in_log_and_store_as_they_always_did(opened):
    writer = opened()
    writer.write({"airports": {"EWR": EWR}, "notes": {b"\0": b"plain"}})
    entry = writer.driver.store.catalog()[-1]
    assert entry.tables["airports"].expires is True
    assert not entry.tables["notes"].expires
    assert writer.driver.store.get_stored_one(ReadAt("notes", 1), b"\0") == b"+plain"


# -- who sees it when ------------------------------------------------------------------------------------


def test_a_version_shows_what_had_not_expired_when_it_was_decided(opened, clock):
    writer = opened()
    writer.write({"airports": {"EWR": EWR, "LGA": LGA}})
    clock.advance(6 * DAY_S)
    writer.write({"airports": {"LGA": LGA}})
    clock.advance(2 * DAY_S)
    # By the clock it has expired; the version that is visible was decided before.
    assert shown(writer) == {"EWR", "LGA"}
    tick(writer)
    assert shown(writer) == {"LGA"}
    assert shown(writer, version=2) == {"EWR", "LGA"}
    clock.advance(100 * DAY_S)
    assert shown(writer, version=2) == {"EWR", "LGA"}
    assert shown(writer, version=3) == {"LGA"}
    tick(writer)
    assert shown(writer) == set()
    assert shown(writer, version=3) == {"LGA"}


def test_with_await_it_is_the_same(opened, clock, place):
    async def read(version):
        gate = await tidegate.aio.connect(place[1], "flights")
        async with gate, await gate.snapshot(version=version) as snapshot:
            table = snapshot.table("airports")
            rows = {key async for key, _ in table.scan()}
            assert set(await table.get_many(["EWR", "LGA"])) == rows
            assert (await table.get("EWR") is not None) == ("EWR" in rows)
            return rows

    writer = opened()
    writer.write({"airports": {"EWR": EWR}})
    clock.advance(8 * DAY_S)
    tick(writer)
    assert asyncio.run(read(1)) == {"EWR"}
    assert asyncio.run(read(2)) == set()


@pytest.mark.parametrize("place_of_death", ["decide.after_append=raise", "apply.before_chunk=raise"])
def test_who_finishes_a_version_later_finds_the_expiry_it_was_staged_with(opened, clock, place_of_death):
    writer = opened()
    began_us = clock.now_us()
    failpoints.arm(place_of_death)
    with pytest.raises(FailpointError):
        writer.write({"airports": {"EWR": EWR}})
    failpoints.arm(None)
    clock.advance(30 * DAY_S)
    again = opened(NO_TTL)
    assert again.driver.folded.last_version == 1
    expiry_us = unpack(stored(again, "EWR", 1)).expiry_us
    assert 0 <= expiry_us - 7 * DAY_S * 1_000_000 - began_us < 1_000_000
    assert shown(again) == {"EWR"}
    tick(again)
    assert shown(again) == set()


def test_a_clock_that_goes_back_while_rows_are_staged_decides_no_earlier(opened, clock, monkeypatch):
    """Else rows would live longer after the decision than they were given."""
    writer = opened()
    log = writer.driver.log
    stage = log.stage

    def back_meanwhile(segment, blobs):
        addresses = stage(segment, blobs)
        clock.advance(-600)
        return addresses

    monkeypatch.setattr(log, "stage", back_meanwhile)
    writer.write({"airports": {"EWR": EWR}})
    monkeypatch.undo()
    first_us = writer.driver.folded.decided_at_us
    assert unpack(stored(writer, "EWR")).expiry_us - first_us <= 7 * DAY_S * 1_000_000
    writer.write({"airports": {"LGA": LGA}})  # by the clock, before the last decision
    assert writer.driver.folded.decided_at_us > first_us
    assert unpack(stored(writer, "LGA")).expiry_us > unpack(stored(writer, "EWR")).expiry_us


# -- space, checks, other stores ---------------------------------------------------------------------------


def retire(writer):
    driver = writer.driver
    return retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)


def test_retirement_gives_the_space_back_and_verify_agrees(opened, clock):
    writer = opened()
    writer.write({"airports": {f"A{n}": EWR for n in range(300)} | {"EWR": EWR}})
    clock.advance(8 * DAY_S)
    writer.write({"airports": {"LGA": LGA}})
    for _ in range(2):
        tick(writer)
    findings = verify(writer.driver.log, writer.driver.store, lambda _: None).findings
    assert findings == []
    assert retire(writer) == 3
    assert stored(writer, "EWR") is None
    assert writer.driver.store.vacuum(dry_run=True).rows == 0
    assert shown(writer, 3) == shown(writer) == {"LGA"}
    assert verify(writer.driver.log, writer.driver.store, lambda _: None).findings == []


def test_a_store_that_is_filled_gets_what_is_live_with_its_expiry(opened, clock, place, tmp_path):
    writer = opened()
    writer.write({"airports": {"EWR": EWR}})
    clock.advance(5 * DAY_S)
    writer.write({"airports": {"LGA": LGA}})
    clock.advance(3 * DAY_S)
    tick(writer)
    source = writer.driver.store
    copy = open_store(f"sqlite://{tmp_path}/copy", "flights", None, clock)
    copy.create(source.identity())
    driver = writer.driver
    driver.store = copy
    copy.claim(driver.epoch, driver.writer)
    assert fill(driver, source) is True
    assert copy.get_stored_one(ReadAt("airports", 3), b"EWR") is None
    assert copy.get_stored_one(ReadAt("airports", 3), b"LGA") == source.get_stored_one(
        ReadAt("airports", 3), b"LGA"
    )
    assert copy.catalog()[0].tables["airports"].expires is True
    driver.store = source
    copy.close()


def test_a_namespace_opens_whatever_its_tables_were_given_before(opened):
    opened().write({"airports": {"EWR": EWR}})
    again = opened(NO_TTL)
    assert open_namespace(again.driver, again.lineage) == []
    assert shown(again) == {"EWR"}
