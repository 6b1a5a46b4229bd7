"""What readers get at each version, compared with what may be true."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import tidegate
from model.commands.answers import Answers
from model.commands.truth import Content, Space, Truth
from model.commands.world import Time, World
from tidegate.errors import TidegateError
from tidegate.sinks.open_store import open_store


def rows_at(gate: Any, version: int) -> tuple[int, dict[str, dict[Any, Any]]]:
    """Return the time of a version, and its rows by table."""
    with gate.snapshot(version=version) as snapshot:
        at_us = round(snapshot.decided_at.timestamp() * 1e6)
        return at_us, {name: dict(snapshot.table(name).scan()) for name in snapshot.tables()}


def readable(world: World, name: str, *, newest: bool = False) -> tuple[str, dict[int, Any]] | None:
    """Return the uuid of a namespace, and its rows at each readable version; None: there is nothing."""
    state = (newest, name, world.space_digest(name))
    shown: tuple[str, dict[int, Any]] | None = _read.get(state, lambda: _readable(world, name, newest=newest))
    return shown


_read, _rows = Answers(), Answers()
"""What readers get, by the digest of the store, and of its part up to a version: reading the same again takes
most of the time.
"""


def _readable(world: World, name: str, *, newest: bool) -> tuple[str, dict[int, Any]] | None:
    try:
        with tidegate.connect(world.url(), name) as gate:
            visible = gate.version()
            with contextlib.closing(open_store(world.url(), name)) as opened:
                oldest = visible if newest else max(opened.pointer().horizon, 1)
                found = opened.identity()
            if found is None or not visible:
                return None
            versions = {}
            for each in range(oldest, visible + 1):
                state = world.version_digest(name, each)
                versions[each] = _rows.get(state, functools.partial(rows_at, gate, each))
            return found.uuid, versions
    except TidegateError:
        return None


def same(content: Content, shown: tuple[int, dict[str, dict[Any, Any]]]) -> bool:
    return bool(full(content.at(shown[0])) == full(shown[1]))


def full(tables: Any) -> Any:
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
        settled = truth
        for name, space in truth.spaces.items():
            found = _settled(settled, name, space, shown_by_name[name])
            if isinstance(found, str):
                why = found
                break
            settled = found
        else:
            kept.append(settled)
    if not kept:
        return why
    world.truths = tuple({repr(each): each for each in kept}.values())
    return ""


def _settled(truth: Truth, name: str, space: Space, shown: Any) -> Truth | str:
    if shown is None:
        in_flight = space.before is not None and space.before.event < 0
        if space.shown and space.content.event >= 0 and not in_flight:
            return f"readers of {name} find nothing; expected {full(space.content.at(Time.us))}"
        return truth
    uuid, versions = shown
    visible = max(versions)
    known = space.versions.get((uuid, visible))
    later = any(at == uuid and number > visible for at, number in space.versions)
    if later and not space.shown and known is not None and same(known[0], versions[visible]):
        return truth  # an older copy that was put back, until the log is applied: it may have the same rows
    if not same(space.content, versions[visible]):
        if space.before is not None and same(space.before, versions[visible]):
            return truth
        if space.copy_of:
            return truth  # nobody reads an unfinished copy; the end of its rekey compares it
        if (not space.shown or space.moved) and known is not None and same(known[0], versions[visible]):
            return truth  # an older copy that was put back, until the log is applied
        if not space.shown and later and known is None:
            return truth  # a version between that copy's and the newest one: its contents are forgotten here
        expected = full(space.content.at(versions[visible][0]))
        return f"version {visible} of {name} shows {full(versions[visible][1])}; expected {expected}"
    seen = {at: each for at, each in space.versions.items() if at[0] == uuid}
    for version, rows in versions.items():
        known = seen.get((uuid, version))
        if known is not None and version != visible and not same(known[0], rows) and not space.damaged:
            return (
                f"version {version} of {name} shows {full(rows[1])} now; before, {full(known[0].at(rows[0]))}"
            )
    if versions[visible][0] < space.time_us and space.shown and not space.damaged:
        return f"version {visible} of {name} has time {versions[visible][0]}, the one before {space.time_us}"
    seen[uuid, visible] = (space.content, space.shape)
    past = {**space.past, **{at: each for at, each in seen.items() if at[1] not in versions}}
    seen = {at: each for at, each in seen.items() if at[1] in versions}
    time_us = versions[visible][0]
    return truth.with_space(name, versions=seen, past=past, shown=True, before=None, time_us=time_us)


def newest_rows(world: World, name: str) -> Any:
    shown = readable(world, name, newest=True)
    return None if shown is None else full(shown[1][max(shown[1])][1])
