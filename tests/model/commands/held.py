"""Readers that come back with a number: streams and `tail`."""

from __future__ import annotations

import contextlib
import json
from typing import Any, NamedTuple

import pyarrow as pa

from model.commands.seen import newest_rows, readable
from model.commands.world import World
from tidegate.errors import TidegateError
from tidegate.sinks.open_store import open_store
from tidegate.spark.source import stream
from tidegate.spark.source.data_source import TidegateSource
from tidegate.wal.fold import View, fold_all, recent_version
from tidegate.wal.open_log import open_log

HELD_MAX = 2


def stream_of(world: World, name: str, table: str) -> Any:
    """Return the reader of a stream, as Spark makes it."""
    options = {"namespace": name, "table": table, "store": world.url(), "wal": world.wal, "parallelism": "1"}
    source = TidegateSource(options)
    spark: Any = stream
    reader: Any = source.streamReader(spark.StructType())
    own = [pa.field("_change_type", pa.string()), pa.field("_version", pa.int64())]
    reader._arrow = pa.schema([*source.leased.values.arrow_schema, *own])
    return reader


class Held(NamedTuple):
    """Numbers with which readers come back, and the rows that they had by then."""

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
    if not world.truth.here.shown or (rows := newest_rows(world, name)) is None:
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
    after = _after(world, name) or f"{pointer.visible}:{uuid}:{pointer.digest}"
    held = Held(name, uuid, pointer.visible, pointer.digest, json.dumps(offset), after, had)
    world.held = (*world.held, held)


def _after(world: World, name: str) -> str:
    """Return the value of ``--after`` that a `tail` prints with the visible version; '': it printed none."""
    shown = readable(world, name)
    assert shown is not None
    visible = max(shown[1])
    if visible - 1 not in shown[1]:
        return ""
    ended = world.run("tail", "--after", visible - 1, "--json", "--for", "1s", "--limit", 1, namespace=name)
    last = json.loads(ended.json.strip().splitlines()[-1]) if ended.done else {}
    return str(last.get("after") or (f"{visible}:{last['digest']}" if "digest" in last else ""))


def _history(world: World, held: Held, name: str) -> str:
    """Return in words whether the number that was held is one of this namespace's history."""
    with contextlib.closing(open_log(world.wal, name)) as log:
        state = fold_all(View(), log.decisions()).state
    decided = None if state is None else recent_version(state, held.version)
    uuid = world.uuid_of(name)
    same = (
        uuid == held.uuid
        and state is not None
        and state.namespace == held.uuid
        and (decided is None or decided.digest == held.digest)
    )
    return "" if same else " of another history"


def streamed(world: World) -> str:
    """A stream that comes back, by either name, has the visible rows in the end, or an error."""
    if not world.truth.here.shown:
        return ""
    with world.trial():
        for held in world.held:
            for name in dict.fromkeys((held.name, world.truth.name)):
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
    visible = (newest_rows(world, name) or {}).get("seen", {})
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
    visible = (newest_rows(world, name) or {}).get("seen", {})
    return "" if rows == visible else f"`tail --after {after}` of {name} has {rows}, not {visible}"
