"""A mirror of tables: at each version what the store has, switched as a whole, with bounds and named ends.

Each test runs in memory and in a file; ``test_mirror_file.py`` has what only a file can do.
"""

import random
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

import tidegate
from support.wait import wait_until
from tidegate.committers.operations.alias import set_alias
from tidegate.errors import (
    BY_NAME,
    ConfigError,
    CorruptError,
    SnapshotExpiredError,
    StoreRemovedError,
    StoreUnavailableError,
    VersionRegressedError,
    WaitTimeoutError,
)
from tidegate.options import Options
from tidegate.options.endpoints import parse_store
from tidegate.reader.mirror import memory
from tidegate.reader.mirror.memory import ROW_BYTES, bytes_of
from tidegate.sinks.aliases import Target
from tidegate.testing.example import Example, write_flights

OPTIONS = Options(key_groups=4, keep_versions=3)


@pytest.fixture(params=["memory", "sqlite", "memory to file"])
def example(request, tmp_path):
    if request.param.startswith("memory"):
        where = f"memory://{tmp_path.name}", f"memory://{tmp_path.name}"
    else:
        where = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    made = Example(*where, options=OPTIONS)
    made.url = where[1]
    yield made
    made.close()


@pytest.fixture
def gate(example):
    with tidegate.connect(example.url, "flights") as gate:
        yield gate


@pytest.fixture
def is_in_file(request):
    return request.node.callspec.params["example"] == "memory to file"


@pytest.fixture
def mirror_of(gate, tmp_path, is_in_file):
    path = {"path": tmp_path / "mirror.db"} if is_in_file else {}
    return lambda tables, **options: gate.mirror(tables, **path, **options)


def aircraft(number):
    return {"carrier": "UA", "flights": number}


def content(source, table="aircraft"):
    return dict(source.table(table).scan())


def test_it_follows_every_change_of_random_batches(example, gate, mirror_of, is_in_file):
    rng, expected = random.Random(1), {}
    example.write({"aircraft": {"N0": aircraft(0)}})
    expected["N0"] = aircraft(0)
    with mirror_of("aircraft") as mirror:
        for number in range(1, 40):
            rows = {f"N{rng.randrange(60)}": aircraft(number) for _ in range(rng.randrange(12))}
            gone = rng.sample(sorted(expected), min(len(expected), rng.randrange(4)))
            rows |= dict.fromkeys(gone)
            emptied = rng.random() < 0.1
            version = example.write({"aircraft": rows}, starts=frozenset({"aircraft"} if emptied else ()))
            expected = {} if emptied else expected
            expected |= rows
            expected = {key: value for key, value in expected.items() if value is not None}
            assert mirror.wait_for(version) == version
            view = mirror.view()
            assert (view.version, content(view)) == (version, expected)
            assert len(view.table("aircraft")) == len(expected)
            if not is_in_file:
                rows = view.contents["aircraft"].pairs()
                assert mirror.size == sum(bytes_of(key, value) for key, value in rows)
            assert view.table("aircraft").get_many([*expected, "none"]) == expected
        assert mirror.moves == 39
    assert gate._reader.store.leases() == []


def test_a_view_stays_as_it_was_and_all_its_tables_are_of_one_version(example, gate, mirror_of):
    example.write({"aircraft": {"N1": aircraft(1)}, "airports": {"JFK": {"departures": 1, "delay": 0.0}}})
    torn, done = [], threading.Event()

    def look(mirror):
        while not done.is_set():
            view = mirror.view()
            one, other = view.table("aircraft").get("N1"), view.table("airports").get("JFK")
            if not one["flights"] == other["departures"] == view.version:
                torn.append((one, other, view.version))

    with mirror_of(["aircraft", "airports"]) as mirror:
        first, readers = mirror.view(), [threading.Thread(target=look, args=(mirror,)) for _ in range(2)]
        for reader in readers:
            reader.start()
        for number in range(2, 13):
            example.write(
                {
                    "aircraft": {"N1": aircraft(number)},
                    "airports": {"JFK": {"departures": number, "delay": 0.0}},
                }
            )
        mirror.wait_for(12)
        done.set()
        for reader in readers:
            reader.join()
        assert torn == []
        assert (first.version, content(first)) == (1, {"N1": aircraft(1)})


def test_a_table_that_is_dropped_and_made_again(example, gate, mirror_of):
    example.write({"aircraft": {"N1": aircraft(1)}, "airports": {}})
    with mirror_of(["aircraft", "airports"]) as mirror:
        table = mirror.table("aircraft")
        mirror.wait_for(example.write({}, drops=frozenset({"aircraft"})))
        assert mirror.tables() == ["airports"]
        with pytest.raises(ConfigError, match="no table 'aircraft' at version 2 of namespace flights"):
            table.get("N1")
        mirror.wait_for(example.write({"aircraft": {"N2": aircraft(2)}}))
        assert dict(table.scan()) == {"N2": aircraft(2)}


def test_it_reads_the_tables_whole_when_its_version_was_retired(example, gate, mirror_of, monkeypatch):
    example.write({"aircraft": {"N1": aircraft(1)}})
    with mirror_of("aircraft") as mirror:

        def revoked():
            raise SnapshotExpiredError("its lease was revoked")

        monkeypatch.setattr(mirror._snapshot, "_check", revoked)
        mirror.wait_for(example.write({"aircraft": {"N2": aircraft(2)}}))
        assert content(mirror) == {"N1": aircraft(1), "N2": aircraft(2)}
        assert (mirror.moves, mirror.full_reads) == (0, 2)
        mirror.wait_for(example.write({"aircraft": {"N1": None}}))
        assert (content(mirror), mirror.moves) == ({"N2": aircraft(2)}, 1)


def test_reads_go_on_while_the_store_is_away_and_the_age_is_told(example, gate, mirror_of, monkeypatch):
    example.write({"aircraft": {"N1": aircraft(1)}})
    with mirror_of("aircraft") as mirror:
        plain, away = gate._reader.store.pointer, StoreUnavailableError("away")

        def pointer():
            raise away

        monkeypatch.setattr(gate._reader.store, "pointer", pointer)
        wait_until(lambda: mirror.error is away, "the mirror notices")
        before = mirror.age_s
        example.write({"aircraft": {"N1": aircraft(2)}})
        assert mirror.table("aircraft").get("N1") == aircraft(1)
        with pytest.raises(WaitTimeoutError, match=r"has version 1 after 0\.1 s, not 2: away"):
            mirror.wait_for(2, timeout=0.1)
        assert mirror.age_s > before
        monkeypatch.setattr(gate._reader.store, "pointer", plain)
        mirror.wait_for(2)
        wait_until(lambda: mirror.error is None, "the error is over")


def test_an_end_is_raised_by_every_read(example, gate, mirror_of, monkeypatch):
    example.write({"aircraft": {"N1": aircraft(1)}})
    with mirror_of("aircraft") as mirror:
        table, end = mirror.table("aircraft"), VersionRegressedError("it went back")

        def pointer():
            raise end

        monkeypatch.setattr(gate._reader.store, "pointer", pointer)
        wait_until(lambda: mirror.error is end, "the mirror notices")
        for read in (
            lambda: table.get("N1"),
            lambda: dict(table.scan()),
            mirror.view,
            lambda: mirror.version,
        ):
            with pytest.raises(VersionRegressedError, match="it went back"):
                read()
        with pytest.raises(VersionRegressedError):
            mirror.wait_for(9)
    assert not mirror._thread.is_alive()


@pytest.mark.parametrize("part", ["catalog", "schemas_of"])
def test_a_record_that_is_missing_and_put_back_ends_no_mirror(part, example, gate, mirror_of, monkeypatch):
    """Red before: a mirror ended with an error whose advice, `tidegate repair`, had mended the store."""
    example.write({"aircraft": {"N1": aircraft(1)}})
    with mirror_of("aircraft") as mirror:
        with monkeypatch.context() as lost:
            lost.setattr(gate._reader.store, part, lambda *_: {} if part == "schemas_of" else [])
            lost.setattr(gate._reader, "_schemas", {})
            example.write({"aircraft": {"N1": aircraft(2)}})
            wait_until(lambda: mirror.error is not None, "the mirror notices")
            assert isinstance(mirror.error, CorruptError), mirror.error
            assert mirror.table("aircraft").get("N1") == aircraft(1)
        mirror.wait_for(2)
        assert mirror.table("aircraft").get("N1") == aircraft(2)


@pytest.mark.parametrize("kind", sorted(set(BY_NAME.values()) - {WaitTimeoutError}, key=str))
def test_only_an_error_that_is_proven_final_ends_a_mirror_or_a_wait(
    kind, example, gate, mirror_of, monkeypatch
):
    example.write({"aircraft": {"N1": aircraft(1)}})
    with mirror_of("aircraft") as mirror:
        plain, raised, threads = gate._reader.store.pointer, kind("for a while"), set()

        def pointer():
            threads.add(threading.current_thread())
            raise raised

        monkeypatch.setattr(gate._reader.store, "pointer", pointer)
        wait_until(lambda: mirror.error is raised, "the mirror notices")
        with ThreadPoolExecutor(1) as pool:
            wait = pool.submit(gate.wait_for, 2, timeout=60)
            wait_until(lambda: len(threads) == 2, "the wait has looked, too")
            if kind in (VersionRegressedError, CorruptError, StoreRemovedError):
                with pytest.raises(kind, match="for a while"):
                    wait.result(90)
                with pytest.raises(kind, match="for a while"):
                    mirror.version  # noqa: B018 - it raises
                return
            assert mirror.table("aircraft").get("N1") == aircraft(1)
            monkeypatch.setattr(gate._reader.store, "pointer", plain)
            example.write({"aircraft": {"N1": aircraft(2)}})
            assert wait.result(90) == 2
        mirror.wait_for(2)
        assert mirror.table("aircraft").get("N1") == aircraft(2)


def test_what_would_not_fit_is_refused_at_first_and_ends_a_mirror_that_grows(
    example, gate, mirror_of, is_in_file
):
    """In a file pages of 4 KiB count, the first three of which have no row."""
    example.write({"aircraft": {f"N{number}": aircraft(1) for number in range(100)}})
    with pytest.raises(
        ConfigError, match=r"more than bytes_max, 9,000 bytes, with the rows of table aircraft"
    ):
        mirror_of("aircraft", bytes_max=9_000)
    assert gate._reader.store.leases() == []
    with mirror_of("aircraft", bytes_max=24_000) as mirror:
        rows = 1_000 if is_in_file else 100
        example.write({"aircraft": {f"M{number}": aircraft(1) for number in range(rows)}})
        wait_until(lambda: mirror.error is not None, "it ends")
        with pytest.raises(ConfigError, match="more than bytes_max"):
            mirror.table("aircraft")


def test_bad_arguments_are_refused(example, gate, mirror_of):
    example.write({"aircraft": {"N1": aircraft(1)}})
    for tables, message in (([], "names of its tables"), (["nothing"], "no table 'nothing'")):
        with pytest.raises(ConfigError, match=message):
            mirror_of(tables)
    with pytest.raises(ConfigError, match="bytes_max"):
        mirror_of("aircraft", bytes_max=-1)
    assert gate._reader.store.leases() == []


def test_on_version_is_called_with_each_content_and_its_errors_end_nothing(example, gate, mirror_of, caplog):
    example.write({"aircraft": {"N1": aircraft(1)}})
    seen = []

    def on_version(view):
        seen.append((view.version, content(view)))
        raise ValueError("no such thing")

    with mirror_of("aircraft", on_version=on_version) as mirror:
        for number in (2, 3):
            mirror.wait_for(example.write({"aircraft": {"N1": aircraft(number)}}))
        wait_until(lambda: len(seen) == 2, "both calls were made")
    assert seen == [(2, {"N1": aircraft(2)}), (3, {"N1": aircraft(3)})]
    assert "on_version" in caplog.text


def test_an_on_version_that_did_not_run_is_told(example, gate, mirror_of, caplog):
    example.write({"aircraft": {"N1": aircraft(1)}})

    async def on_version(view):
        raise AssertionError(view)

    with mirror_of("aircraft", on_version=on_version) as mirror:
        mirror.wait_for(example.write({"aircraft": {"N1": aircraft(2)}}))
        wait_until(lambda: "on_version is async, and did not run" in caplog.text, "the log names it")


def test_a_closed_mirror_and_a_closed_gate(example, gate, mirror_of, is_in_file):
    example.write({"aircraft": {"N1": aircraft(1)}})
    mirror = mirror_of("aircraft")
    view = mirror.view()
    mirror.close()
    mirror.close()
    with pytest.raises(ConfigError, match="closed"):
        mirror.table("aircraft")
    if is_in_file:
        with pytest.raises(ConfigError, match="the mirror of this view was closed"):
            content(view)
    else:
        assert content(view) == {"N1": aircraft(1)}
    with mirror_of("aircraft") as other:
        gate.close()
        wait_until(lambda: other.error is not None, "the end of the gate is its end")
        with pytest.raises(ConfigError, match="closed"):
            other.table("aircraft").get("N1")


def test_a_close_ends_the_waits_of_other_threads(example, gate, mirror_of):
    example.write({"aircraft": {"N1": aircraft(1)}})
    mirror, ended = mirror_of("aircraft"), []

    def wait():
        with pytest.raises(ConfigError, match="this mirror was closed"):
            mirror.wait_for(9, timeout=600)
        ended.append(True)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    mirror.close()
    waiting.join(10)
    assert ended == [True]


def test_on_version_may_close_the_mirror(example, gate, mirror_of, caplog):
    example.write({"aircraft": {"N1": aircraft(1)}})
    mirror = mirror_of("aircraft", on_version=lambda _: mirror.close())
    example.write({"aircraft": {"N1": aircraft(2)}})
    mirror._thread.join(10)
    with pytest.raises(ConfigError, match="this mirror was closed"):
        mirror.table("aircraft")
    assert gate._reader.store.leases() == []
    assert caplog.text == ""
    mirror_of("aircraft").close()


def test_a_callback_that_exits_ends_nothing(example, gate, mirror_of, caplog):
    """The thread ended without a word, and the mirror was never moved again."""
    example.write({"aircraft": {"N1": aircraft(1)}})

    def on_version(view):
        raise SystemExit(view.version)

    with mirror_of("aircraft", on_version=on_version) as mirror:
        for number in (2, 3):
            mirror.wait_for(example.write({"aircraft": {"N1": aircraft(number)}}), timeout=5)
    assert "on_version of the mirror" in caplog.text


@pytest.mark.parametrize("file", [None, "mirror.db"])
def test_the_mirror_of_an_alias_follows_it_to_another_namespace(file, tmp_path):
    where = f"memory://{tmp_path}", f"memory://{tmp_path}"
    path = file and tmp_path / file
    write_flights(*where, "blue", alias="live")
    with tidegate.connect(where[1], "live") as gate, gate.mirror("aircraft", path=path) as mirror:
        blue = content(mirror)
        green = Example(*where, "green", options=OPTIONS)
        green.write({"aircraft": {"N9": aircraft(9)}})
        write_flights(*where, "green2", alias="live")
        wait_until(lambda: mirror.view().namespace == "green2", "the alias names another namespace")
        assert mirror.full_reads == 2
        assert content(mirror) == blue
        green.close()


@pytest.mark.parametrize("file", [None, "mirror.db"])
def test_an_alias_of_a_namespace_without_versions_is_followed_from_its_first_one(file, tmp_path):
    """It ended the mirror with an assertion."""
    url = f"memory://{tmp_path}"
    path = file and tmp_path / file
    write_flights(url, url, "blue", alias="live")
    with tidegate.connect(url, "live") as gate, gate.mirror("aircraft", path=path) as mirror:
        blue, green = content(mirror), Example(url, url, "green", options=OPTIONS)
        set_alias(parse_store(url), "live", Target("green", green.driver.store.identity().uuid))
        wait_until(lambda: mirror.error is not None, "the mirror notices")
        assert "namespace green has no visible version yet" in str(mirror.error)
        assert (mirror.version, content(mirror)) == (3, blue)
        green.write({"aircraft": {"N9": aircraft(9)}})
        wait_until(lambda: content(mirror) == {"N9": aircraft(9)}, "the mirror follows")
        green.close()


@pytest.mark.parametrize("rows", [10_000, 20_000, 35_000])
def test_memory_is_what_the_size_says(rows):
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        pairs = ((b"key-%d" % number, b"v" * 40 + b"%d" % number) for number in range(rows))
        content = memory.content_of(None, pairs, rows)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert content.rows == rows
    assert 0.8 < content.size / taken < 1.25, (content.size, taken, ROW_BYTES)
