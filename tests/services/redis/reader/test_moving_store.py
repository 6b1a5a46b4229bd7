"""Moving readers to another Redis server beside a running query: no torn read, no older version, no error.

    tools/run pytest -s tests/services/redis/reader/test_moving_store.py

With -s it prints the figures of docs/several-stores.md. TIDEGATE_MOVED_ROWS sets the number of rows.
"""

import asyncio
import itertools
import os
import threading
import time

import pytest

import tidegate
import tidegate.aio
from services.support.redis.server import RedisServer
from support.cli import ended
from tidegate.committers.operations.local_coordinator import followers_in
from tidegate.errors import FencedError
from tidegate.options import Options
from tidegate.testing.example import Example

ROWS = int(os.environ.get("TIDEGATE_MOVED_ROWS", "2000"))
READERS = 2
DEADLINE_S = 60.0
KEYS = [f"N{number}" for number in range(20)]


class Writer(threading.Thread):
    """A query that writes version after version into all stores: its number, under every key of KEYS."""

    def __init__(self, wal, stores):
        super().__init__()
        self.example = Example(wal, stores, options=Options(key_groups=16))
        self.followers = followers_in(self.example.driver)
        self.ended, self.error = threading.Event(), None

    def write(self, rows=KEYS):
        number = self.example.driver.folded.last_version + 1
        self.example.write({"aircraft": {key: {"carrier": "UA", "flights": number} for key in rows}})
        assert all(follower.catch_up().error == "" for follower in self.followers)

    def run(self):
        try:
            while not self.ended.is_set():
                self.write()
        except Exception as error:  # noqa: BLE001 - asserted at the end
            self.error = error

    def stop(self):
        self.ended.set()
        if self.ident is not None:
            self.join(DEADLINE_S)
        for store in (self.example.driver.store, *self.example.driver.others):
            store.end_heartbeat(self.example.driver.epoch)
        self.example.close()
        assert self.error is None


class Polling:
    """The answers of polling readers; each reader checks its own."""

    def __init__(self):
        self.done, self.successors = threading.Event(), []
        self.errors, self.longest_s, self.count = [], 0.0, 0
        self.newest = {}

    def note(self, reader, began, values):
        """One answer of many keys: all of one version, no older one than this reader's last."""
        versions = {value["flights"] for value in values.values()}
        assert len(versions) == 1, f"torn: {versions}"
        (version,) = versions
        assert version >= self.newest.get(reader, 0), f"{version} after {self.newest[reader]}"
        self.newest[reader] = version
        self.longest_s, self.count = max(self.longest_s, time.monotonic() - began), self.count + 1

    def poll(self, reader, url):
        try:
            with tidegate.connect(url, "flights", follow_redirects=self.successors) as gate:
                while not self.done.is_set():
                    began = time.monotonic()
                    self.note(reader, began, gate.table("aircraft").get_many(KEYS))
        except Exception as error:  # noqa: BLE001 - asserted at the end
            self.errors.append(error)

    async def _poll_on_loop(self, reader, url):
        try:
            async with await tidegate.aio.connect(url, "flights", follow_redirects=self.successors) as gate:
                while not self.done.is_set():
                    began = time.monotonic()
                    self.note(reader, began, await gate.table("aircraft").get_many(KEYS))
        except Exception as error:  # noqa: BLE001 - asserted at the end
            self.errors.append(error)

    def poll_on_loop(self, url):
        async def main():
            await asyncio.gather(*(self._poll_on_loop(f"aio-{number}", url) for number in range(READERS)))

        asyncio.run(main())

    def started(self, url):
        threads = [
            *(
                threading.Thread(target=self.poll, args=(f"thread-{number}", url))
                for number in range(READERS)
            ),
            threading.Thread(target=self.poll_on_loop, args=(url,)),
        ]
        for thread in threads:
            thread.start()
        return threads

    def until(self, version):
        """Wait until every reader has seen the version."""
        end = time.monotonic() + DEADLINE_S
        while not self.errors and (len(self.newest) < 2 * READERS or min(self.newest.values()) < version):
            assert time.monotonic() < end, self.newest
            threading.Event().wait(0.002)
        assert self.errors == []


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("STORE", "WAL", "NAMESPACE", "STORE_CONFIG"):
        monkeypatch.delenv(f"TIDEGATE_{name}", raising=False)


def test_readers_move_to_another_server_beside_a_query(tmp_path):
    """The steps of "Move to another server" in docs/several-stores.md."""
    wal = f"file://{tmp_path}/wal"
    polling, threads, writers = Polling(), [], []

    def writer(*stores):
        writers.append(Writer(wal, stores))
        return writers[-1]

    # Both are this test's own: one of them is killed.
    with RedisServer(tmp_path / "blue") as redis, RedisServer(tmp_path / "green") as other:
        blue, green = redis.url, other.url
        polling.successors.append(f"127.0.0.1:{other.port}")
        common = [f"--wal={wal}", "--namespace=flights", "--json"]
        try:
            first = writer(f"blue={blue}")
            first.write([*KEYS, *(f"R{number}" for number in range(ROWS))])
            threads += polling.started(blue)
            polling.until(1)
            first.start()
            polling.until(3)
            first.stop()

            began = time.monotonic()
            ended(0, "store", "add", f"green={green}", f"--store=blue={blue}", *common)
            equal_s = time.monotonic() - began

            both = writer(f"blue={blue}", f"green={green}")
            zombie = both.example
            both.start()
            polling.until(zombie.driver.folded.last_version + 3)
            both.ended.set()
            both.join(DEADLINE_S)
            for store in (both.example.driver.store, *both.example.driver.others):
                store.end_heartbeat(both.example.driver.epoch)

            counted, began = polling.count, time.monotonic()
            stores = [f"--store=green={green}", f"--store=blue={blue}"]
            ended(0, "store", "remove", "blue", "--redirect=green", *stores, *common)
            switch_s, reads = time.monotonic() - began, polling.count - counted
            with pytest.raises(FencedError):  # the old driver wakes up
                both.write()
            both.example.close()

            last = writer(f"green={green}")
            last.start()
            polling.until(last.example.driver.folded.last_version + 3)
            redis.kill()  # nobody reads there any more
            polling.until(last.example.driver.folded.last_version + 3)
            last.stop()
        finally:
            polling.done.set()
            for each in writers:
                each.ended.set()
            for thread in itertools.chain(threads, (each for each in writers if each.ident is not None)):
                thread.join(DEADLINE_S)
        assert polling.errors == []
        assert reads > 0
        print(
            f"\n{ROWS:,} rows: equal after {equal_s:.1f} s; `store remove` took {switch_s:.1f} s, with"
            f" {reads:,} reads; of {polling.count:,} the longest took {polling.longest_s * 1000:.0f} ms,"
            f" {len(polling.errors)} errors"
        )
