"""What must hold after each word. A check returns what is wrong; '' if nothing is."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

import tidegate
from model.commands import truth as truths
from model.commands.letters import query
from model.commands.truth import Content, Shape, Space, Truth
from model.commands.world import Time, World
from tidegate.committers.operations.verify import verify
from tidegate.errors import TidegateError
from tidegate.keys.groups import key_group
from tidegate.sinks.open_store import open_store
from tidegate.spark.source.data_source import TidegateSource
from tidegate.wal.fold import View, fold_all, recent_version
from tidegate.wal.open_log import open_log
from tidegate.wal.staging.due_queue import TIMES, Due, Parts, place_key
from tidegate.wal.value_flags import DELETES

TABLES = ("seen", "brief", "open", "closed", "ref")

# -- what readers get ---------------------------------------------------------------------------------


def identity(world: World, name: str, store: str = "a") -> Any:
    with contextlib.closing(open_store(world.url(store), name)) as opened:
        return opened.identity()


def rows_at(gate: Any, version: int) -> tuple[int, dict[str, dict[Any, Any]]]:
    """Return the time of a version, and its rows by table."""
    with gate.snapshot(version=version) as snapshot:
        at_us = round(snapshot.decided_at.timestamp() * 1e6)
        return at_us, {name: dict(snapshot.table(name).scan()) for name in snapshot.tables()}


def readable(world: World, name: str, *, newest: bool = False) -> tuple[str, dict[int, Any]] | None:
    """Return the uuid of a namespace, and its rows at each readable version; None: there is nothing."""
    state = (newest, world.digest_of(name))
    if state not in _read:
        _read[state] = _readable(world, name, newest=newest)
    return _read[state]


_read: dict[Any, Any] = {}
"""What readers get, by the digest of the store: reading the same store again takes most of the time."""


def _readable(world: World, name: str, *, newest: bool) -> tuple[str, dict[int, Any]] | None:
    try:
        with tidegate.connect(world.url(), name) as gate:
            visible = gate.version()
            with contextlib.closing(open_store(world.url(), name)) as opened:
                oldest = visible if newest else max(opened.pointer().horizon, 1)
                found = opened.identity()
            if found is None or not visible:
                return None
            return found.uuid, {each: rows_at(gate, each) for each in range(oldest, visible + 1)}
    except TidegateError:
        return None


def _same(content: Content, shown: tuple[int, dict[str, dict[Any, Any]]]) -> bool:
    return _full(content.at(shown[0])) == _full(shown[1])


def _full(tables: Any) -> Any:
    """The tables that have rows: an empty one and none are the same to a reader of rows."""
    return {name: {key: _row(row) for key, row in rows.items()} for name, rows in tables.items() if rows}


def _row(row: Any) -> Any:
    return {name: value for name, value in row.items() if value is not None}


def settle(world: World, *, newest: bool = False) -> str:
    """Keep those truths that readers see; note what they see at each version, which must stay."""
    kept, why = [], ""
    names = {name for each in world.truths for name in each.spaces}
    shown_by_name = {name: readable(world, name, newest=newest) for name in names}
    for truth in world.truths:
        settled: Truth | str = truth
        for name, space in truth.spaces.items():
            settled = _settled(settled, name, space, shown_by_name[name])
            if isinstance(settled, str):
                why = settled
                break
        if isinstance(settled, Truth):
            kept.append(settled)
    if not kept:
        return why
    world.truths = tuple({repr(each): each for each in kept}.values())
    return ""


def _settled(truth: Truth, name: str, space: Space, shown: Any) -> Truth | str:
    if shown is None:
        in_flight = space.before is not None and space.before.event < 0
        if space.shown and space.content.event >= 0 and not in_flight:
            return f"readers of {name} find nothing; expected {_full(space.content.at(Time.us))}"
        return truth
    uuid, versions = shown
    visible = max(versions)
    if not _same(space.content, versions[visible]):
        if space.before is not None and _same(space.before, versions[visible]):
            return truth
        if not space.shown or space.copy_of or space.moved:
            known = space.versions.get((uuid, visible))
            if known is not None and _same(known[0], versions[visible]):
                return truth  # an older copy that was put back, until the log is applied
        expected = _full(space.content.at(versions[visible][0]))
        return f"version {visible} of {name} shows {_full(versions[visible][1])}; expected {expected}"
    seen = {at: each for at, each in space.versions.items() if at[0] == uuid}
    for version, rows in versions.items():
        known = seen.get((uuid, version))
        if known is not None and version != visible and not _same(known[0], rows) and not space.damaged:
            return f"version {version} of {name} shows {_full(rows[1])} now; before, {_full(known[0].at(rows[0]))}"
    seen[uuid, visible] = (space.content, space.shape)
    seen = {at: each for at, each in seen.items() if at[1] in versions}
    return truth.with_space(name, versions=seen, shown=True, before=None, time_us=versions[visible][0])


# -- the next batch -------------------------------------------------------------------------------------


def _rows(world: World, name: str) -> Any:
    shown = readable(world, name, newest=True)
    return None if shown is None else _full(shown[1][max(shown[1])][1])


def next_batch(world: World) -> str:
    """The right query's next batch is accepted, or refused with a step that works; a replay is no version.

    An hour later, at the batch after it, every other key has timed out.
    """
    from model.commands.advice import advised

    with world.trial():
        if world.truth.event > world.truth.first and world.truth.here.shown:
            replayed = query(world, event=world.truth.event - 1)
            if replayed.crash or (replayed.done and (wrong := settle(world, newest=True))):
                return f"after a replay of batch {world.truth.event - 1}, {replayed.crash or wrong}"
        for seconds in (0, 3600):
            Time.us += seconds * 1_000_000
            truth, had = world.truth, world.truth.here
            lost = truth.event > had.event + 1 and not had.generation
            outcome = query(world)
            if outcome.crash:
                return f"the next batch: {outcome.crash}"
            if not outcome.done:
                return advised(world, outcome, lambda: query(world), "the query's next batch")
            if lost and "warning" not in outcome.text:
                return f"batch {truth.event} is accepted without a word; the last one here is {had.event}"
            world.truths = tuple(truths.batch(each, Time.us) for each in world.truths)
            if wrong := settle(world, newest=True):
                return f"after the next batch, {wrong}"
        return verified(world)


def wrong_batches(world: World) -> str:
    """A query whose checkpoint was replaced is refused, and so is one that starts in another namespace."""
    truth = world.truth
    wrong: list[tuple[str, dict[str, Any]]] = []
    if truth.lineage and truth.here.content.event >= 0 and not truth.here.damaged:
        wrong.append((f"the replaced query {truth.lineage - 1}", {"lineage": truth.lineage - 1, "first": 0}))
    for name, space in truth.spaces.items():
        if name != truth.name and space.content.event >= 0 and space.damaged != "relogged":
            wrong.append((f"the query started in {name}", {"name": name}))
    for what, arguments in wrong:
        with world.trial():
            before = _rows(world, arguments.get("name", truth.name))
            outcome = query(world, **arguments)
            if outcome.crash:
                return f"{what}: {outcome.crash}"
            after = _rows(world, arguments.get("name", truth.name))
            if outcome.done and before != after:
                return f"{what} is accepted, with batch {truth.event}"
    return ""


# -- readers that come back with a number ----------------------------------------------------------------


def stream_of(world: World, name: str, table: str) -> Any:
    options = {"namespace": name, "table": table, "store": world.url(), "wal": world.wal, "parallelism": "1"}
    source = TidegateSource(options)
    fields = source.leased.values.arrow_schema
    schema = from_arrow_schema(fields)
    schema = StructType(
        [*schema.fields, StructField("_change_type", StringType()), StructField("_version", LongType())]
    )
    return source.streamReader(schema)


class Held(NamedTuple):
    """Numbers with which readers come back, and the rows that they had by then. ``digest``: of its history."""

    name: str
    uuid: str
    version: int
    digest: str
    offset: str
    after: str
    rows: str


def hold(world: World) -> None:
    """Let a stream and a `tail` take a number now, with which they come back after the word."""
    name = world.truth.name
    if not world.truth.here.shown or (rows := _rows(world, name)) is None:
        return
    with world.trial():
        try:
            reader = stream_of(world, name, "seen")
            offset = reader.latestOffset(reader.initialOffset())
            reader.stop()
        except TidegateError:
            return
    with contextlib.closing(open_store(world.url(), name)) as store:
        pointer, uuid = store.pointer(), store.identity().uuid  # type: ignore[union-attr]
    had = json.dumps(rows.get("seen", {}), sort_keys=True)
    held = Held(name, uuid, pointer.visible, pointer.digest, json.dumps(offset), _after(world, name), had)
    world.held = (*world.held, held)


def _after(world: World, name: str) -> str:
    """Return the value of ``--after`` with which a `tail` that has the visible version continues."""
    shown = readable(world, name)
    assert shown is not None
    visible = max(shown[1])
    if visible - 1 not in shown[1]:
        return str(visible)
    ended = world.run("tail", "--after", visible - 1, "--json", "--for", "1s", "--limit", 1, namespace=name)
    last = json.loads(ended.json.strip().splitlines()[-1]) if ended.done else {}
    return str(last.get("after") or (f"{visible}:{last['digest']}" if "digest" in last else visible))


def _history(world: World, held: Held, name: str) -> str:
    """Return in words whether the number that was held is one of this namespace's history."""
    with contextlib.closing(open_log(world.wal, name)) as log:
        state = fold_all(View(), log.decisions()).state
    decided = None if state is None else recent_version(state, held.version)
    same = state is not None and state.namespace == held.uuid and (decided is None or decided.digest == held.digest)
    return "" if same else " of another history"


def streamed(world: World) -> str:
    """A stream that comes back has the visible rows in the end, or an error; by the old name, and by the new."""
    if not world.truth.here.shown:
        return ""
    for held in world.held:
        for name in dict.fromkeys((held.name, world.truth.name)):
            with world.trial():
                if wrong := _streamed(world, name, json.loads(held.offset), json.loads(held.rows)):
                    return wrong + _history(world, held, name)
    return ""


def tailed(world: World) -> str:
    """A `tail` that continues has the visible rows in the end, or an error."""
    for held in world.held if world.truth.here.shown else ():
        with world.trial():
            if wrong := _tailed(world, held.name, held.after, json.loads(held.rows)):
                return wrong + _history(world, held, held.name)
    return ""


def _streamed(world: World, name: str, offset: Any, rows: dict[str, Any]) -> str:
    try:
        reader = stream_of(world, name, "seen")
        end = reader.latestOffset(offset)
        for part in reader.partitions(offset, end):
            for batch in reader.read(part):
                for row in batch.to_pylist():
                    kind = row["_change_type"]
                    if kind == "truncate":
                        rows = {}
                    elif kind == "delete":
                        rows.pop(row["k"], None)
                    else:
                        rows[row["k"]] = {"n": row["n"]}
        reader.stop()
    except TidegateError:
        return ""
    visible = (_rows(world, name) or {}).get("seen", {})
    return "" if rows == visible else f"a stream of {name} from {offset} to {end} has {rows}, not {visible}"


def _tailed(world: World, name: str, after: str, rows: dict[str, Any]) -> str:
    outcome = world.run("tail", "--after", after, "--json", "--for", "1s", "--table", "seen", namespace=name)
    if outcome.crash:
        return f"tail --after {after}: {outcome.crash}"
    if not outcome.done:
        return ""
    for line in outcome.json.strip().splitlines():
        change = json.loads(line)
        if "table" in change and change["table"] == "seen":
            if change.get("after") is None:
                rows.pop(change["key"], None)
            else:
                rows[change["key"]] = change["after"]
    visible = (_rows(world, name) or {}).get("seen", {})
    return "" if rows == visible else f"`tail --after {after}` of {name} has {rows}, not {visible}"


def mirrored(world: World) -> str:
    """A mirror and a reader of the alias have the visible rows."""
    truth = world.truth
    if not truth.here.shown or (rows := _rows(world, truth.name)) is None:
        return ""
    tables = [name for name in TABLES if name in rows]
    with world.trial(), tidegate.connect(world.url(), truth.name) as gate, gate.mirror(tables) as mirror:
        view = mirror.view()
        found = _full({name: dict(view.table(name).scan()) for name in tables})
    return "" if found == rows else f"a mirror has {found}, readers {rows}"


def aliased(world: World) -> str:
    for alias, name in world.truth.aliases.items():
        if world.truth.spaces[name].shown and (rows := _rows(world, name)) is not None:
            try:
                with tidegate.connect(world.url(), alias) as gate:
                    found = _full(rows_at(gate, gate.version())[1])
            except TidegateError as error:
                return f"alias {alias}, which names {name}: {error}"
            if found != rows:
                return f"alias {alias} shows {found}, namespace {name} {rows}"
    return ""


# -- store and log ---------------------------------------------------------------------------------------


def queued(world: World) -> str:
    """Each due time is in the queue; in an hour every key times out but that of the batch."""
    truth = world.truth
    if not truth.here.shown or truth.here.damaged or truth.here.copy_of:
        return ""
    with contextlib.closing(open_store(world.url(), truth.name)) as store:
        found = store.identity()
        if found is None or not (pointer := store.pointer()).visible:
            return ""
        (entry,) = store.catalog(pointer.visible, pointer.visible)
        stored = {
            table: {
                key: value
                for _, rows in store.scan_groups_stored(
                    table, range(found.key_groups), entry.version, entry.tables[table].start
                )
                for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
                if value[:1] not in DELETES
            }
            for table in ("_due.open", "_due_at.open")
            if table in entry.tables
        }
    queue = stored.get("_due_at.open", {})
    for key, value in stored.get("_due.open", {}).items():
        due = msgspec.json.decode(value[1:], type=Due)
        group = key_group(key, found.key_groups, entry.tables["_due.open"].apart)
        times = queue.get(place_key(group, *TIMES), b"+\x90")
        parts = [each for each in msgspec.msgpack.decode(times[1:], type=list[Parts]) if each.due_us == due.queued_us]
        keys = [
            each
            for part in parts
            for number in range(part.first, part.end)
            for each in msgspec.msgpack.decode(queue[place_key(group, part.due_us, number)][1:], type=list[bytes])
        ]
        if key not in keys:
            return f"key {key!r} has a due time and is not in the queue: it never times out"
    return ""


def verified(world: World) -> str:
    truth = world.truth
    for name, space in truth.spaces.items():
        if space.damaged or not space.shown or space.content.event < 0:
            continue
        for store in truth.stores if name == truth.name else ("a",):
            with (
                contextlib.closing(open_log(world.wal, name)) as log,
                contextlib.closing(open_store(world.url(store), name)) as opened,
            ):
                findings = verify(log, opened, lambda _: None).findings
            if findings and len(world.truths) == 1:
                one = findings[0]
                return f"verify of {name}: {one.where}: expected {one.expected}, found {one.found}"
    return ""


def restorable(world: World) -> str:
    """Each backup makes the namespace again where log and store are gone, and its query continues."""
    for name, (content, shape, event, lineage) in world.truth.backups.items():
        with world.trial():
            checked = world.run("backup", f"backup-{name}", "--check")
            for (_, at), each in _everything(name):
                if at == name:
                    each()
            made = world.run("restore-from", f"backup-{name}", "--yes", "--json", namespace=name)
            if made.crash or not made.done:
                why = " ".join(made.text.split())
                return f"the backup of {name} (--check: exit {checked.code}) cannot be restored: {why}"
            shown = readable(world, name)
            if shown is None or not _same(content, shown[1][max(shown[1])]):
                return f"the backup of {name} restores {shown and _full(shown[1][max(shown[1])][1])}"
    return ""


def _everything(name: str) -> list[tuple[tuple[str, str], Callable[[], object]]]:
    from tidegate.sinks.memory import store
    from tidegate.wal import memory_log

    def lost(content: Any) -> Callable[[], object]:
        empty = vars(type(content)())
        return lambda: vars(content).update({at: each for at, each in empty.items() if at != "lock"})

    return [
        *((at, each.empty) for at, each in store._spaces.items()),
        *((at, lost(each)) for at, each in memory_log._contents.items()),
    ]


CHECKS: dict[str, Callable[[World], str]] = {
    "verify": verified,
    "queue": queued,
    "wrong batch": wrong_batches,
    "next batch": next_batch,
    "stream": streamed,
    "tail": tailed,
    "mirror": mirrored,
    "alias": aliased,
    "backup": restorable,
}
