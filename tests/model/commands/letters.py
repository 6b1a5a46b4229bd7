"""The alphabet: for each letter when it may come, what it does, and what is true after it succeeded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from model.commands import truth as truths
from model.commands.query import KEY_GROUPS, Driver
from model.commands.truth import LINEAGES, Content, Shape, Space, Truth
from model.commands.world import Outcome, Time, World
from tidegate.wal.record import Decided, decode_record

class Letter(NamedTuple):
    """``then`` gives what is true after ``act`` was done, of what was true before."""

    may: Callable[[World], bool]
    act: Callable[[World], Outcome]
    then: Callable[[Truth, World, Outcome], Truth] = lambda truth, *_: truth


def _always(_: World) -> bool:
    return True


def _there(world: World) -> bool:
    """Whether the query's namespace has a version, as far as the operator knows."""
    return world.truth.name in world.truth.spaces and world.truth.here.content.event >= 0


def _healthy(world: World) -> bool:
    here = world.truth.here
    return _there(world) and here.shown and not here.damaged


# -- the query ----------------------------------------------------------------------------------------


def query(
    world: World,
    *,
    name: str = "",
    event: int | None = None,
    lineage: int | None = None,
    first: int | None = None,
    drops: bool = False,
    shape: Shape | None = None,
    then: Callable[[Driver], object] = lambda _: None,
) -> Outcome:
    """Start the query, give its next batch, and stop it; the driver stays as a zombie."""
    known = world.truth
    event = known.event if event is None else event
    lineage = known.lineage if lineage is None else lineage
    first = known.first if first is None else first
    space = known.spaces.get(name or known.name, Space())
    shape = shape or space.shape or (Shape() if space.is_new else None)
    options: dict[str, Any] = {"key_groups": KEY_GROUPS} if space.is_new else {}
    if shape is not None and shape.groups and space.shape is None:
        options["table_key_groups"] = {"ref": shape.groups}

    def run() -> None:
        driver = Driver.opened(world.wal, world.urls, name or known.name, lineage, **options)
        driver.batch(event - first, event, shape, drops=drops)
        then(driver)
        world.drivers = (*world.drivers[-1:], driver)

    return world.attempt(run)


def _batched(truth: Truth, world: World, _: Outcome) -> Truth:
    return truths.batch(truth, Time.us)


def _dropped(truth: Truth, world: World, _: Outcome) -> Truth:
    here, event = truth.here, truth.event
    content = here.content.without("ref")._replace(event=event)
    changed = {"content": content, "shape": None, "event": event, "generation": 0, "lineage": truth.lineage}
    return truth._replace(event=event + 1).with_space(truth.name, shown=True, **changed)


OTHER_GROUPS, OTHER_KEY = Shape("string", "n", 1), Shape("int", "m")
"""The forms in which a dropped table is made again."""


def _may_remake(world: World) -> bool:
    return _healthy(world) and world.truth.here.shape is None


def _remade(truth: Truth, shape: Shape) -> Truth:
    return truths.batch(truth.with_space(truth.name, shape=shape), Time.us)


def _load(world: World, *, replace: bool) -> Outcome:
    known = world.truth
    shape = known.here.shape

    def run() -> None:
        driver = Driver.opened(world.wal, world.urls, known.name, None)
        driver.load(f"load-{known.loads}", shape or Shape(), known.loads, replace=replace)

    return world.attempt(run)


def _loaded(truth: Truth, _: World, __: Outcome, *, replace: bool) -> Truth:
    here = truth.here
    shape = here.shape or Shape()
    key, row = shape.row("y" if replace else "x", truth.loads)
    content = here.content.with_rows("ref", {key: row}, replace=replace)
    truth = truth._replace(loads=truth.loads + 1)
    return truth.with_space(truth.name, content=content, shape=shape, shown=True)


def _zombie(world: World) -> Outcome:
    """Let the driver before the last one commit its next batch, under the name that it had."""
    driver, known = world.drivers[0].copy(), world.truth
    at = driver.coordinator
    decided = at.folded.last_batch
    batch_id = 0 if decided is None else decided[1] + 1
    space = known.spaces.get(at.endpoints.namespace, Space())

    return world.attempt(lambda: driver.batch(batch_id, batch_id + known.first, space.shape))


# -- versions -----------------------------------------------------------------------------------------


def _older(world: World) -> int:
    """The newest version that readers had before the visible one; 0: none, or its content is not known."""
    known = world.truth.here.versions
    numbers = sorted(number for uuid, number in known if uuid == _uuid(world, world.truth.name))
    return numbers[-2] if len(numbers) > 1 else 0


def _uuid(world: World, name: str) -> str:
    from model.commands.checks import identity

    found = identity(world, name)
    return found.uuid if found else ""


def _restored(truth: Truth, world: World, _: Outcome, *, reprocess: bool = False) -> Truth:
    here = truth.here
    content, shape = here.versions[_uuid(world, truth.name), _older(world)]
    truth = truth.with_space(truth.name, content=content, shape=shape, shown=True)
    if not reprocess:
        return truth
    truth = truth._replace(event=content.event + 1)
    return truth.with_space(truth.name, generation=here.generation + 1, event=content.event)


def _exported(truth: Truth, world: World, outcome: Outcome) -> Truth:
    number = json.loads(outcome.json)["version"]
    content, shape = truth.here.versions[_uuid(world, truth.name), number]
    folder = f"export-{len(truth.exports)}"
    return truth._replace(exports=(*truth.exports, (folder, content, shape)))


def _imported(truth: Truth, _: World, __: Outcome) -> Truth:
    _, content, shape = truth.exports[-1]
    here = truth.here
    tables = {**here.content.tables, **content.tables}
    dues = content.dues if "open" in content.tables else here.content.dues
    merged = Content(tables, dues, here.content.event)
    truth = truth._replace(loads=truth.loads + 1)
    return truth.with_space(truth.name, content=merged, shape=shape or here.shape, shown=True)


def _renamed(truth: Truth, _: World, __: Outcome) -> Truth:
    here = truth.here
    assert here.shape is not None
    old, new = here.shape.column, f"{here.shape.column}x"
    rows = {
        key: ({new if name == old else name: value for name, value in row.items()}, until)
        for key, (row, until) in here.content.tables.get("ref", {}).items()
    }
    content = here.content._replace(tables={**here.content.tables, "ref": rows})
    return truth.with_space(truth.name, content=content, shape=here.shape._replace(column=new), shown=True)


def _widened(truth: Truth, world: World, _: Outcome) -> Truth:
    here = truth.here
    assert here.shape is not None
    return truths.batch(truth.with_space(truth.name, shape=here.shape._replace(more=True)), Time.us)


# -- checkpoints --------------------------------------------------------------------------------------


def _adopted(truth: Truth, _: World, __: Outcome) -> Truth:
    """Let the new checkpoint start after the last batch, as the command shows."""
    lineage, event = truth.lineage + 1, truth.here.event + 1
    truth = truth._replace(lineage=lineage, event=event, first=event)
    return truth.with_space(truth.name, lineage=lineage, shown=True)


def copy_name(world: World) -> str:
    return f"{world.truth.name}r"


def _rekey(world: World, *more: str) -> Outcome:
    groups = 4 if len(world.truth.name) % 2 else 2
    first = ("--key-groups", groups) if copy_name(world) not in world.truth.spaces else ()
    return world.run("rekey", "--to", copy_name(world), *first, "--yes", *more)


def _copied(truth: Truth, world: World, _: Outcome) -> Truth:
    here, name = truth.here, copy_name(world)
    kept = truth.spaces.get(name, Space()).versions
    space = here._replace(copy_of=truth.name, versions=kept, damaged="", shown=True)
    return truth._replace(spaces={**truth.spaces, name: space})


def _finished(truth: Truth, world: World, outcome: Outcome) -> Truth:
    name, old = copy_name(world), truth.name
    truth = _copied(truth, world, outcome).with_space(name, copy_of="").with_space(old, moved=name)
    named = {alias: name if at == old else at for alias, at in truth.aliases.items()}
    return truth._replace(name=name, aliases=named)


def source_name(world: World) -> str:
    return world.truth.name[:-1]


def _may_go_back(world: World) -> bool:
    source = world.truth.spaces.get(source_name(world))
    return source is not None and source.moved == world.truth.name


def _back(world: World) -> Outcome:
    """Take the way back of a rekey as far as ``adopt`` looks: the copy is not dropped."""
    return world.run("adopt", "--lineage", LINEAGES[world.truth.lineage], "--yes", namespace=source_name(world))


def _went_back(truth: Truth, world: World, _: Outcome) -> Truth:
    source = source_name(world)
    event = truth.spaces[source].event + 1
    truth = truth.with_space(source, moved="").with_space(truth.name, copy_of="stale")
    return truth._replace(name=source, event=event)


def _relogged(truth: Truth, world: World, outcome: Outcome) -> Truth:
    here, name = truth.here, json.loads(outcome.json)["to"]
    new = here._replace(versions={}, damaged="", shown=True, generation=0)
    spaces = {**truth.spaces, name: new, truth.name: here._replace(moved=name, damaged="relogged")}
    named = {alias: name if at == truth.name else at for alias, at in truth.aliases.items()}
    return truth._replace(spaces=spaces, name=name, aliases=named)


def _copy_log_lost(truth: Truth, world: World, _: Outcome) -> Truth:
    return truth.with_space(copy_name(world), damaged="the log is gone")


def _copy_relogged(truth: Truth, world: World, outcome: Outcome) -> Truth:
    copy = truth.spaces[copy_name(world)]
    new = copy._replace(versions={}, damaged="", copy_of=truth.name)
    return truth._replace(spaces={**truth.spaces, json.loads(outcome.json)["to"]: new})


# -- backups ------------------------------------------------------------------------------------------


def _backed_up(truth: Truth, world: World, _: Outcome, name: str = "") -> Truth:
    here = truth.spaces[name or truth.name]
    kept = (here.content, here.shape, here.event, here.lineage)
    return truth._replace(backups={**truth.backups, name or truth.name: kept})


def _restore_from(world: World, *more: object) -> Outcome:
    return world.run("restore-from", f"backup-{world.truth.name}", "--yes", "--json", *more)


def _restored_from(truth: Truth, world: World, outcome: Outcome) -> Truth:
    """Take the backup's content, unless the log had all; the operator sets the checkpoint back."""
    facts = json.loads(outcome.json)
    here = truth.here
    if facts["way"] == "continue":
        return truth.with_space(truth.name, shown=True, damaged="")
    content, shape, event, _ = truth.backups[truth.name]
    damaged = "" if facts["way"] == "new" else here.damaged
    new = here._replace(content=content, shape=shape, shown=True, damaged=damaged)
    if facts["way"] == "new":
        new = new._replace(event=event, versions={}, lineage=truth.lineage, generation=0, moved=here.moved)
        truth = truth._replace(event=event + 1)
    return truth._replace(spaces={**truth.spaces, truth.name: new})


# -- losses -------------------------------------------------------------------------------------------


def _lose_store(world: World) -> Outcome:
    for (place, name), space in list(_spaces(world)):
        if name == world.truth.name and not place.endswith("-b"):
            space.empty()
    return Outcome(0, "")


def _spaces(world: World) -> Any:
    from tidegate.sinks.memory import store

    return store._spaces.items()


def _log(world: World, name: str = "") -> Any:
    from tidegate.wal import memory_log

    return next(log for at, log in memory_log._contents.items() if at[1] == (name or world.truth.name))


def _lose_log(world: World, name: str = "") -> Outcome:
    content = _log(world, name)
    content.created, content.first = False, 0
    content.records, content.segments, content.staged_at_us = [], {}, {}
    return Outcome(0, "")


def _lose_end(world: World) -> Outcome:
    content = _log(world)
    decided = [at for at, each in enumerate(content.records) if isinstance(decode_record(each, ""), Decided)]
    content.records = content.records[: decided[-1]]
    return Outcome(0, "")


def _take_copies(world: World) -> Outcome:
    world.copies = {"places": world.places(), "truths": world.truths}
    return Outcome(0, "")


def _put_back(world: World, *parts: str) -> Outcome:
    now = world.places()
    world.put_back({**world.copies["places"], "files": now["files"]}, *parts)
    return Outcome(0, "")


def _older_store(truth: Truth, world: World, _: Outcome) -> Truth:
    then = world.copies["truths"][0].spaces.get(truth.name)
    if then is None or not then.shown:
        return truth.with_space(truth.name, shown=False)
    return truth.with_space(truth.name, shown=False, damaged=truth.here.damaged)


def _older_log(truth: Truth, world: World, _: Outcome) -> Truth:
    return truth.with_space(truth.name, damaged="the log is an older copy")


def _older_both(truth: Truth, world: World, _: Outcome) -> Truth:
    """Both are older copies, which fit: what they hold is true again, and nothing else is known."""
    then: Truth = world.copies["truths"][0]
    return then._replace(
        name=truth.name if truth.name in then.spaces else then.name,
        event=truth.event, lineage=truth.lineage, first=truth.first, backups=truth.backups,
        exports=truth.exports, loads=truth.loads,
    )  # fmt: skip


def _may_put_back(world: World) -> bool:
    if "places" not in world.copies or not _there(world):
        return False
    then = world.copies["truths"][0].spaces.get(world.truth.name)
    return then is not None and then != world.truth.here and then.event >= 0


def _store_lost(truth: Truth, *_: object) -> Truth:
    if "gone" in truth.here.damaged:
        return truth.with_space(truth.name, **NOTHING)
    return truth.with_space(truth.name, shown=False)


NOTHING: dict[str, Any] = {**Space()._asdict(), "shown": False}
"""A namespace without log and store: the next batch makes it from scratch, with a warning."""


def _lost(damage: str) -> Callable[[Truth, World, Outcome], Truth]:
    def then(truth: Truth, *_: object) -> Truth:
        if "gone" in damage and not truth.here.shown:
            return truth.with_space(truth.name, **NOTHING)
        damaged = "; ".join(filter(None, (truth.here.damaged, damage)))
        return truth.with_space(truth.name, damaged=damaged)

    return then


def _step(seconds: float) -> Callable[[World], Outcome]:
    def act(_: World) -> Outcome:
        Time.us += round(seconds * 1e6)
        return Outcome(0, "")

    return act


HELD_MAX = 2


def _hold(world: World) -> Outcome:
    from model.commands.checks import hold

    hold(world)
    return Outcome(0, "")


def _trim(world: World) -> Outcome:
    Time.us += 9_000_000_000
    return query(world, then=lambda driver: driver.trim())


def _has_copy(world: World) -> bool:
    return _there(world) and copy_name(world) in world.truth.spaces


def _not_copied_yet(world: World) -> bool:
    return _healthy(world) and len(world.truth.name) < 4


def _with_ref(world: World) -> bool:
    return _healthy(world) and world.truth.here.shape is not None


def _run(*words: object) -> Callable[[World], Outcome]:
    return lambda world: world.run(*words)


LETTERS: dict[str, Letter] = {
    # the query, and what else its process writes
    "batch": Letter(_always, query, _batched),
    "load": Letter(_there, lambda w: _load(w, replace=False), lambda *t: _loaded(*t, replace=False)),
    "replace": Letter(_there, lambda w: _load(w, replace=True), lambda *t: _loaded(*t, replace=True)),
    "drop-table": Letter(_with_ref, lambda w: query(w, drops=True), _dropped),
    "remake": Letter(
        _may_remake, lambda w: query(w, shape=OTHER_GROUPS), lambda t, *_: _remade(t, OTHER_GROUPS)
    ),
    "remake-key": Letter(
        _may_remake, lambda w: query(w, shape=OTHER_KEY), lambda t, *_: _remade(t, OTHER_KEY)
    ),
    "widen": Letter(
        lambda w: _with_ref(w) and not w.truth.here.shape.more,  # type: ignore[union-attr]
        lambda w: query(w, shape=w.truth.here.shape._replace(more=True)),  # type: ignore[union-attr]
        _widened,
    ),
    "zombie": Letter(lambda w: len(w.drivers) > 1, _zombie),
    "trim": Letter(_there, _trim, _batched),
    # versions
    "restore": Letter(
        lambda w: _there(w) and _older(w) > 0,
        lambda w: w.run("restore", "--to", _older(w), "--yes"),
        _restored,
    ),
    "rewind": Letter(
        lambda w: _there(w) and _older(w) > 0 and w.truth.lineage == 0,
        lambda w: w.run("restore", "--to", _older(w), "--reprocess", "--yes"),
        lambda *t: _restored(*t, reprocess=True),
    ),
    "rename": Letter(
        lambda w: _with_ref(w) and len(w.truth.here.shape.column) < 3,  # type: ignore[union-attr]
        lambda w: w.run("schema", "rename", "ref", w.truth.here.shape.column, f"{w.truth.here.shape.column}x"),  # type: ignore[union-attr]
        _renamed,
    ),
    "export": Letter(
        _healthy,
        lambda w: w.run("export", f"export-{len(w.truth.exports)}", "--json"),
        _exported,
    ),
    "export-old": Letter(
        lambda w: _healthy(w) and _older(w) > 0,
        lambda w: w.run("export", f"export-{len(w.truth.exports)}", "--at", _older(w), "--json"),
        _exported,
    ),
    "import": Letter(
        lambda w: _there(w) and bool(w.truth.exports),
        lambda w: w.run("import", w.truth.exports[-1][0], "--token", f"import-{w.truth.loads}", "--yes"),
        _imported,
    ),
    "import-rekey": Letter(
        lambda w: _there(w) and bool(w.truth.exports),
        lambda w: w.run("import", w.truth.exports[-1][0], "--token", f"rekey:ab:{w.truth.loads}", "--yes"),
        _imported,
    ),
    # checkpoints, and namespaces that take another's place
    "adopt": Letter(
        lambda w: _there(w) and w.truth.lineage < 3,
        lambda w: w.run("adopt", "--lineage", LINEAGES[w.truth.lineage + 1], "--yes"),
        _adopted,
    ),
    "rekey": Letter(_not_copied_yet, _rekey, _copied),
    "finish": Letter(lambda w: _has_copy(w) and _healthy(w), lambda w: _rekey(w, "--finish"), _finished),
    "back": Letter(_may_go_back, _back, _went_back),
    "drop-copy": Letter(
        _has_copy,
        lambda w: w.run("drop", "--yes", namespace=copy_name(w)),
        lambda t, w, _: t.without_space(copy_name(w)),
    ),
    "lose-copy-log": Letter(_has_copy, lambda w: _lose_log(w, copy_name(w)), _copy_log_lost),
    "relog-copy": Letter(
        lambda w: _has_copy(w) and bool(w.truth.spaces[copy_name(w)].damaged),
        lambda w: w.run("relog", "--yes", "--json", namespace=copy_name(w)),
        _copy_relogged,
    ),
    "relog": Letter(
        lambda w: _there(w) and len(w.truth.name) < 5,
        lambda w: w.run("relog", "--yes", "--json"),
        _relogged,
    ),
    "drop": Letter(
        _there,
        lambda w: w.run("drop", "--yes"),
        lambda t, *_: t.without_space(t.name)._replace(
            lineage=t.lineage + 1, first=t.event, spaces={**t.spaces, t.name: Space(lineage=t.lineage + 1, event=t.event - 1)}
        ),
    ),
    "alias": Letter(
        _healthy, _run("alias", "set", "live"),
        lambda t, *_: t._replace(aliases={**t.aliases, "live": t.name}),
    ),
    # backups
    "backup": Letter(_there, lambda w: w.run("backup", f"backup-{w.truth.name}"), _backed_up),
    "backup-copy": Letter(
        lambda w: _has_copy(w) and not w.truth.spaces[copy_name(w)].damaged,
        lambda w: w.run("backup", f"backup-{copy_name(w)}", namespace=copy_name(w)),
        lambda t, w, o: _backed_up(t, w, o, copy_name(w)),
    ),
    "cron": Letter(
        lambda w: bool(w.truth.spaces["n"].moved) and not w.truth.spaces["n"].damaged,
        lambda w: w.run("backup", "backup-n", namespace="n"),
    ),
    "restore-from": Letter(lambda w: w.truth.name in w.truth.backups, _restore_from, _restored_from),
    # stores and their losses
    "add-store": Letter(
        lambda w: _healthy(w) and len(w.truth.stores) == 1,
        lambda w: w.run("store", "add", f"b={w.url('b')}", stores=[f"a={w.url()}"]),
        lambda t, *_: t._replace(stores=("a", "b")),
    ),
    "remove-store": Letter(
        lambda w: _healthy(w) and len(w.truth.stores) == 2,
        lambda w: w.run("store", "remove", "b"),
        lambda t, *_: t._replace(stores=("a",)),
    ),
    "lose-store": Letter(_healthy, _lose_store, _store_lost),
    "lose-log": Letter(
        lambda w: _there(w) and "log" not in w.truth.here.damaged, _lose_log, _lost("the log is gone")
    ),
    "lose-end": Letter(_healthy, _lose_end, _lost("the log lost its end")),
    "copies": Letter(_healthy, _take_copies),
    "older-store": Letter(_may_put_back, lambda w: _put_back(w, "spaces"), _older_store),
    "older-log": Letter(_may_put_back, lambda w: _put_back(w, "logs"), _older_log),
    "older-both": Letter(_may_put_back, lambda w: _put_back(w, "logs", "spaces"), _older_both),
    # readers, time and upkeep
    "hold": Letter(lambda w: _healthy(w) and len(w.held) < HELD_MAX, _hold),
    "ahead": Letter(_always, _step(3500)),
    "clock-back": Letter(_always, _step(-3500)),
    "due": Letter(_always, _step(70)),
    "recover": Letter(_there, _run("recover"), lambda t, *_: t.with_space(t.name, shown=True)),
    "repair": Letter(_healthy, _run("repair")),
    "vacuum": Letter(_healthy, _run("vacuum")),
}  # fmt: skip
