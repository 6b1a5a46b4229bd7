"""Rights in Redis: the lists of docs/operations.md are enough, hold nothing else, and keep out the rest.

The users are made from the page itself, so that what it says is what is tried.
"""

import contextlib
import re
from pathlib import Path

import pytest

import tidegate
from query import LINEAGE
from redis_query import Query, query_on
from tidegate.committers.commit import commit
from tidegate.committers.open import open_namespace
from tidegate.errors import ConfigError, TidegateError
from tidegate.sinks.open_store import open_store
from tidegate.sinks.store import CatalogEntry, Lease, Stamp
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.testing.driver_process import MARKER, MARKER_KEYS
from tidegate.wal.record import BatchOrigin

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
PASSWORD = "Pa55-of-all"
ALWAYS = {"auth", "hello"}
"""What a client says before it has any right."""
BY_TESTS = {"config|resetstat", "acl|setuser", "acl|deluser", "info"}

pytestmark = pytest.mark.xdist_group("redis-rights")


def rules_of(user: str, namespace: str) -> str:
    """The ACL rules of a user, as the page has them for namespace ``flights``."""
    (block,) = re.findall(
        rf"^user {user} on >\.\.\. (.*?)(?:\n\n|\n```|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    return " ".join(block.split()).replace("flights", namespace)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    from redis_server import RedisServer

    with RedisServer(tmp_path_factory.mktemp("redis"), users={"none": "off"}) as server:
        yield server


class Users:
    def __init__(self, server, query: Query) -> None:
        self.server, self.query = server, query

    def url(self, user: str, namespace: str | None = None, *more: str) -> str:
        """A login with the rights of the page for a namespace, and more or fewer."""
        rules = rules_of(user, namespace or self.query.namespace)
        split = re.findall(r"\(.*?\)|\S+", rules)  # a selector is one argument
        self.server.ask("ACL", "SETUSER", user, "reset", "on", f">{PASSWORD}", *split, *more)
        return self.server.url_for(user, PASSWORD)

    @contextlib.contextmanager
    def counted(self):
        """The commands that were called inside, those of functions and scripts too."""
        self.server.ask("CONFIG", "RESETSTAT")
        used: set[str] = set()
        yield used
        stats = self.server.ask("INFO", "commandstats")
        used |= {name.removeprefix("cmdstat_") for name in stats} - BY_TESTS - ALWAYS


@pytest.fixture
def users(guarded, tmp_path):
    with query_on(guarded.url, tmp_path, timeout_s=5.0) as query:
        yield Users(guarded, query)


def a_life(query: Query, url: str, functions: bool) -> None:
    """All that a writer does: make, open, commit, empty a table, retire, open again."""
    driver = query.run(5, url, functions=functions)
    query.retire(driver)
    rows = {MARKER: {b"m%d" % at: b"5" for at in range(MARKER_KEYS)}}
    barrier = ArrowBarrier(driver.log, rows, batch(LINEAGE, 5), driver.folded.key_groups)
    barrier.starts = frozenset({MARKER})
    commit(driver, barrier)
    query.run(9, url, functions=functions)
    query.retire(query.open(url, functions=functions))


def reads(query: Query, url: str, functions: bool) -> None:
    with tidegate.connect(url, query.namespace, query.options | {"functions": functions}) as gate:
        version = gate.version()
        with gate.snapshot() as snapshot:
            assert snapshot.table(MARKER).get_many([b"m1"])
            assert dict(snapshot.table(MARKER).scan())
        assert [info.version for info in gate.history()][-1] == version
        with pytest.raises(tidegate.WaitTimeoutError):
            gate.wait_for(version=version + 1, timeout=0.2)


def granted(user: str) -> set[str]:
    return {rule[1:] for rule in re.findall(r"\+[\w|]+", rules_of(user, "flights"))}


@pytest.mark.parametrize("functions", [True, False])
def test_the_rights_of_the_page_are_enough(users, functions):
    a_life(users.query, users.url("tidegate-writer"), functions)
    reads(users.query, users.url("tidegate-reader"), functions)


def test_the_page_lists_no_right_that_nothing_needs(users):
    writer, reader = users.url("tidegate-writer"), users.url("tidegate-reader")
    users.server.ask("FUNCTION", "FLUSH")
    users.server.ask("SCRIPT", "FLUSH")
    with users.counted() as used:
        for functions in (True, False):
            users.query.namespace += "f"
            a_life(users.query, users.server.url, functions)
    assert granted("tidegate-writer") - {"info", "time"} <= used, writer
    with users.counted() as used:
        for functions in (True, False):
            reads(users.query, users.server.url, functions)
    assert granted("tidegate-reader") - {"info", "time"} <= used, reader


@pytest.mark.parametrize("less", ["-fcall -evalsha", "-hscan", "-xadd"])
def test_with_one_right_less_a_writer_is_refused_and_told(users, less):
    url = users.url("tidegate-writer", None, *less.split())
    with pytest.raises(ConfigError) as told:
        a_life(users.query, url, functions=True)
    assert PASSWORD not in str(told.value)


def entry(version: int) -> CatalogEntry:
    return CatalogEntry(version, "d", "a", BatchOrigin(LINEAGE, 0, 99, "f"), 1, {}, {})


WRITES = {
    "publish": lambda store: store.publish(entry(3), 9),
    "claim": lambda store: store.claim(9, "reader"),
    "heartbeat": lambda store: store.heartbeat(1),
    "announce": lambda store: store.announce(2),
    "seal": lambda store: store.seal(Stamp(3, 1), {0: {MARKER: 1}}),
    "drop": lambda store: store.drop(),
}


def test_a_reader_cannot_move_the_pointer_nor_write_anything_but_its_lease(users):
    query = users.query
    query.run(2)
    before = query.store().pointer()
    url = users.url("tidegate-reader")
    for name, write in WRITES.items():
        with contextlib.closing(open_store(url, query.namespace, query.options)) as store:
            with pytest.raises(TidegateError) as told:
                write(store)
            assert isinstance(told.value, ConfigError), name
            assert PASSWORD not in str(told.value)
    with contextlib.closing(open_store(url, query.namespace, query.options)) as store:
        store.lease(Lease("mine", 2), 60.0)
        store.release("mine")
    after = query.store().pointer()
    assert (after.visible, after.epoch, after.horizon) == (before.visible, before.epoch, before.horizon)
    reads(query, url, functions=True)


@pytest.mark.parametrize("user", ["tidegate-writer", "tidegate-reader"])
def test_a_user_of_one_namespace_gets_nothing_of_another(users, user):
    query = users.query
    query.run(2)
    for other in (query.namespace[:-1], f"{query.namespace}x"):
        url = users.url(user, other)
        store = query.store(url)
        with pytest.raises(ConfigError):
            store.pointer()
        with pytest.raises(ConfigError):
            open_namespace(query.driver(url), LINEAGE)
    query.check(2)
