"""The Redis store passes the suite of every store: alone, by EVAL, behind Sentinels, as a Cluster."""

import itertools
import uuid

import pytest

from services.support.redis.cluster import RedisCluster
from services.support.redis.config import newer_program
from services.support.redis.sentinel import RedisSentinel
from services.support.redis.server import RedisServer
from tidegate.sinks.redis.store import RedisStore
from tidegate.testing.store.suite import StorePlace, StoreSuite

BACK_BY = """
local by = tonumber(ARGV[1])
local function less(number) return string.format('%.0f', tonumber(number) - by) end
local meta = 'tg:{' .. ARGV[2] .. '}:'
local beat = redis.call('HGET', meta .. 'meta', 'heartbeat_us')
if beat then redis.call('HSET', meta .. 'meta', 'heartbeat_us', less(beat)) end
local leases = redis.call('HGETALL', meta .. 'leases')
for at = 1, #leases, 2 do
  local version, taken, expires = string.match(leases[at + 1], '^(%d+) (%-?%d+) (%-?%d+)$')
  redis.call('HSET', meta .. 'leases', leases[at], version .. ' ' .. less(taken) .. ' ' .. less(expires))
end
local catalog = redis.call('HGETALL', meta .. 'catalog')
for at = 1, #catalog, 2 do
  local published, entry = string.match(catalog[at + 1], '^(%d+) (.*)$')
  redis.call('HSET', meta .. 'catalog', catalog[at], less(published) .. ' ' .. entry)
end
"""
"""The server's clock cannot be moved, but everything that was stamped by it can."""


LOST_KEYS_NEED_THE_WHOLE_LOG = True
"""A repair begins a key group anew, from version 1, when one of its keys is gone."""


class RedisSuite(StoreSuite):
    knows_every_table = False
    lost_keys_need_the_whole_log = LOST_KEYS_NEED_THE_WHOLE_LOG
    functions = True

    @pytest.fixture(autouse=True)
    def _places(self, servers):
        self.servers, self.url = servers, servers.url
        self.prefix, self.namespaces, self.opened = uuid.uuid4().hex[:8], itertools.count(), []
        yield
        for store in self.opened:
            store.drop()
            store.close()

    def server_of(self, key):
        """The server that holds a key, for looking behind the store."""
        raise NotImplementedError

    def make_store(self):
        return self._instance(f"{self.prefix}-N{next(self.namespaces)}")

    def reopen(self, store):
        return self._instance(store.test_namespace)

    def place(self, store):
        return StorePlace(self.url, store.test_namespace, {"functions": self.functions})

    def advance(self, store, seconds):
        meta = f"tg:{{{store.test_namespace}}}:meta"
        self.server_of(meta).ask("EVAL", BACK_BY, 1, meta, int(seconds * 1e6), store.test_namespace)

    def lose_row(self, store, row):
        uuid = store.identity().uuid
        key = f"tg:{{{store.test_namespace}/{row.group}}}:{row.table}:d:{row.version}:{uuid}"
        assert self.server_of(key).ask("HDEL", key, row.key) == 1

    def lose_rows(self, store, rows):
        """The layers of the rows, and the bases of those that were merged: whole, as keys are lost."""
        uuid = store.identity().uuid
        for table, group, version in {(row.table, row.group, row.version) for row in rows}:
            tag = f"tg:{{{store.test_namespace}/{group}}}"
            server = self.server_of(f"{tag}:h")
            if int(server.ask("HGET", f"{tag}:h", "floor") or 0) >= version:
                server.ask("DEL", f"{tag}:{table}:b")
            server.ask("DEL", f"{tag}:{table}:d:{version}:{uuid}")

    def _instance(self, namespace):
        store = RedisStore(self.url, namespace, functions=self.functions)
        store.test_namespace = namespace
        self.opened.append(store)
        return store


class TestRedisStore(RedisSuite):
    @pytest.fixture
    def servers(self, redis: RedisServer):
        return redis

    def server_of(self, key):
        return self.servers


@pytest.mark.slow  # the same text, called otherwise
class TestRedisStoreByEval(TestRedisStore):
    """Where functions are barred."""

    functions = False


@pytest.fixture(scope="module")
def newer_server(tmp_path_factory: pytest.TempPathFactory):
    program = newer_program()
    if program is None:
        pytest.skip("no Redis 7.2 or Valkey here: TIDEGATE_REDIS_SERVER names one")
    with RedisServer(tmp_path_factory.mktemp("newer"), program=program) as server:
        yield server


@pytest.mark.slow  # a server that is not Debian's
class TestRedisStoreOnANewerServer(TestRedisStore):
    @pytest.fixture
    def servers(self, newer_server: RedisServer):
        return newer_server


@pytest.mark.slow  # the same server as on its own; what Sentinels change, redis/faults/test_failover.py tries
@pytest.mark.xdist_group("redis_sentinel")
class TestRedisStoreBehindSentinels(RedisSuite):
    @pytest.fixture
    def servers(self, redis_sentinel: RedisSentinel):
        return redis_sentinel

    def server_of(self, key):
        return self.servers.primary


@pytest.mark.slow  # what a Cluster changes, redis/cluster/test_faults.py tries
@pytest.mark.xdist_group("redis_cluster")
class TestRedisStoreOnACluster(RedisSuite):
    @pytest.fixture
    def servers(self, redis_cluster: RedisCluster):
        return redis_cluster

    def server_of(self, key):
        return self.servers.primary_of(key)
