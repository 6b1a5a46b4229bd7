"""A mirror on an event loop: its start, waits and close do not block the loop, and leave no thread."""

import asyncio
import gc
import threading

import pytest

import tidegate.aio
from tidegate.errors import ConfigError, WaitTimeoutError
from tidegate.options import Options
from tidegate.reader.mirror import mirror
from tidegate.reader.mirror.mirror import Mirror
from tidegate.testing.example import Example


@pytest.fixture(params=["memory", "file"])
def options(request, tmp_path):
    return {"path": tmp_path / "mirror.db"} if request.param == "file" else {}


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch):
    monkeypatch.setattr(mirror, "LOOK_S", 0.02)


@pytest.fixture
def example(tmp_path):
    made = Example(
        f"memory://{tmp_path}", f"memory://{tmp_path}", options=Options(key_groups=4, keep_versions=3)
    )
    made.url = f"memory://{tmp_path}"
    made.write({"aircraft": {"N1": aircraft(1)}})
    yield made
    made.close()


def aircraft(number):
    return {"carrier": "UA", "flights": number}


def connected(example, read):
    async def main():
        async with await tidegate.aio.connect(example.url, "flights") as gate:
            await read(gate)

    asyncio.run(main())
    assert "tidegate-mirror" not in [thread.name for thread in threading.enumerate()]


def test_it_is_started_waited_for_and_closed_by_await(example, options):
    async def read(gate):
        told = []
        on_version = lambda view: told.append((view.version, threading.current_thread()))  # noqa: E731
        async with gate.mirror("aircraft", on_version=on_version, **options) as mirror:
            assert mirror.table("aircraft").get("N1") == aircraft(1)
            waiting = asyncio.ensure_future(mirror.wait_for(2))
            await asyncio.sleep(0)
            assert not waiting.done()
            await asyncio.to_thread(example.write, {"aircraft": {"N2": aircraft(2)}})
            assert await waiting == 2
            assert dict(mirror.table("aircraft").scan()) == {"N1": aircraft(1), "N2": aircraft(2)}
            with pytest.raises(WaitTimeoutError, match=r"has version 2 after 0\.01 s, not 9"):
                await mirror.wait_for(9, timeout=0.01)
            assert (mirror.moves, mirror.full_reads, mirror.error) == (1, 1, None)
            assert mirror.age_s < 60
            assert told == [(2, threading.main_thread())]
        with pytest.raises(ConfigError, match="closed"):
            mirror.view()
        mirror = await gate.mirror("aircraft", **options)
        assert mirror.tables() == ["aircraft"]
        await mirror.close()
        await mirror.close()

    connected(example, read)


def test_it_starts_before_its_gate(example, tmp_path):
    async def main():
        of = example.url, "flights", ["aircraft"]
        async with tidegate.aio.connect_mirror(*of, path=tmp_path / "mirror.db") as mirror:
            assert mirror.table("aircraft").get("N1") == aircraft(1)

    asyncio.run(main())


def test_errors_come_where_it_is_awaited(example, options):
    async def read(gate):
        async def on_version(view):
            """Never awaited."""

        with pytest.raises(ConfigError, match="no table 'nothing'"):
            await gate.mirror("nothing", **options)
        with pytest.raises(ConfigError, match="must be a plain function"):
            await gate.mirror("aircraft", on_version=on_version, **options)
        with pytest.raises(ConfigError, match="was not started"):
            gate.mirror("aircraft", **options).view()

    connected(example, read)


def test_the_end_of_the_gate_ends_the_mirror_and_wakes_who_waits(example, options):
    async def read(gate):
        async with gate.mirror("aircraft", **options) as mirror:
            waiting = asyncio.ensure_future(mirror.wait_for(9))
            await gate.close()
            with pytest.raises(ConfigError, match="closed"):
                await waiting

    connected(example, read)


def test_a_cancelled_start_ends_in_its_thread(example, options, monkeypatch):
    entered, leave, plain = threading.Event(), threading.Event(), Mirror._make

    def make(mirror, *versions):
        entered.set()
        assert leave.wait(30)
        plain(mirror, *versions)

    monkeypatch.setattr(Mirror, "_make", make)

    async def read(gate):
        starting = asyncio.ensure_future(gate.mirror("aircraft", **options)._start())
        await asyncio.to_thread(entered.wait, 30)
        starting.cancel()
        await asyncio.sleep(0)
        leave.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert gate._blocking()._reader.store.leases() == []
        monkeypatch.setattr(Mirror, "_make", plain)
        async with gate.mirror("aircraft", **options) as mirror:  # the file is free
            assert mirror.version == 1

    connected(example, read)


def test_a_start_that_is_cancelled_and_fails_in_its_thread_has_nothing_to_say(example, monkeypatch):
    """Red before: asyncio printed that nobody had asked for the thread's error."""
    entered, leave, told = threading.Event(), threading.Event(), []

    def start(_):
        entered.set()
        assert leave.wait(30)
        raise ConfigError("this mirror was closed")

    monkeypatch.setattr(Mirror, "start", start)

    async def read(gate):
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        starting = asyncio.ensure_future(gate.mirror("aircraft")._start())
        await asyncio.to_thread(entered.wait, 30)
        starting.cancel()
        await asyncio.sleep(0)
        leave.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        del starting
        gc.collect()

    connected(example, read)
    assert told == []


def test_a_start_that_is_cancelled_twice_leaves_nothing(example, options, monkeypatch):
    """The second one left the close out: the file stayed locked for as long as the process."""
    entered, leave, plain = threading.Event(), threading.Event(), Mirror.start

    def start(mirror):
        entered.set()
        assert leave.wait(30)
        plain(mirror)

    async def read(gate):
        async with gate.mirror("aircraft", **options):
            """The file has the table now."""
        monkeypatch.setattr(Mirror, "start", start)
        starting = asyncio.ensure_future(gate.mirror("aircraft", **options)._start())
        await asyncio.to_thread(entered.wait, 30)
        for _ in range(3):
            starting.cancel()
            await asyncio.sleep(0.01)
        leave.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        monkeypatch.setattr(Mirror, "start", plain)
        async with gate.mirror("aircraft", **options) as mirror:
            assert mirror.version == 1
        assert gate._blocking()._reader.store.leases() == []

    connected(example, read)


def test_it_is_started_once(example, options):
    async def read(gate):
        mirror = gate.mirror("aircraft", **options)
        first, second = await asyncio.gather(mirror._start(), mirror._start(), return_exceptions=True)
        assert first is mirror
        assert "was started before" in str(second)
        await mirror.close()

    connected(example, read)


def test_a_close_ends_waits(example, options):
    async def read(gate):
        async with gate.mirror("aircraft", **options) as mirror:
            waiting = asyncio.ensure_future(mirror.wait_for(9, timeout=600))
            await asyncio.sleep(0)
        with pytest.raises(ConfigError, match="this mirror was closed"):
            await asyncio.wait_for(waiting, 10)

    connected(example, read)
