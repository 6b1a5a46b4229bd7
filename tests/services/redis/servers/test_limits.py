"""A value that a server can never take, or never give back, is refused before it is decided.

The servers' own limits are set low. The largest value that is admitted is applied, read and scanned; one more
byte is refused, and the error names the setting.
"""

import re
import uuid

import pytest

from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import BadRecordError, ConfigError, TidegateError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.records import ReadAt
from tidegate.sinks.redis.store import RedisStore
from tidegate.sinks.redis.upkeep.limits import BULK, CLIENTS, OUTPUT, QUERY
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.memory_log import MemoryLog

MIB = 1024 * 1024
LIMITS = {
    BULK: {BULK: "2mb"},
    QUERY: {QUERY: "2mb"},
    OUTPUT: {OUTPUT: "normal 6mb 0 0"},
    CLIENTS: {CLIENTS: "16mb"},
    "maxmemory": {"maxmemory": "40mb", "maxmemory-policy": "noeviction"},
}
KEY_GROUPS = 2


@pytest.fixture
def opened():
    """Opens drivers, each of a namespace of its own."""
    drivers = []

    def driver_on(url, **options):
        place = f"n{uuid.uuid4().hex[:12]}"
        where, log = Endpoints(place, f"memory://{place}", url), MemoryLog(place, place)
        driver = Coordinator(
            where, log, RedisStore(url, place, timeout_s=5.0), Options(key_groups=KEY_GROUPS, **options)
        )
        drivers.append(driver)
        open_namespace(driver, "q")
        return driver

    yield driver_on
    for driver in drivers:
        driver.store.close()


def write(driver, number, rows):
    return commit(driver, ArrowBarrier(driver.log, {"t": rows}, batch("q", number), KEY_GROUPS))


def check_at_the_limit(driver, setting, count=10):
    """One byte too many is refused with the setting's name; as many as are allowed come back."""
    most = driver.store.value_bytes_max
    assert most < driver.options.value_bytes_max
    with pytest.raises(BadRecordError) as caught:
        write(driver, 0, {b"large": b"x" * (most + 1)})
    told = str(caught.value)
    assert re.search(rf"table t, key .*large.*{most} are allowed.*{setting}.* is [\d,]+ bytes at 127", told)
    assert f"a value may take {most:,}" in told
    assert "nothing was decided" in told
    assert "restart the query" in told
    assert driver.folded.last_version == driver.store.pointer().visible == 0
    rows = {b"k%d" % n: b"%d" % n + b"x" * (most - 1) for n in range(count)}
    for number, (key, value) in enumerate(rows.items()):
        write(driver, number, {key: value})
    last = driver.folded.last_version
    assert driver.store.pointer().visible == last == count
    found = driver.store.get_stored(ReadAt("t", last), [b"k0"]).to_pylist()
    assert found[0][1:] == rows[b"k0"]
    scanned = sum(
        batch.num_rows for g in range(KEY_GROUPS) for batch in driver.store.scan_stored(ReadAt("t", last), g)
    )
    assert scanned == len(rows)
    assert None not in driver.store.get_stored(ReadAt("t", last), list(rows)).to_pylist(), (
        "together above a limit"
    )


@pytest.mark.parametrize("setting", LIMITS)
def test_a_value_that_a_server_cannot_take_is_refused_before_it_is_decided(setting, private_redis, opened):
    server = private_redis(settings=LIMITS[setting])
    check_at_the_limit(opened(server.url), setting, 1 if setting == "maxmemory" else 10)


@pytest.mark.parametrize("setting", [BULK, QUERY])
def test_where_config_is_barred_a_request_shows_the_limit(setting, private_redis, opened):
    """The rights files give no right to CONFIG."""
    server = private_redis(settings=LIMITS[setting], barred=("CONFIG",))
    driver = opened(server.url)
    most = driver.store.value_bytes_max
    assert 0.9 * MIB <= most < 2 * MIB
    with pytest.raises(
        BadRecordError, match=rf"{BULK} or {QUERY}, as a request showed, is [\d,]+ bytes at 127"
    ):
        write(driver, 0, {b"k": b"x" * (most + 1)})
    write(driver, 0, {b"k": b"x" * most})
    assert driver.store.pointer().visible == 1


def test_what_the_servers_do_not_say_is_no_reason_to_refuse(private_redis, opened, caplog):
    url = private_redis(users={"app": "on >secret ~* &* +@all -config"}).url_for("app", "secret")
    driver = opened(url)
    assert driver.store.value_bytes_max is None
    assert "value size" not in caplog.text
    found = {check.check: check for check in driver.store.checks(thorough=True)}["value size"]
    assert (found.outcome, "CONFIG is barred" in found.found) == ("warn", True)


def test_a_server_without_room_for_its_own_requests_is_refused(private_redis, opened):
    server = private_redis(settings={OUTPUT: "normal 512kb 0 0"})
    with pytest.raises(ConfigError, match=rf"value size: {OUTPUT} normal is 524,288 bytes.*raise it to"):
        opened(server.url)


def test_a_smaller_option_is_compared_with_the_limit(private_redis, opened, caplog):
    driver = opened(private_redis(settings=LIMITS[OUTPUT]).url, value_bytes_max=100_000)
    assert driver.store.value_bytes_max is None
    assert "value size" not in caplog.text


@pytest.mark.parametrize("setting", [BULK, QUERY, OUTPUT])
def test_a_limit_that_is_lowered_later_is_named_where_it_is_met(setting, private_redis, opened):
    """The version is decided. It is applied once the setting is as before."""
    server = private_redis()
    driver = opened(server.url, apply_deadline_s=1.0)
    large = b"x" * (8 * MIB)
    if setting != OUTPUT:
        server.ask("CONFIG", "SET", *next(iter(LIMITS[setting].items())))
        with pytest.raises(TidegateError, match=rf"{BULK}.*{QUERY}"):
            write(driver, 0, {b"k": large})
        server.ask("CONFIG", "SET", setting, "1gb")
        open_namespace(driver, "q")
    else:
        write(driver, 0, {b"k": large})
        server.ask("CONFIG", "SET", *next(iter(LIMITS[setting].items())))
        with pytest.raises(TidegateError, match=OUTPUT):
            driver.store.get_stored(ReadAt("t", 1), [b"k"])
        server.ask("CONFIG", "SET", setting, "normal 0 0 0")
    assert driver.store.pointer().visible == 1
    assert driver.store.get_stored(ReadAt("t", 1), [b"k"]).to_pylist()[0][1:] == large
