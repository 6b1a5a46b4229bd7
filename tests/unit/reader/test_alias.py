"""Readers by an alias: which namespace a call reads, what stays where it was taken, what is refused."""

import asyncio
import contextlib
import inspect
import json
import re
import threading
import time
import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tidegate
import tidegate.aio
from tidegate.aio.alias_gate import AliasGate as AsyncAliasGate
from tidegate.aio.redirects import RedirectGate as AsyncRedirectGate
from tidegate.cli import app
from tidegate.committers.operations.alias import checked_target, set_alias
from tidegate.errors import ConfigError, StoreLostError, VersionRegressedError, WaitTimeoutError
from tidegate.options.endpoints import parse_store
from tidegate.reader.alias_gate import AliasGate
from tidegate.reader.redirects import RedirectGate
from tidegate.reader.spaces import SpacesFlow
from tidegate.sinks.aliases import Target
from tidegate.sinks.memory.store import _spaces
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import Example, write_flights

KEYS = [f"N{number}" for number in range(20)]
DEADLINE_S = 60.0


class Place:
    """A store with some namespaces, whose rows say of which they are, and an alias ``live``."""

    def __init__(self, root):
        self.wal, self.store = f"file://{root}/wal", f"sqlite://{root}/store"
        self.writers = {}

    def write(self, name, versions=1):
        writer = self.writers.get(name) or Example(self.wal, self.store, name)
        self.writers[name] = writer
        for _ in range(versions):
            writer.write({"aircraft": {key: {"carrier": name, "flights": 1} for key in KEYS}})

    def point(self, name, alias="live"):
        at = parse_store(self.store)
        return set_alias(at, alias, checked_target(at, alias, name))

    def gate(self, alias="live"):
        return tidegate.connect(self.store, alias)

    def aio(self, alias="live"):
        return tidegate.aio.connect(self.store, alias)


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    made.write("blue", 3)
    made.write("green", 1)
    made.point("blue")
    yield made
    for writer in made.writers.values():
        writer.close()


def carriers(rows):
    return {value["carrier"] for _, value in rows}


# -- which namespace ---------------------------------------------------------------------------------


def test_keys_of_several_tables_are_read_where_the_alias_points(place):
    async def asked():
        async with await place.aio() as gate:
            return await gate.get_many({"aircraft": KEYS[:1]})

    with place.gate() as gate:
        for name in ("blue", "green"):
            place.point(name)
            wanted = {"aircraft": {KEYS[0]: {"carrier": name, "flights": 1}}}
            assert gate.get_many({"aircraft": KEYS[:1]}) == wanted
            assert asyncio.run(asked()) == wanted


def test_each_call_reads_the_namespace_that_the_alias_names_as_it_begins(place):
    with place.gate() as gate:
        table = gate.table("aircraft")
        assert (gate.version(), gate.namespace, table.get("N1")["carrier"]) == (3, "blue", "blue")
        place.point("green")
        assert (gate.version(), gate.namespace, table.get("N1")["carrier"]) == (1, "green", "green")
        assert carriers(table.scan()) == {"green"}
        assert [info.version for info in gate.history()] == [1]
        place.point("blue")
        assert gate.table("aircraft").get_many(KEYS)["N2"]["carrier"] == "blue"
        assert (gate.version(), gate.tables(), gate.key_groups) == (3, ["aircraft"], 8)


def test_what_was_taken_stays_in_its_namespace(place):
    """I8: a snapshot, a scan and a diff that have begun."""
    with place.gate() as gate:
        snapshot, scan = gate.snapshot(), gate.table("aircraft").scan()
        diff = gate.diff(0)
        next(scan)
        next(diff)
        for name in ("green", "blue", "green"):
            place.point(name)
            assert gate.table("aircraft").get("N1")["carrier"] == name
            assert (snapshot.namespace, snapshot.version) == ("blue", 3)
            assert snapshot.table("aircraft").get("N1")["carrier"] == "blue"
        assert carriers(scan) == {"blue"}
        assert {change.after["carrier"] for change in diff} == {"blue"}
        snapshot.close()
        with gate.snapshot() as later:
            assert later.namespace == "green"


def test_a_reader_while_an_alias_flips_to_and_fro(place):
    """I1: each snapshot, each scan and each read of many keys comes wholly from one namespace."""
    done, errors, seen = threading.Event(), [], set()

    def read():
        with contextlib.ExitStack() as closing:
            gate = closing.enter_context(place.gate())
            try:
                while not done.is_set() or len(seen) < 2:
                    with gate.snapshot() as snapshot:
                        found = carriers(snapshot.table("aircraft").get_many(KEYS).items())
                        found |= carriers(snapshot.table("aircraft").scan())
                        assert found == {snapshot.namespace}
                        seen.add(snapshot.namespace)
                    assert len(carriers(gate.table("aircraft").get_many(KEYS).items())) == 1
                    assert len(carriers(gate.table("aircraft").scan())) == 1
            except BaseException as error:
                errors.append(error)
                raise

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for turn in range(30):
        place.point(("green", "blue")[turn % 2])
        place.write(("blue", "green")[turn % 2])  # the one behind goes on
        if errors:
            break
    done.set()
    for reader in readers:
        reader.join(DEADLINE_S)
    assert errors == []
    assert seen == {"blue", "green"}


def test_gates_to_namespaces_that_nobody_reads_any_more_are_closed(place):
    with place.gate() as gate:
        held = gate.snapshot()
        blue = held._reader
        place.point("green")
        gate.version()
        assert not blue.closed
        held.close()
        gate.version()
        assert blue.closed
        place.point("blue")
        assert gate.table("aircraft").get("N1")["carrier"] == "blue"


def test_what_was_seen_of_a_namespace_is_remembered_over_a_flip(place):
    """I9."""
    memory = f"memory://{uuid.uuid4().hex}"
    for name in ("blue", "green"):
        write_flights(memory, memory, name, alias="live")
    at = parse_store(memory)
    with tidegate.connect(memory, "live") as gate:
        set_alias(at, "live", checked_target(at, "live", "blue"))
        assert gate.version() == 3
        set_alias(at, "live", checked_target(at, "live", "green"))
        assert gate.version() == 3
        space = _spaces[memory.removeprefix("memory://"), "blue"]
        space.pointer = tidegate.sinks.store.Pointer(2, "digest", space.pointer.epoch, "w")
        set_alias(at, "live", checked_target(at, "live", "blue"))
        with pytest.raises(VersionRegressedError):
            gate.version()


def test_every_call_of_a_gate_follows_the_alias():
    """A call that is added to Gate, whose steps are not in AliasFlow, would read nothing at all."""
    runs = re.compile(r"\b(?:run|run_async)\(self\.(\w+)\(")
    pairs = ((tidegate.Gate, AliasGate), (tidegate.Gate, RedirectGate))
    aio_pairs = ((tidegate.aio.Gate, AsyncAliasGate), (tidegate.aio.Gate, AsyncRedirectGate))
    for plain, following in (*pairs, *aio_pairs):
        flows = set(runs.findall(inspect.getsource(plain)))
        assert flows >= {
            "_version_steps",
            "_tables_steps",
            "_snapshot_steps",
            "_wait_steps",
            "_history_steps",
        }
        own = {name for kind in following.mro() if issubclass(kind, SpacesFlow) for name in vars(kind)}
        assert flows | {"read", "namespace", "key_groups"} <= own


# -- waiting -----------------------------------------------------------------------------------------


def test_a_version_is_waited_for_where_the_wait_began(place):
    with place.gate() as gate:
        assert gate.wait_for(3, timeout=0) == 3
        place.point("green")
        with pytest.raises(WaitTimeoutError, match="green"):
            gate.wait_for(3, timeout=0)


class FlipsAndDrops:
    """A flip from blue to green during a wait in blue, which is dropped; green has the version."""

    def __init__(self, place, gate):
        self.place = place
        gate._spaces[gate._now].gate._reader.store.await_newer = self

    def __call__(self, _visible, _timeout_s):
        self.place.point("green")
        self.place.writers.pop("blue").close()
        with contextlib.closing(open_store(self.place.store, "blue")) as store:
            store.drop()
        return False

    async def in_thread(self, visible, timeout_s):
        return await asyncio.to_thread(self, visible, timeout_s)


def test_a_version_of_a_namespace_that_is_dropped_meanwhile_is_not_answered_by_another_one(place):
    place.write("green", 4)
    with place.gate() as gate:
        FlipsAndDrops(place, gate)
        with pytest.raises(StoreLostError, match="namespace blue"):
            gate.wait_for(4, timeout=DEADLINE_S)
        assert gate.wait_for(4, timeout=0) == 5  # a new wait is in green


def test_a_version_of_a_namespace_that_is_dropped_meanwhile_is_not_answered_by_another_one_aio(
    place,
):
    place.write("green", 4)

    async def wait():
        async with await place.aio() as gate:
            assert gate.namespace == "blue"
            store = gate._spaces[gate._now].gate._reader.store
            store.await_newer = FlipsAndDrops(place, gate).in_thread
            with pytest.raises(StoreLostError, match="namespace blue"):
                await gate.wait_for(4, timeout=DEADLINE_S)
            assert await gate.wait_for(4, timeout=0) == 5

    asyncio.run(wait())


def test_the_first_look_of_a_wait_is_repeated_where_the_alias_points(place):
    """Nothing was seen of the first namespace yet."""
    place.write("green", 4)
    with place.gate() as gate:

        def pointer():
            del store.pointer
            FlipsAndDrops(place, gate)(0, 0)
            return store.pointer()

        store = gate._spaces[gate._now].gate._reader.store
        store.pointer = pointer
        assert gate.wait_for(4, timeout=0) == 5


@pytest.mark.parametrize("aio", [False, True])
def test_offsets_are_waited_for_wherever_the_alias_points(place, aio):
    """The wait began in a namespace that never gets there; the flip ends it."""
    place.writers["green"].write({}, source_offsets='{"orders":{"0":42}}\n')
    found = []

    async def wait():
        async with await place.aio() as gate:
            found.append(await gate.wait_for(offsets={"orders": {0: 41}}, timeout=DEADLINE_S))

    def wait_in_thread():
        if aio:
            asyncio.run(wait())
        else:
            with place.gate() as gate:
                found.append(gate.wait_for(offsets={"orders": {0: 41}}, timeout=DEADLINE_S))

    waiting = threading.Thread(target=wait_in_thread)
    waiting.start()
    time.sleep(0.05)  # it has most likely begun; if not, it finds the flip
    place.point("green")
    waiting.join(DEADLINE_S)
    assert found == [2]


def test_offsets_that_do_not_come(place):
    with place.gate() as gate, pytest.raises(WaitTimeoutError, match=r"orders-0@41 .* within 0 s"):
        gate.wait_for(offsets={"orders": {0: 41}}, timeout=0)


# -- asyncio -----------------------------------------------------------------------------------------


def test_asyncio_readers_follow_it_too(place):
    async def read():
        async with await place.aio() as gate:
            table = gate.table("aircraft")
            assert (await gate.version(), gate.namespace, gate.key_groups) == (3, "blue", 8)
            held = await gate.snapshot()
            place.point("green")
            assert (await table.get("N1"))["carrier"] == "green"
            assert carriers([row async for row in table.scan()]) == {"green"}
            assert (await gate.tables(), len(await gate.history())) == (["aircraft"], 1)
            assert held.namespace == "blue"
            assert (await held.table("aircraft").get("N1"))["carrier"] == "blue"
            blue = held._reader
            await held.close()
            await gate.version()
            await asyncio.sleep(0)  # beside the call
            assert blue.closed
            assert await gate.wait_for(1, timeout=0) == 1
            with pytest.raises(ConfigError, match="closed"):
                await held.table("aircraft").get("N1")

    asyncio.run(read())


def test_asyncio_tasks_while_an_alias_flips(place):
    async def read(gate, done):
        seen = set()
        while not done.is_set():
            async with gate.snapshot() as snapshot:
                found = await snapshot.table("aircraft").get_many(KEYS)
                assert carriers(found.items()) == {snapshot.namespace}
                seen.add(snapshot.namespace)
        return seen

    async def run():
        done = asyncio.Event()
        async with await place.aio() as gate:
            readers = [asyncio.create_task(read(gate, done)) for _ in range(4)]
            for turn in range(30):
                place.point(("green", "blue")[turn % 2])
                await gate.version()
            done.set()
            seen = await asyncio.gather(*readers)
        assert set.union(*seen) == {"blue", "green"}

    asyncio.run(run())


# -- what is refused ---------------------------------------------------------------------------------


def test_an_alias_that_is_dropped_or_names_nothing_is_told(place):
    with place.gate() as gate:
        open_store(place.store, "live").aliases().drop("live")
        with pytest.raises(ConfigError, match=r"no alias 'live' any more.*tidegate alias set"):
            gate.version()
    with pytest.raises(ConfigError, match="no namespace 'live'"):
        place.gate()
    open_store(place.store, "live").aliases().set("live", Target("blue", "another uuid"))
    for connect in (place.gate, lambda: asyncio.run(place.aio())):
        with pytest.raises(ConfigError, match=r"'blue' \('another uuid'\).*tidegate alias set"):
            connect()


def test_a_writer_does_not_go_by_an_alias(place):
    writer = Example(place.wal, place.store, "other")
    writer.close()
    with pytest.raises(ConfigError, match=r"'live' is an alias of namespace blue.*tidegate alias drop live"):
        Example(place.wal, place.store, "live")
    assert "live" not in [path.name for path in Path(place.wal.removeprefix("file://")).iterdir()]


def test_a_namespace_comes_before_an_alias_of_its_name(place):
    """Set behind the back of `tidegate alias set`, which refuses it."""
    found = place.gate("green")
    open_store(place.store, "blue").aliases().set("green", Target("blue", "uuid"))
    with place.gate("green") as gate:
        assert gate.table("aircraft").get("N1")["carrier"] == "green"
    found.close()


# -- the command ----------------------------------------------------------------------------------------


def run(place, *words, code=0):
    told = CliRunner().invoke(app, [*words, "--store", place.store], prog_name="tidegate")
    assert told.exit_code == code, told.output
    assert "Traceback" not in told.output
    return told.output


def test_set_list_and_drop(place):
    told = run(place, "alias", "set", "live", "--namespace", "green")
    assert "live is namespace green" in told
    assert "before, it was blue" in told
    listed = json.loads(run(place, "alias", "list", "--json"))["aliases"]
    assert [(row["alias"], row["namespace"], row["visible"]) for row in listed] == [("live", "green", 1)]
    assert "live\tgreen\t1\tsqlite" in run(place, "alias", "list")
    told = json.loads(run(place, "alias", "set", "live", "--namespace", "blue", "--json"))
    assert told["stores"][0]["before"] == "green"
    assert "--yes" in run(place, "alias", "drop", "live", code=2)
    assert "alias live dropped" in run(place, "alias", "drop", "live", "--yes")
    assert "check --store" in run(place, "alias", "drop", "live", "--yes", code=2)
    assert json.loads(run(place, "alias", "list", "--json")) == {"aliases": []}


def test_what_no_alias_can_name(place):
    Example(place.wal, place.store, "empty").close()
    assert "'blue' is a namespace" in run(place, "alias", "set", "blue", "--namespace", "green", code=2)
    assert "no version is visible" in run(place, "alias", "set", "live", "--namespace", "empty", code=2)
    told = run(place, "alias", "set", "second", "--namespace", "live", code=2)
    assert "'live' is an alias of namespace blue" in told
    assert "give --namespace blue" in told
    assert "namespace absent: there is no such namespace" in run(
        place, "alias", "set", "live", "--namespace", "absent", code=2
    )
    assert "name 'a b'" in run(place, "alias", "set", "a b", "--namespace", "blue", code=2)
    with place.gate() as gate:
        assert gate.namespace == "blue"
    assert "namespace empty" in run(place, "alias", "set", "live", "--namespace", "empty", "--force")


def test_commands_that_read_take_an_alias_and_others_tell_what_it_is(place):
    assert "blue" in run(place, "get", "aircraft", "N1", "--namespace", "live")
    tail = run(place, "tail", "--namespace", "live", "--after", "2", "--limit", "1", "--json").splitlines()
    assert json.loads([line for line in tail if line.startswith("{")][-1])["version"] == 3
    told = run(place, "recover", "--wal", place.wal, "--namespace", "live", code=2)
    assert "'live' is an alias of namespace blue" in told


def test_a_namespace_with_an_alias_is_not_dropped(place):
    place.point("blue", alias="also")
    where = ["--wal", place.wal, "--namespace", "blue", "--yes"]
    place.writers.pop("blue").close()
    told = run(place, "drop", *where, code=2)
    assert "readers find it as also, live" in told
    with place.gate() as gate:
        assert gate.version() == 3
    run(place, "alias", "drop", "also", "--yes")
    place.point("green")
    assert "is gone" in run(place, "drop", *where, "--force")
