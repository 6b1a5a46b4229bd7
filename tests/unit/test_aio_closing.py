"""What ends with an asyncio gate, also when it is closed at an awkward moment."""

from __future__ import annotations

import asyncio
import threading

import pytest

import tidegate.aio
from tidegate.errors import ConfigError
from tidegate.sinks.shared_run import SharedRun
from tidegate.sinks.sqlite_store import SqliteStore
from tidegate.testing.example import write_flights

DEADLINE_S = 30.0


def test_a_shared_run_that_is_closed_before_it_began_says_so_to_who_waits():
    async def main():
        shared = SharedRun(asyncio.Event().wait, lambda: ConfigError("closed"))
        waiting = asyncio.ensure_future(shared.result())
        await asyncio.sleep(0)  # who waits has begun the run, which has not had its first step
        await shared.close()
        with pytest.raises(ConfigError, match="closed"):
            await waiting

    asyncio.run(main())


def test_a_close_that_is_cancelled_ends_the_renewals_and_the_connections_all_the_same(tmp_path, monkeypatch):
    write_flights(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    asked, answers, closed = threading.Event(), threading.Event(), threading.Event()

    def release(_store, _lease_id):
        asked.set()
        assert answers.wait(DEADLINE_S)

    async def main():
        gate = await tidegate.aio.connect(f"sqlite://{tmp_path}/store", "flights")
        snapshot = await gate.snapshot()
        monkeypatch.setattr(SqliteStore, "release", release)
        monkeypatch.setattr(SqliteStore, "close", lambda _store: closed.set())
        closing = asyncio.ensure_future(gate.close())
        assert await asyncio.to_thread(asked.wait, DEADLINE_S)
        closing.cancel()
        await asyncio.sleep(0)
        answers.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(closing), DEADLINE_S)
        assert closed.is_set()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, "nothing renews the lease any more"
        return snapshot

    asyncio.run(main())
