"""What must hold after each word. A check returns what is wrong; '' if nothing is."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

import tidegate
from model.commands import truth as truths
from model.commands.advice import advised
from model.commands.answers import Answers
from model.commands.held import streamed, tailed
from model.commands.operating import adopted
from model.commands.seen import full, newest_rows, readable, rows_at, same, settle
from model.commands.truth import Content
from model.commands.world import PLACE, Time, World, place_of
from model.commands.writing import query
from tidegate.committers.operations.verify import verify
from tidegate.errors import TidegateError
from tidegate.keys.groups import key_group
from tidegate.sinks.memory import aliases, store
from tidegate.sinks.open_store import open_store
from tidegate.wal import memory_log
from tidegate.wal.fold import View, fold_all
from tidegate.wal.open_log import open_log
from tidegate.wal.staging.due_queue import TIMES, Due, Parts, place_key
from tidegate.wal.value_flags import DELETES

MOVES_ROWS = {
    *("restore", "rewind", "import", "export", "remake", "remake-key", "finish", "back", "relog"),
    *("restore-from", "older-both", "older-store", "recover", "due", "ahead", "clock-back", "lose-store"),
}
WARNED = "is the next one"
FOLLOWS = "follows the checkpoint of query "
LEAVE_OUT = "key groups are fixed for life; leave the option out"
TABLES = ("seen", "brief", "open", "closed", "ref", truths.TOTALS)

# -- the next batch -------------------------------------------------------------------------------------


def next_batch(world: World, *, later: bool) -> str:
    """The right query's next batch is accepted, or refused with a step that works; a replay is no version.

    An hour later, at the batch after it, every other key has timed out. ``later``: that one is tried, too.
    """
    with world.trial():
        if all(each.first < each.event <= each.here.last + 1 and each.here.shown for each in world.truths):
            replayed = query(world, event=world.truth.event - 1)
            if replayed.crash or (replayed.done and (wrong := settle(world, newest=True))):
                return f"after a replay of batch {world.truth.event - 1}, {replayed.crash or wrong}"
        for seconds in (0, 3600) if later else (0,):
            Time.us += seconds * 1_000_000
            outcome = query(world)
            if LEAVE_OUT in outcome.text:
                world.truths = tuple(each.with_space(each.name, is_begun=True) for each in world.truths)
                outcome = query(world)
            if follows := [each for each in world.truths if _was_adopted(each, outcome.text)]:
                world.truths = tuple(adopted(each, world, outcome) for each in follows)
                outcome = query(world)
            truth = world.truth
            lost = all(truth.event > max(_last_kept(each) + 1, each.first) for each in world.truths)
            if outcome.crash:
                return f"the next batch: {outcome.crash}"
            if not outcome.done:
                return advised(world, outcome, lambda: query(world), "the query's next batch")
            if lost and WARNED not in outcome.text:
                return (
                    f"batch {truth.event} is accepted without a word; the last one here is {truth.here.event}"
                )
            world.truths = tuple(truths.batch(each, Time.us) for each in world.truths)
            if wrong := settle(world, newest=True):
                return f"after the next batch{', an hour later' * bool(seconds)}, {wrong}"
        return verified(world) if later else ""


def _was_adopted(truth: truths.Truth, refusal: str) -> bool:
    """Whether a killed adopt had its record, as a refusal says: then its query is the right one."""
    follows = truth.here.lineage
    return truth.lineage < follows and FOLLOWS + truths.LINEAGES[follows] in refusal


def _last_kept(truth: truths.Truth) -> int:
    """Return the batch after which the next one needs no warning: a rekey and a relog leave restores out."""
    return truth.here.content.event if truth.name == "n" else truth.here.last


def wrong_batches(world: World) -> str:
    """A query whose checkpoint was replaced is refused, and so is one that starts in another namespace.

    A namespace that follows this checkpoint by batches of its own, and has no mark of a move, takes its next
    batch: an Open of the current lineage is valid (docs/protocol.md, The decision log).
    """
    truth = world.truth
    wrong: list[tuple[str, dict[str, Any]]] = []
    if 0 < truth.lineage == truth.here.lineage and truth.here.content.event >= 0 and not truth.here.damaged:
        wrong.append((f"the replaced query {truth.lineage - 1}", {"lineage": truth.lineage - 1, "first": 0}))
    for name, space in truth.spaces.items():
        moved = {each.here.moved for each in world.truths}
        may_be = [each.spaces[name] for each in world.truths if name in each.spaces]
        follows = any(at.lineage == truth.lineage and not (at.moved or at.copy_of) for at in may_be)
        written = space.content.event >= 0 and space.damaged != "relogged"
        if name not in (truth.name, *moved) and written and not follows:
            wrong.append((f"the query started in {name}", {"name": name}))
    for what, arguments in wrong:
        with world.trial():
            before = newest_rows(world, arguments.get("name", truth.name))
            outcome = query(world, **arguments)
            if outcome.crash:
                return f"{what}: {outcome.crash}"
            after = newest_rows(world, arguments.get("name", truth.name))
            if outcome.done and before != after:
                return f"{what} is accepted, with batch {truth.event}"
    return ""


# -- other readers --------------------


def mirrored(world: World) -> str:
    """A mirror has the visible rows. It reads one namespace."""
    truth = world.truth
    if not truth.here.shown:
        return ""
    key = (truth.name, world.space_digest(truth.name))
    return str(_mirrors.get(key, functools.partial(_mirrored, world, truth)))


_mirrors = Answers()


def _mirrored(world: World, truth: truths.Truth) -> str:
    if (rows := newest_rows(world, truth.name)) is None:
        return ""
    tables = [name for name in TABLES if name in rows]
    with world.trial(), tidegate.connect(world.url(), truth.name) as gate, gate.mirror(tables) as mirror:
        view = mirror.view()
        found = full({name: dict(view.table(name).scan()) for name in tables})
    return "" if found == rows else f"a mirror has {found}, readers {rows}"


def aliased(world: World) -> str:
    """Readers of an alias get the rows of the namespace that it names in one of those that may be true."""
    wrong = [_aliased(world, truth) for truth in world.truths]
    return wrong[0] if all(wrong) else ""


def _aliased(world: World, truth: truths.Truth) -> str:
    for alias, name in truth.aliases.items():
        if name not in truth.spaces:
            return f"alias {alias} names {name}, which is gone"
        if truth.spaces[name].shown and (rows := newest_rows(world, name)) is not None:
            try:
                with tidegate.connect(world.url(), alias) as gate:
                    found = full(rows_at(gate, gate.version())[1])
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
                for _, rows in store.scan_groups_stored(entry.read_at(table), range(found.key_groups))
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
        parts = [
            each
            for each in msgspec.msgpack.decode(times[1:], type=list[Parts])
            if each.due_us == due.queued_us
        ]
        keys = [
            each
            for part in parts
            for number in range(part.first, part.end)
            for each in msgspec.msgpack.decode(
                queue[place_key(group, part.due_us, number)][1:], type=list[bytes]
            )
        ]
        if key not in keys:
            return f"key {key!r} has a due time and is not in the queue: it never times out"
    return ""


def verified(world: World) -> str:
    truth = world.truth
    for name, space in truth.spaces.items():
        if space.damaged or not space.shown or space.content.event < 0 or len(world.truths) > 1:
            continue
        for at in truth.stores if name == truth.name else ("a",):
            key = (
                name,
                at,
                Time.us,
                world.log_digest(name),
                world.space_digest(name, place_of(at), whole=True),
            )
            if wrong := _verified.get(key, functools.partial(_findings, world, name, at)):
                return str(wrong)
    return ""


_verified = Answers()


def _findings(world: World, name: str, at: str) -> str:
    with (
        contextlib.closing(open_log(world.wal, name)) as log,
        contextlib.closing(open_store(world.url(at), name)) as opened,
    ):
        state = fold_all(View(), log.decisions()).state
        if at != "a" and (state is None or at not in state.stores):
            return ""  # of the namespace that this one moved to
        findings = verify(log, opened, lambda _: None).findings
    return next(
        (f"verify of {name}: {one.where}: expected {one.expected}, found {one.found}" for one in findings), ""
    )


def restorable(world: World) -> str:
    """Each backup is whole, and makes the namespace again where log and store are gone.

    It has the rows of one of those states that may be true: they may differ in the time at which rows expire.
    """
    wrong = [_restorable_of(world, truth) for truth in world.truths]
    return wrong[0] if all(wrong) else ""


def _restorable_of(world: World, truth: truths.Truth) -> str:
    for name, (content, *rest) in truth.backups.items():
        folder = world.files_of(f"backup-{name}")
        if wrong := _whole_backups.get((name, folder), functools.partial(_whole_backup, world, name)):
            return str(wrong)
        passed = tuple(key for key, due in content.dues.items() if due <= Time.us)
        alive = (repr(content.alive(Time.us)), passed, repr(rest), repr(truth.stores))
        others = sorted((place, at) for place, at in store._spaces if at != name)
        key = (name, folder, alive, repr(aliases._places), *others)
        if wrong := _restorables.get(key, functools.partial(_restorable, world, name, content)):
            return str(wrong)
    return ""


_whole_backups, _restorables = Answers(), Answers()
"""By the name, the backup's files, the part of its content that lives now, the aliases, and the names of the
other namespaces: the namespace itself is emptied before it is restored, and no other one is read.
"""


def _whole_backup(world: World, name: str) -> str:
    checked = world.run("backup", f"backup-{name}", "--check")
    return "" if checked.done else f"backup --check of {name}: {' '.join(checked.text.split())}"


def _restorable(world: World, name: str, content: Content) -> str:
    with world.trial():
        for (_, at), each in _everything(name):
            if at == name:
                each()
        made = world.run("restore-from", f"backup-{name}", "--yes", "--json", namespace=name)
        if made.crash or not made.done:
            return f"the backup of {name} cannot be restored: {' '.join(made.text.split())}"
        shown = readable(world, name)
        if shown is None or not same(content, shown[1][max(shown[1])]):
            return f"the backup of {name} restores {shown and full(shown[1][max(shown[1])][1])}"
    return ""


def _everything(name: str) -> list[tuple[tuple[str, str], Callable[[], object]]]:
    def lost(content: Any) -> Callable[[], object]:
        empty = vars(type(content)())
        return lambda: vars(content).update({at: each for at, each in empty.items() if at != "lock"})

    return [
        *((at, each.empty) for at, each in store._spaces.items() if PLACE in at[0]),
        *((at, lost(each)) for at, each in memory_log._contents.items() if PLACE in at[0]),
    ]


EVERYTHING = ("logs", "spaces", "aliases", "truths", "time")
CHECKS: dict[str, tuple[Callable[..., str], tuple[str, ...]]] = {
    "verify": (verified, EVERYTHING),
    "queue": (queued, ("spaces", "truths")),
    "wrong batch": (wrong_batches, EVERYTHING),
    "next batch": (next_batch, (*EVERYTHING, "files")),
    "stream": (streamed, (*EVERYTHING, "held")),
    "tail": (tailed, (*EVERYTHING, "held")),
    "mirror": (mirrored, ("spaces", "aliases", "truths", "time")),
    "alias": (aliased, ("spaces", "aliases", "truths", "time")),
    "backup": (restorable, (*EVERYTHING, "files")),
}
"""Each check, with the parts of the world that it depends on (``World.parts``)."""
_checked = Answers()


def answer(world: World, name: str, parts: Mapping[str, str], *, later: bool) -> str:
    """Return what a check finds: it is run once in all states that have the same parts.

    ``later``: a batch follows an hour after the next one, if the word has a letter that moves rows.
    """
    check, looks_at = CHECKS[name]
    if name == "next batch":
        later = later and not MOVES_ROWS.isdisjoint(world.word)
        check = functools.partial(check, later=later)

    def run() -> str:
        try:
            return check(world)
        except TidegateError as error:
            return f"{type(error).__name__}: {error}"

    return str(_checked.get((name, later, *(parts[part] for part in looks_at)), run))
