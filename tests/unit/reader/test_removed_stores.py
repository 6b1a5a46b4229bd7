"""Readers of a removed store: they get an error with the successor, or their gate continues there."""

import asyncio
import contextlib

import msgspec
import pytest

import tidegate
import tidegate.aio
from tidegate.base.clock import Clock
from tidegate.committers.background.membership import add_store, leave_note, remove_store, successor_url
from tidegate.committers.coordinator import process_writer
from tidegate.committers.operations.alias import checked_target, set_alias
from tidegate.committers.operations.local_coordinator import coordinator_for, followers_in
from tidegate.errors import (
    ConfigError,
    CorruptError,
    FencedError,
    StoreRemovedError,
    VersionRegressedError,
    WaitTimeoutError,
)
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints, StoreRef, parse_store
from tidegate.reader.redirects import Followed, RedirectGate, checked_successor
from tidegate.sinks.open_store import open_store
from tidegate.sinks.rules.removal import Removal
from tidegate.testing.example import Example


class Place:
    """A namespace whose log has the stores ``old`` and ``new``, all in memory or in files."""

    def __init__(self, kind, root):
        self.kind, self.root = kind, root
        self.wal = f"memory://{root}/wal" if kind == "memory" else f"file://{root}/wal"
        self.options = Options(key_groups=2)
        self.example = Example(self.wal, self.url("old"), options=self.options)
        self.write()

    def url(self, name):
        return f"{self.kind}://{self.root}/{name}"

    def write(self):
        driver = self.example.driver
        number = driver.folded.last_version + 1
        return self.example.write(
            {"aircraft": {f"N{key}": {"carrier": "UA", "flights": number} for key in range(4)}}
        )

    @contextlib.contextmanager
    def driver(self, *names):
        stores = [StoreRef(name, self.url(name)) for name in names]
        with coordinator_for(Endpoints.of("flights", self.wal, stores, {}), self.options) as driver:
            driver.decisions.catch_up()
            yield driver

    def add(self, name, *existing):
        with self.driver(*existing) as driver, self.store(name) as store:
            assert add_store(driver, StoreRef(name, self.url(name)), store).catch_up().error == ""

    def store(self, name):
        return contextlib.closing(open_store(self.url(name), "flights"))

    def remove(self, name, *remaining, successor=""):
        with self.driver(*remaining) as driver, self.store(name) as store:
            remove_store(driver, name)
            return leave_note(driver, store, successor and successor_url(driver, successor))

    def follow(self, *names, secondaries=True):
        """Let a new driver of these stores write one version, in all of them or in the first."""
        self.example.close()
        stores = [f"{name}={self.url(name)}" for name in names]
        self.example = Example(self.wal, stores, options=self.options)
        self.write()
        if secondaries:
            assert all(follower.catch_up().error == "" for follower in followers_in(self.example.driver))


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    made = Place(request.param, tmp_path)
    made.add("new", "old")
    yield made
    made.example.close()


@pytest.fixture
def one(tmp_path):
    made = Place("sqlite", tmp_path)
    made.add("new", "old")
    yield made
    made.example.close()


def write_note(place, name, successor, after=1):
    """Leave any note in a store, as ``leave_note`` would not."""
    with place.store(name) as store:
        store.claim(store.pointer().epoch + 1, Removal(after, 1, successor).as_writer())


# -- the error ---------------------------------------------------------------------------------------


def test_a_gate_and_a_new_one_are_refused_at_their_next_look_at_the_pointer(place):
    with tidegate.connect(place.url("old"), "flights") as gate:
        table = gate.table("aircraft")
        assert table.get("N1")["flights"] == 1
        snapshot = gate.snapshot()
        place.remove("old", "new", successor="new")
        with tidegate.connect(place.url("old"), "flights") as later:
            for look in (
                lambda: table.get("N1"),
                lambda: table.get_many(["N1"]),
                gate.version,
                gate.tables,
                gate.history,
                gate.snapshot,
                lambda: list(table.scan()),
                lambda: gate.wait_for(2, timeout=5),
                lambda: list(gate.diff(0)),
                later.version,
                lambda: later.table("aircraft").get("N1"),
            ):
                with pytest.raises(StoreRemovedError, match="version 1 was the newest") as refused:
                    look()
                assert refused.value.successor == place.url("new")
                assert place.url("new") in str(refused.value)
        assert snapshot.table("aircraft").get("N1")["flights"] == 1  # I8
        snapshot.close()
    with tidegate.connect(place.url("new"), "flights") as gate:
        assert gate.version() == 1


def test_an_asyncio_gate_is_refused_too(place):
    async def read():
        async with await tidegate.aio.connect(place.url("old"), "flights") as gate:
            assert (await gate.table("aircraft").get("N1"))["flights"] == 1
            place.remove("old", "new")
            with pytest.raises(StoreRemovedError, match="connect to another store"):
                await gate.table("aircraft").get("N1")
            with pytest.raises(StoreRemovedError):
                await gate.version()

    asyncio.run(read())


def test_a_note_that_cannot_be_read_is_refused(one):
    for content in ('{"removed_after":1}', "{", Removal(1, 1, "redis://user:secret@h:1").as_writer()):
        with one.store("old") as store:
            store.claim(store.pointer().epoch + 1, content)
        with tidegate.connect(one.url("old"), "flights") as gate, pytest.raises(CorruptError) as refused:
            gate.version()
        assert "secret" not in str(refused.value)


# -- going on at the successor -----------------------------------------------------------------------


def test_a_gate_goes_on_at_the_successor_never_at_an_older_version(place):
    with tidegate.connect(place.url("old"), "flights", follow_redirects=True) as gate:
        table = gate.table("aircraft")
        assert (gate.namespace, gate.key_groups, gate.version()) == ("flights", 2, 1)
        snapshot, scan = gate.snapshot(), table.scan()
        next(scan)
        place.remove("old", "new", successor="new")
        place.follow("new")
        assert table.get("N1")["flights"] == 2
        assert (gate.version(), {value["flights"] for _, value in table.scan()}) == (2, {2})
        assert gate.wait_for(2, timeout=0) == 2
        assert snapshot.table("aircraft").get("N1")["flights"] == 1
        assert {value["flights"] for _, value in scan} == {1}
        snapshot.close()
        assert gate.version() == 2
        assert place.url("new") in repr(gate)
        with gate.diff(1) as diff:
            assert diff.counts()["aircraft"].changed == 4
    with tidegate.connect(place.url("old"), "flights", follow_redirects=True) as gate:
        assert gate.table("aircraft").get("N1")["flights"] == 2


def test_an_asyncio_gate_goes_on_too(place):
    async def read():
        async with await tidegate.aio.connect(place.url("old"), "flights", follow_redirects=True) as gate:
            table = gate.table("aircraft")
            assert await gate.version() == 1
            async with gate.snapshot() as snapshot:
                place.remove("old", "new", successor=place.url("new"))
                place.follow("new")
                answers = await asyncio.gather(*(table.get(f"N{key}") for key in range(4)))
                assert [answer["flights"] for answer in answers] == [2] * 4
                assert (await snapshot.table("aircraft").get("N1"))["flights"] == 1
            assert await gate.wait_for(2, timeout=1) == 2

    asyncio.run(read())


def test_a_wait_that_began_at_the_removed_store_ends_at_its_successor(one):
    with tidegate.connect(one.url("old"), "flights", follow_redirects=True) as gate:
        store = gate._gate_now()._reader.store
        before, store.await_newer = store.await_newer, None

        def removed(version, timeout_s):
            store.await_newer = before
            one.remove("old", "new", successor="new")
            one.follow("new")
            return True

        store.await_newer = removed
        assert gate.wait_for(2, timeout=20) == 2
        with pytest.raises(WaitTimeoutError):
            gate.wait_for(3, timeout=0)


def test_a_successor_that_is_behind_is_refused_until_it_has_caught_up(one):
    one.follow("old", "new")
    one.add("late", "old", "new")
    one.follow("old", "new", "late", secondaries=False)
    with tidegate.connect(one.url("old"), "flights", follow_redirects=True) as gate:
        assert gate.version() == 3
        write_note(one, "old", one.url("late"))
        for _ in range(2):
            with pytest.raises(VersionRegressedError, match="shows version 2"):
                gate.version()
        one.remove("old", "new", "late")
        one.follow("new", "late")
        assert gate.version() == 4


def test_circles_and_other_kinds_and_other_namespaces_are_not_followed(one, tmp_path):
    with tidegate.connect(one.url("old"), "flights", follow_redirects=True) as gate:
        write_note(one, "old", "redis://elsewhere:6379")
        with pytest.raises(StoreRemovedError, match="no sqlite store") as refused:
            gate.version()
        assert refused.value.successor == "redis://elsewhere:6379"
        write_note(one, "old", one.url("new"))
        write_note(one, "new", one.url("old"))
        with pytest.raises(StoreRemovedError, match="comes from there"):
            gate.version()
        other = Example(f"file://{tmp_path}/other-wal", f"sqlite://{tmp_path}/other")
        other.write({"aircraft": {"N1": {"carrier": "XX", "flights": 0}}})
        other.close()
        write_note(one, "new", f"sqlite://{tmp_path}/other")
        with pytest.raises(ConfigError, match="another namespace"):
            gate.version()
        write_note(one, "new", "")
        with pytest.raises(StoreRemovedError):
            gate.version()


def test_an_alias_is_read_at_the_successor_once_it_is_there(one):
    for name in ("old", "new"):
        at = parse_store(one.url(name))
        set_alias(at, "live", checked_target(at, "live", "flights"))
    with tidegate.connect(one.url("old"), "live", follow_redirects=True) as gate:
        assert (gate.version(), gate.namespace) == (1, "flights")
        one.remove("old", "new", successor="new")
        one.follow("new")
        assert (gate.version(), gate.table("aircraft").get("N1")["flights"]) == (2, 2)
        assert gate.namespace == "flights"


# -- the note ----------------------------------------------------------------------------------------


def test_the_note_fences_and_a_store_that_is_added_again_loses_it(place):
    removal = place.remove("old", "new", successor="new")
    assert (removal.removed_after, removal.successor) == (1, place.url("new"))
    with pytest.raises(FencedError):  # a driver of before the removal
        place.write()
    with place.store("old") as store:
        assert (store.pointer().visible, store.pointer().is_removed) == (1, True)
    with pytest.raises(ConfigError, match="not in the list"):
        Example(place.wal, f"old={place.url('old')}", options=place.options)
    again = place.remove("old", "new")  # repeatable, also with another successor
    assert again.successor == ""
    with pytest.raises(StoreRemovedError), tidegate.connect(place.url("old"), "flights") as gate:
        gate.version()
    place.follow("new")
    place.add("old", "new")
    with tidegate.connect(place.url("old"), "flights") as gate:
        assert gate.version() == 2


def test_a_late_note_does_not_reach_a_store_that_is_in_use_again(one):
    with one.driver("new") as driver, one.store("old") as store:
        remove_store(driver, "old")
        one.add("old", "new")
        with pytest.raises(FencedError, match="in use again"):
            leave_note(driver, store)
        assert not store.pointer().is_removed


def test_no_note_is_written_into_a_store_that_remains(one, tmp_path):
    """The removed store is given by a URL that leads to one that remains."""
    one.add("third", "old", "new")
    for name in ("new", "third"):
        with one.driver("new", "third") as driver, one.store(name) as store:
            remove_store(driver, "old")
            with pytest.raises(ConfigError, match="under another URL"):
                leave_note(driver, store)
            assert not store.pointer().is_removed


def test_no_secret_is_stored_with_a_successor(one):
    with one.driver("new") as driver:
        assert successor_url(driver, "redis://user:secret@h:6379/1") == "redis://h:6379/1"
        for text in ("elsewhere", "redis://h:6379/1?password=secret", "http://h/x/secret"):
            with pytest.raises(ConfigError) as refused:
                successor_url(driver, text)
            assert "secret" not in str(refused.value)


def test_a_redirect_uses_the_login_of_the_users_url():
    from tidegate.base.urls import place_of, with_login_of

    assert with_login_of("redis://u:p@a:1/0", "redis://b:2/0") == "redis://u:p@b:2/0"
    assert with_login_of("redis://a:1/0", "redis://b:2/0") == "redis://b:2/0"
    assert place_of("redis://u:p@a:1/0") == "redis://a:1/0"
    assert process_writer(Clock())[:1] != "{"
    assert msgspec.json.decode(Removal(7, 8, "redis://b").as_writer()) == {
        "removed_after": 7,
        "removed_at_us": 8,
        "successor": "redis://b",
    }


def test_keys_that_can_be_read_once_are_read_at_the_successor(place):
    """The call is sent again there."""
    with tidegate.connect(place.url("old"), "flights", follow_redirects=True) as gate:
        assert gate.version() == 1
        place.remove("old", "new", successor="new")
        found = gate.get_many({"aircraft": (key for key in ("N1", "N9"))})
    assert found == {"aircraft": {"N1": {"carrier": "UA", "flights": 1}}}


# -- where the login goes ----------------------------------------------------------------------------

MINE = "redis://u:secret@blue:6379/1"


@pytest.mark.parametrize(
    "url,follow,successor,is_followed",
    [
        (MINE, True, "redis://blue:6379/2", True),
        (MINE, True, "redis://BLUE", True),
        (MINE, True, "redis://green:6379", False),
        (MINE, True, "redis://blue:6380", False),
        (MINE, [], "redis://green:6379", False),
        (MINE, ["green:6379"], "redis://green", True),
        (MINE, "green:6379", "redis://green", True),
        (MINE, ["green:6379"], "redis://green:6380", False),
        (MINE, ["green:6379"], "redis://green.evil:6379", False),
        (MINE, ["green:6379"], "redis://evilgreen:6379", False),
        ("rediss://u:p@blue", ["green:6379"], "rediss://green", True),
        ("redis+cluster://a,b:7000", ["c:7001"], "redis+cluster://c:7001,b:7000", True),
        ("redis+cluster://a,b:7000", ["c:7001"], "redis+cluster://c:7001,d:7001", False),
        ("redis+sentinel://a/main", ["c:26379"], "redis+sentinel://c/main", True),
        ("redis+sentinel://a/main", ["c:6379"], "redis+sentinel://c/main", False),
        ("cassandra://u:p@a,b/k", ["c:9042"], "cassandra://c,b/k", True),
        ("cassandra://u:p@a,b/k", ["c:9042"], "cassandra://c,a:9043/k", False),
        ("redis://[::1]:6379", ["[::2]:6379"], "redis://[::2]", True),
    ],
)
def test_a_login_goes_only_to_servers_that_its_owner_named(url, follow, successor, is_followed):
    removed = StoreRemovedError("removed")
    removed.successor = successor
    followed = Followed.of(url, follow)
    if is_followed:
        assert checked_successor([url], removed, followed) == successor
    else:
        with pytest.raises(StoreRemovedError, match="are not in follow_redirects") as refused:
            checked_successor([url], removed, followed)
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["green", "", ":6379", "redis://u:secret@g:1", "u:secret@g:1", "g:1/0", "g:99999", 7]
)
def test_what_may_be_followed_is_host_and_port(name):
    with pytest.raises(ConfigError, match="server 2 of it is not host:port") as refused:
        Followed.of(MINE, ["ok:1", name])
    assert "secret" not in str(refused.value)


def test_no_connection_is_opened_to_a_server_that_was_not_named():
    removed = StoreRemovedError("removed")
    removed.successor = "redis://127.0.0.1:1"
    opened = []

    class Removed:
        uuid = "u"

        def remember(self, seen): ...
        def close(self): ...
        def _version_steps(self):
            raise removed
            yield

    def open_gate(url):
        opened.append(url)
        return Removed()

    for follow in (True, [], ["green:6379"]):
        gate = RedirectGate(MINE, follow, open_gate, Clock())
        with pytest.raises(StoreRemovedError, match="the login is not sent there"):
            gate.version()
    assert set(opened) == {MINE}
