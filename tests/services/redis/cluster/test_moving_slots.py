"""Slots that move to another server of a Cluster, while functions are called there and while a query runs."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import redis
from redis.connection import Connection
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from services.support.redis.cluster import MIGRATE_MS, RedisCluster, refused_calls, slot_of
from services.support.redis.moving_functions import CASES, Case
from services.support.redis.query import Query, query_on
from services.support.redis.server import RedisServer
from services.support.workloads.query import KEY_GROUPS, Reader, put_back
from support.concurrency import Meanwhile
from support.wait import wait_until
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.repair.repair import repair
from tidegate.errors import StoreNotVerifiedError, StoreUnavailableError
from tidegate.sinks.redis.client.functions import names, readers, source
from tidegate.sinks.redis.client.library import load_library
from tidegate.sinks.redis.client.replies import Call, encoded, load_script, pack

pytestmark = pytest.mark.xdist_group("redis_cluster")

TAG = "moving"
SLOT = slot_of(f"{{{TAG}}}")
AT_ONCE = 500
SHOWN = 20
TIMES = re.compile(r"\d{16,}")

OF_A_SLOT = (AskError, MovedError, TryAgainError, ClusterDownError)
State = dict[str, Any]
"""Contents by the name of a key."""


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> Iterator[RedisCluster]:
    yield redis_cluster
    redis_cluster.heal()


# -- one node -------------------------------------------------------------------------------------------


class Node:
    """A connection to a server that sends many commands at a time. ``asking``: each after an ASKING."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self._connection = Connection(host="127.0.0.1", port=server.port, protocol=2)
        self._connection.connect()
        info = self.ask([("INFO", "replication")])[0]
        self.server_id = re.search(rb"master_replid:(\w+)", info)[1].decode()

    def send(self, packed: Sequence[bytes], *, asking: bool = False) -> list[Any]:
        replies = []
        for at in range(0, len(packed), AT_ONCE):
            some = packed[at : at + AT_ONCE]
            if asking:
                some = [part for one in some for part in (pack((b"ASKING",)), one)]
            self._connection.send_packed_command([b"".join(some)])
            read = [self._read() for _ in some]
            replies += read[1::2] if asking else read
        return replies

    def _read(self) -> Any:
        try:
            return self._connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            return error

    def ask(self, commands: Sequence[Sequence[object]], *, asking: bool = False) -> list[Any]:
        """The replies. An error is raised."""
        replies = self.send(
            [pack([str(part).encode("latin-1") for part in one]) for one in commands], asking=asking
        )
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def key_names(self) -> list[str]:
        return [key.decode() for key in self.ask([("CLUSTER", "GETKEYSINSLOT", SLOT, 10**6)])[0]]

    def contents(self, *, asking: bool = False) -> dict[str, list[Any]]:
        """All keys of the slot that are at this server."""
        keys = self.key_names()
        reads = [("XRANGE", key, "-", "+") if _is_stream(key) else ("HGETALL", key) for key in keys]
        return dict(zip(keys, self.ask(reads, asking=asking), strict=True))

    def close(self) -> None:
        self._connection.disconnect()


def _is_stream(key: str) -> bool:
    return key.endswith(":versions")


def slot_moves(reply: Any) -> bool:
    """Whether a call was refused because its slot moves."""
    return isinstance(reply, OF_A_SLOT) or "non local key" in str(reply)


# -- one call -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Place:
    """A case with keys of its own. ``moved`` of them are at the target when it is called."""

    number: int
    case: Case
    moved: tuple[str, ...] = ()
    at_target: bool = False

    @property
    def prefix(self) -> str:
        return f"{self.number}.tg:{{{TAG}}}:"

    def __str__(self) -> str:
        at = "asking the target" if self.at_target else "at the source"
        return f"{self.case} / {at}, moved: {', '.join(self.moved) or 'nothing'}"

    def writes(self, server_id: str) -> Iterator[list[str]]:
        """The commands that make its keys."""
        for name, content in self.case.keys.items():
            if isinstance(content, list):
                yield from (["XADD", self.prefix + name, entry, "visible", entry] for entry in content)
            else:
                yield self.write(server_id, name, content)

    def write(self, server_id: str, name: str, fields: Mapping[str, str]) -> list[str]:
        pairs = [part.replace("@", server_id) for pair in fields.items() for part in pair]
        return ["HSET", self.prefix + name, *pairs]

    def call(self, server_id: str, *, functions: bool) -> bytes:
        first, *more = (self.prefix.encode() + name.encode() for name in self.case.named)
        args = [
            self.prefix + arg[1:] if arg.startswith("&") else arg.replace("@", server_id)
            for arg in self.case.args
        ]
        call = Call(first, self.case.function, tuple(arg.encode("latin-1") for arg in args), more=tuple(more))
        return encoded(call, b"", functions=functions)


class Outcome(NamedTuple):
    reply: Any
    state: State

    @property
    def refused(self) -> bool:
        return slot_moves(self.reply) or str(self.reply).startswith("refused")


# -- one slot -------------------------------------------------------------------------------------------


class MovingSlot:
    """A slot between two servers: ``open``, ``move``, then ``finish`` or ``cancel``."""

    def __init__(self, cluster: RedisCluster, *, functions: bool) -> None:
        self._cluster, self._functions = cluster, functions
        owner = cluster.owner_of(SLOT)
        other = next(each for each in cluster.primaries() if each is not owner)
        self.source, self.target = Node(owner), Node(other)
        self._ids = re.compile(f"{self.source.server_id}|{self.target.server_id}")
        for node in (self.source, self.target):
            loads = [load_library()] if functions else [load_script(name) for name in names()]
            wrong = [each for each in node.send(loads) if isinstance(each, Exception)]
            assert all("already exists" in str(each) for each in wrong), wrong

    def make(self, places: Sequence[Place]) -> None:
        self.source.ask([write for place in places for write in place.writes(self._node(place).server_id)])

    def run(self, places: Sequence[Place], final: Node | None = None) -> dict[Place, Outcome]:
        """Call each where it asks, or all at ``final``; what they said, and made of their keys."""
        replies: dict[Place, Any] = {}
        for node, of in itertools.groupby(sorted(places, key=lambda one: one.at_target), self._node):
            at, some = final or node, list(of)
            calls = [place.call(at.server_id, functions=self._functions) for place in some]
            replies |= zip(some, at.send(calls, asking=at is self.target and not final), strict=True)
        states = self.states()
        return {
            place: Outcome(reply if slot_moves(reply) else self._plain(reply), states.get(place.prefix, {}))
            for place, reply in replies.items()
        }

    def states(self) -> dict[str, State]:
        """What lies at either server, by prefix. A key that lies at both has the name ``twice``, too."""
        found: dict[str, State] = defaultdict(dict)
        for node in (self.source, self.target):
            for key, content in node.contents(asking=node is self.target).items():
                prefix, name = re.match(r"(.*?\}:)(.*)", key).groups()
                found[prefix]["twice" if name in found[prefix] else name] = self._content(key, content)
        return found

    def _content(self, key: str, content: list[Any]) -> Any:
        content = self._plain(content)
        return content if _is_stream(key) else dict(zip(content[::2], content[1::2], strict=True))

    def _plain(self, reply: Any) -> Any:
        """A reply, or what a key holds, without what differs between servers and moments."""
        if isinstance(reply, list):
            return [self._plain(one) for one in reply]
        if isinstance(reply, Exception):
            return f"refused: {str(reply).split()[0]}"
        if not isinstance(reply, bytes):
            return reply
        return TIMES.sub("<time>", self._ids.sub("@", reply.decode("latin-1")))

    def _node(self, place: Place) -> Node:
        return self.target if place.at_target else self.source

    def open(self) -> None:
        self.target.ask([("CLUSTER", "SETSLOT", SLOT, "IMPORTING", self._id(self.source))])
        self.source.ask([("CLUSTER", "SETSLOT", SLOT, "MIGRATING", self._id(self.target))])

    def move(self, keys: Sequence[str], *, back: bool = False) -> None:
        there, to = (self.target, self.source) if back else (self.source, self.target)
        if keys:
            at = ("127.0.0.1", to.server.port, "", 0, MIGRATE_MS)
            there.ask([("MIGRATE", *at, "KEYS", *keys)])

    def finish(self) -> Node:
        self.move(self.source.key_names())
        told = [self.target.server, self.source.server, *self._cluster.primaries()]
        for server in told:
            server.ask("CLUSTER", "SETSLOT", SLOT, "NODE", self._id(self.target))
        return self.target

    def cancel(self) -> Node:
        self.source.ask([("CLUSTER", "SETSLOT", SLOT, "STABLE")])
        self.move(self.target.key_names(), back=True)
        self.target.ask([("CLUSTER", "SETSLOT", SLOT, "STABLE")])
        return self.source

    def note(self, node: Node, states: Mapping[Place, State]) -> None:
        """Write into headers and pointers that they were compared at this server."""
        writes = []
        for place, state in states.items():
            for name in {"h", "2:h", "meta"} & state.keys():
                its_ids = {field: content for field, content in state[name].items() if "@" in content}
                if its_ids:
                    writes.append(place.write(node.server_id, name, its_ids))
        node.ask(writes)

    def forget(self, *, asking: bool = False, unless: Callable[[str], bool] = lambda _: False) -> None:
        """Delete the keys, wherever they are."""
        for node in (self.source, self.target):
            keys = [key for key in node.key_names() if not unless(key)]
            node.ask([("DEL", key) for key in keys], asking=asking and node is self.target)

    def _id(self, node: Node) -> str:
        return self._cluster.id_of(node.server)

    def close(self) -> None:
        for node in (self.source, self.target):
            node.close()


@pytest.fixture(params=[True, False], ids=["functions", "scripts"])
def slot(request: pytest.FixtureRequest, cluster: RedisCluster) -> Iterator[MovingSlot]:
    moving = MovingSlot(cluster, functions=request.param)
    yield moving
    owner = cluster.owner_of(SLOT)
    for node in (moving.source, moving.target):  # nothing stays of a test that failed
        node.ask([("DEL", key) for key in node.key_names()], asking=node.server is not owner)
        node.ask([("CLUSTER", "SETSLOT", SLOT, "STABLE")])
    moving.close()


# -- every function -------------------------------------------------------------------------------------


def without_a_key(case: Case) -> Iterator[Case]:
    """The same call where one of its keys is absent; what a stable slot makes of it is right."""
    for name in case.keys:
        keys = {other: content for other, content in case.keys.items() if other != name}
        yield replace(case, what=f"{case.what}, without {name}", keys=keys, refused=None)


ALL_CASES = [*CASES, *(fewer for case in CASES for fewer in without_a_key(case))]


def places() -> list[Place]:
    """Each case at either server, with no key moved, each alone, all but the first, or all."""
    found: dict[tuple[Case, tuple[str, ...], bool], None] = {}
    for case, at_target in itertools.product(ALL_CASES, (False, True)):
        keys = tuple(case.keys)
        for moved in ((), *((key,) for key in keys), keys[1:], keys):
            found[case, moved, at_target] = None
    return [Place(number, *given) for number, given in enumerate(found)]


def on_a_stable_slot(slot: MovingSlot) -> dict[str, tuple[Outcome, Outcome]]:
    """What each case does when it is called once and once more."""
    models = [Place(number, case) for number, case in enumerate(ALL_CASES)]
    slot.make(models)
    once, again = (slot.run(models, slot.source) for _ in range(2))
    slot.forget()
    for model in models:
        case, reply = model.case, once[model].reply
        refused = reply.removeprefix("refused: ") if isinstance(reply, str) and "refused" in reply else ""
        assert case.refused in (refused, None), (str(case), reply)
    return {str(model.case): (once[model], again[model]) for model in models}


NEVER_EMPTIED = {"begin", "forget_begun", "end_rebuild", "heartbeat", "begin_base", "lease"}
"""Functions that remove fields, of a pointer or a header that always has others, or write the key again."""


def deleting() -> set[str]:
    """The functions that delete, by the library's text."""
    found = re.finditer(r"^writes\.(\w+) = .*?^end\)?$", source(), re.MULTILINE | re.DOTALL)
    return {each[1] for each in found if re.search("'(HDEL|UNLINK|RENAME)'", each[0])} - NEVER_EMPTIED


def test_no_function_of_the_library_is_left_out():
    assert {*names()} <= {case.function for case in CASES}
    assert len({str(case) for case in CASES}) == len(CASES)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("ending", ["finish", "cancel"])
def test_every_function_in_a_slot_that_moves(ending: str, slot: MovingSlot):
    """A call in a slot that moves is refused whole, or does what it does on a stable one. When the slot has
    moved, or stays after all, the call does what it would have done.
    """
    model, called = on_a_stable_slot(slot), places()
    emptying = {case.function for case in ALL_CASES if case.keys.keys() - model[str(case)][0].state.keys()}
    assert deleting() <= emptying, "a function needs a case in which the call itself empties a key"
    slot.make(called)
    before = slot.states()
    slot.open()
    slot.move([place.prefix + name for place in called for name in place.moved])
    outcomes = slot.run(called)
    wrong: dict[Place, str] = {}
    for place, outcome in outcomes.items():
        unchanged = Outcome(outcome.reply, before.get(place.prefix, {}))
        allowed = unchanged if outcome.refused else model[str(place.case)][0]
        if outcome != allowed:
            wrong[place] = f"{outcome}\n  not  {allowed}"
    unmoved = [place for place in called if not (place.moved or place.at_target)]
    assert readers() <= {place.case.function for place in unmoved if not outcomes[place].refused}
    bad = {place.prefix for place in wrong}
    slot.forget(asking=True, unless=lambda key: re.match(r".*?\}:", key)[0] not in bad)
    final = getattr(slot, ending)()
    going_on = [place for place in called if place not in wrong]
    slot.note(final, {place: outcomes[place].state for place in going_on})
    for place, outcome in slot.run(going_on, final).items():
        wanted = model[str(place.case)][not outcomes[place].refused]
        if outcome != wanted:
            wrong[place] = f"afterwards {outcome}\n  not  {wanted}"
    final.ask([("DEL", key) for key in final.key_names()])
    told = [f"{place}: {what}" for place, what in wrong.items()]
    assert not told, "\n".join([f"{len(told)} of {len(called)} calls are wrong, such as", *told[:SHOWN]])


# -- a query --------------------------------------------------------------------------------------------


def retire(query: Query, driver: Coordinator) -> None:
    with contextlib.suppress(StoreNotVerifiedError):  # as in the background: tried again at the next version
        query.retire(driver)


MOVES: dict[str, Callable[[RedisCluster, int, RedisServer], contextlib.AbstractContextManager[None]]] = {
    "none of its keys yet": lambda cluster, slot, to: cluster.moving(slot, to, half=False),
    "half of its keys": RedisCluster.moving,
    "cancelled": RedisCluster.opened,
}


def goes_on(cluster: RedisCluster, query: Query, meanwhile: Meanwhile, ways: Sequence[str]) -> set[int]:
    """Commit and retire while each slot of the namespace moves in these ways, alternately, then check all.
    The versions that were in flight meanwhile.
    """
    driver = query.run(4, keep_versions=1)
    tags = [*(query.keys_of(group) for group in range(KEY_GROUPS)), query.meta]
    batches, in_flight = itertools.count(4), set()
    with Reader(query) as reader:
        for tag, way in zip(itertools.cycle(tags), ways, strict=False):
            query.tidy(driver)
            query.commit(driver, batch_id := next(batches))  # there is a version to merge
            in_flight.add(batch_id + 2)
            old = cluster.primary_of(tag)
            to = next(each for each in cluster.primaries() if each is not old)
            before = refused_calls(old)
            with MOVES[way](cluster, slot_of(tag), to):
                retiring = meanwhile.start(retire, query, driver)
                committing = meanwhile.start(query.commit, driver, next(batches))
                met = lambda: refused_calls(old) > before or retiring.done()  # noqa: B023, E731
                wait_until(met, "a merge met the slot")
            retiring.result(60)
            committing.result(60)
            if driver.store.unverified():
                assert repair(driver) == []
        reader.wait_whole(last := next(batches))
    query.check(last)
    return in_flight


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", MOVES)
def test_a_query_goes_on_while_its_slots_move(
    way: str, cluster: RedisCluster, tmp_path, meanwhile: Meanwhile, caplog
):
    """The log no longer reaches back to version 1, so that no repair can hide a loss."""
    with query_on(cluster.url, tmp_path) as query:
        in_flight = goes_on(cluster, query, meanwhile, [way] * (KEY_GROUPS + 1))
    assert put_back(caplog) <= in_flight, "a version that was visible"


@pytest.mark.slow
def test_a_query_goes_on_while_its_slots_move_to_and_fro(
    cluster: RedisCluster, tmp_path, meanwhile: Meanwhile, caplog
):
    ways = ["none of its keys yet", "cancelled", "half of its keys", "cancelled"] * 30
    with query_on(cluster.url, tmp_path) as query:
        in_flight = goes_on(cluster, query, meanwhile, ways)
    assert put_back(caplog) <= in_flight, "a version that was visible"


def test_a_slot_that_was_left_open_is_named(cluster: RedisCluster, tmp_path):
    with query_on(cluster.url, tmp_path) as query:
        driver = query.run(2)
        slot = slot_of(query.meta)
        to = next(each for each in cluster.primaries() if each is not cluster.owner_of(slot))
        with (
            cluster.opened(slot, to),
            pytest.raises(StoreUnavailableError, match=r"slot .* moves .*--cluster check"),
        ):
            query.store(timeout_s=0.2).heartbeat(driver.epoch)
        query.check(2)
