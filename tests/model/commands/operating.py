"""What the commands on checkpoints, copies and backups do, and the losses; and what is true after them."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from typing import Any

from model.commands.seen import readable, same
from model.commands.truth import LINEAGES, Space, Truth
from model.commands.world import PLACE, Outcome, Time, World, digest_of, place_of
from model.commands.writing import healthy, there
from tidegate.committers.opening.rekeyed import moved_from
from tidegate.errors import TidegateError
from tidegate.sinks.memory import store
from tidegate.sinks.open_store import open_store
from tidegate.wal import memory_log
from tidegate.wal.fold import View, fold_all
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Decided, decode_record

# -- checkpoints --------------------------------------------------------------------------------------


def adopted(truth: Truth, _: World, outcome: Outcome) -> Truth:
    """Let the new checkpoint start after the last batch, as the command shows.

    One that a killed command had adopted already is not adopted again, and a lost store is not rebuilt.
    """
    lineage, event = truth.lineage + 1, truth.here.last + 1
    truth = truth.with_first(lineage, event)._replace(event=event)
    shown = truth.here.shown or "already; nothing was written" not in outcome.text
    return truth.with_space(truth.name, lineage=lineage, shown=shown)


def copy_name(world: World) -> str:
    return f"{world.truth.name}r"


def groups_of_copy(source: str) -> int:
    """Return the number of key groups of a copy: another one than that of its source."""
    return 4 if len(source) % 2 else 2


def rekey(world: World, *more: str) -> Outcome:
    is_first = copy_name(world) not in world.truth.spaces
    first = ("--key-groups", groups_of_copy(world.truth.name)) if is_first else ()
    return world.run("rekey", "--to", copy_name(world), *first, "--yes", *more)


def copied(truth: Truth, world: World, _: Outcome) -> Truth:
    here, name = truth.here, copy_name(world)
    kept = truth.spaces.get(name, Space()).versions
    content = here.content
    if not here.generation:  # batches that a plain restore has undone do not come again there
        content = content._replace(event=max(content.event, here.event))
    space = here._replace(content=content, copy_of=truth.name, versions=kept, damaged="", shown=True)
    return truth._replace(spaces={**truth.spaces, name: space})


def finished(truth: Truth, world: World, outcome: Outcome) -> Truth:
    name, old = copy_name(world), truth.name
    truth = copied(truth, world, outcome).with_space(name, copy_of="").with_space(old, moved=name)
    named = {alias: name if at == old else at for alias, at in truth.aliases.items()}
    return truth._replace(name=name, aliases=named)


def source_name(world: World) -> str:
    return world.truth.name[:-1]


def may_go_back(world: World) -> bool:
    source = world.truth.spaces.get(source_name(world))
    return source is not None and source.moved == world.truth.name


def back(world: World) -> Outcome:
    """Take the way back of a rekey as far as ``adopt`` looks: the copy is not dropped."""
    return world.run(
        "adopt", "--lineage", LINEAGES[world.truth.lineage], "--yes", namespace=source_name(world)
    )


def went_back(truth: Truth, world: World, _: Outcome) -> Truth:
    """Follow the query's checkpoint, which may be a new one, after the source's last batch.

    A new one starts there, as the command prints. The namespace to which the source was moved may be another
    one of that name, made by this checkpoint.
    """
    source = source_name(world)
    event = max(truth.spaces[source].event + 1, truth.first)
    if truth.lineage != truth.spaces[source].lineage:
        truth = truth.with_first(truth.lineage, event)
    had, seen = (truth.spaces[at].content.tables.get("seen", {}) for at in (source, truth.name))
    truth = truth.with_space(truth.name, copy_of="stale" if had.keys() <= seen.keys() else "")
    truth = truth.with_space(source, moved="", lineage=truth.lineage)
    with contextlib.closing(open_log(world.wal, source)) as log:
        state = fold_all(View(), log.decisions()).state
    stores = ("a",) if state is None or not state.stores else state.stores  # the copy's list is its own
    return truth._replace(name=source, event=event, stores=stores)


def relogged(truth: Truth, world: World, outcome: Outcome) -> Truth:
    here, facts = truth.here, json.loads(outcome.json)
    name, lineage = facts["to"], facts["lineage"]
    uuid = world.uuid_of(truth.name) or max(here.versions, key=lambda at: at[1], default=("", 0))[0]
    saved = here.versions.get((uuid, facts["version"]))
    if (facts["lost"] or not here.shown) and saved is not None:  # ``unnamed_loss`` compares those lost
        last = truth.firsts.get(LINEAGES.index(lineage), truth.first) + facts["last_batch"] if lineage else -1
        here = here._replace(content=saved[0], shape=saved[1], event=last, generation=0, time_us=0)
    content = here.content.alive(here.time_us)
    if facts["last_batch_unknown"]:  # the command prints that a batch that comes again counts twice
        truth = truth.with_first(truth.lineage, truth.event)
        here = here._replace(event=truth.event - 1)
        content = content._replace(event=truth.event - 1)  # a later one in it is not known to the new log
    elif here.generation:
        here = here._replace(event=max(here.event, here.undone))
    content = content._replace(event=max(content.event, here.event))  # undone batches do not come again there
    new = here._replace(
        content=content, versions={}, damaged="", shown=True, generation=0,
        lineage=LINEAGES.index(lineage) if lineage else -1,  # the command prints whom it follows: maybe none
    )  # fmt: skip
    spaces = {**truth.spaces, name: new, truth.name: here._replace(moved=name, damaged="relogged")}
    named = {alias: name if at == truth.name else at for alias, at in truth.aliases.items()}
    return truth._replace(spaces=spaces, name=name, aliases=named)


def as_printed(world: World, outcome: Outcome) -> str:
    """Keep the truths in which the query continues after the batch that a command prints; '' if any has it.

    What a killed command has decided need not show in the rows: the operator follows what is printed.
    """
    facts = json.loads(outcome.json)
    number = None if facts.get("last_batch_unknown") else facts["last_batch"]
    if number is None or facts.get("way", "new") != "new":  # the log has the others, whatever is printed
        return ""

    def has(truth: Truth) -> bool:
        if "way" in facts:  # the batch may be of the checkpoint before an adoption
            return truth.here.event in [first + number for first in truth.firsts.values()]
        if "lineage" in facts:
            return bool(truth.here.event == truth.firsts[LINEAGES.index(facts["lineage"])] + number)
        return truth.here.content.event in [first + number for first in truth.firsts.values()]

    kept = tuple(each for each in world.truths if has(each))
    last = [(each.here.event, each.here.content.event, each.firsts) for each in world.truths]
    world.truths = kept or world.truths
    return "" if kept else f"it prints batch {number} as the last one; expected one of {last}"


def unnamed_loss(name: str, world: World, outcome: Outcome) -> str:
    """Return what is wrong with the loss that a relog names.

    It saves the newest version that a store of ``name`` shows, and names those above it that the log has.
    """
    facts, decided = json.loads(outcome.json), list[int]()
    stores = [open_store(world.url(at), name) for at in world.truth.stores]
    newest = max(each.pointer().visible for each in stores if each.identity() is not None)
    if facts["version"] != newest:
        return f"it saves version {facts['version']}, and a store shows version {newest}"
    with contextlib.closing(open_log(world.wal, name)) as log, contextlib.suppress(TidegateError):
        state = fold_all(View(), log.decisions()).state
        recent = () if state is None else state.recent
        decided = [each.version for each in recent if each.version > facts["version"]]
    return "" if facts["lost"] == decided else f"it names {facts['lost']} as lost, and the log has {decided}"


def copy_log_lost(truth: Truth, world: World, _: Outcome) -> Truth:
    name = copy_name(world)
    if not truth.spaces[name].shown and len(truth.stores) == 1:  # its store was lost before
        return truth._replace(spaces={**truth.spaces, name: NOTHING})
    return truth.with_space(name, damaged="the log is gone")


def copy_relogged(truth: Truth, world: World, outcome: Outcome) -> Truth:
    copy = truth.spaces[copy_name(world)]  # a whole one's takes the query's next batch, as it would itself
    new = copy._replace(versions={}, damaged="", copy_of=copy.copy_of and truth.name)
    return truth._replace(spaces={**truth.spaces, json.loads(outcome.json)["to"]: new})


def dropped(truth: Truth, *_: object) -> Truth:
    """Let a new checkpoint make the namespace again, after the events of the one before."""
    new = Space(lineage=truth.lineage + 1, event=truth.event - 1)
    spaces = {**truth.without_source(truth.name).spaces, truth.name: new}
    return truth.with_first(truth.lineage + 1, truth.event)._replace(spaces=spaces)


# -- backups ------------------------------------------------------------------------------------------


WORK_WAS_DONE = "its backups never get a newer version"
"""The error of a backup of a moved namespace, which is made first."""


def back_up(world: World, name: str = "") -> Outcome:
    """Back up a namespace; where the folder has another one's backups, in a new folder."""
    name = name or world.truth.name
    outcome = world.run("backup", f"backup-{name}", namespace=name)
    if "give another folder" in outcome.text or "give a new folder" in outcome.text:
        outcome = world.run("backup", f"backup-{name}-new", namespace=name)
        if outcome.done or WORK_WAS_DONE in outcome.text:
            folder, world.files, world.unchanged = world.folder / f"backup-{name}", None, None
            shutil.rmtree(folder)
            folder.with_name(f"{folder.name}-new").rename(folder)
    return outcome


def backed_up(truth: Truth, world: World, _: Outcome, name: str = "") -> Truth:
    here, shown = truth.spaces[name or truth.name], readable(world, name or truth.name, newest=True)
    if here.before is not None and shown is not None and same(here.before, max(shown[1].items())[1]):
        is_batch = here.content.event == here.event > here.before.event  # it is not visible yet
        here = here._replace(content=here.before, event=here.event - is_batch)
    first = truth.firsts.get(here.lineage, truth.first)
    kept = (here.content, here.shape, here.last, here.lineage, first, here.undone if here.generation else -1)
    return truth._replace(backups={**truth.backups, name or truth.name: kept})


def restore_from(world: World, *more: object) -> Outcome:
    return world.run("restore-from", f"backup-{world.truth.name}", "--yes", "--json", *more)


def restored_from(truth: Truth, world: World, outcome: Outcome) -> Truth:
    """Take the backup's content, unless the log had all; the operator sets the checkpoint back."""
    facts = json.loads(outcome.json)
    here = truth.here
    if facts["way"] == "continue":
        return truth.with_space(truth.name, shown=True, damaged="")
    content, shape, event, lineage, first, undone = truth.backups[truth.name]
    if (
        facts.get("lineage", "") in LINEAGES and LINEAGES.index(facts["lineage"]) != lineage
    ):  # the log lost an adoption
        lineage = LINEAGES.index(facts["lineage"])
        first = truth.firsts.get(lineage, first)
    damaged = "" if facts["way"] == "new" else here.damaged
    new = here._replace(content=content, shape=shape, shown=True, damaged=damaged)
    if facts["way"] == "again":  # the decided batches after the backup are lost, and may come again
        new = new._replace(event=content.event, undone=here.event, generation=here.generation + 1)
    if facts["way"] == "new":
        new = new._replace(
            event=event,
            versions={},
            lineage=lineage,
            generation=int(undone > event),
            undone=undone,
            moved=here.moved,
            time_us=0,
        )
        truth = truth.without_source(truth.name).with_first(lineage, first)._replace(event=event + 1)
        left = re.findall(r"alias ([a-z]+) names another namespace", outcome.text)
        truth = truth._replace(aliases={at: to for at, to in truth.aliases.items() if at not in left})
    return truth._replace(spaces={**truth.spaces, truth.name: new})


# -- losses -------------------------------------------------------------------------------------------


def lose_store(world: World) -> Outcome:
    for (place, name), space in list(store._spaces.items()):
        if (place, name) == (PLACE, world.truth.name):
            space.empty()
    return Outcome(0, "")


def log_of(world: World, name: str = "") -> Any:
    return memory_log._contents[PLACE, name or world.truth.name]


def lose_log(world: World, name: str = "") -> Outcome:
    content = log_of(world, name)
    content.created, content.first = False, 0
    content.records, content.segments, content.staged_at_us = [], {}, {}
    return Outcome(0, "")


def lose_end(world: World) -> Outcome:
    content = log_of(world)
    decided = [at for at, each in enumerate(content.records) if isinstance(decode_record(each, ""), Decided)]
    content.records = content.records[: decided[-1]]
    return Outcome(0, "")


def take_copies(world: World) -> Outcome:
    world.copies = {"places": world.places(), "truths": world.truths, "uuid": world.uuid_of(world.truth.name)}
    world.copies["digest"] = digest_of(world.parts())
    return Outcome(0, "")


def put_back(world: World, *parts: str) -> Outcome:
    """Put back the copies of the query's namespace, and leave the others as they are, and a newer store.

    No driver runs while the copy of a log is put back (docs/operations.md, Copies of disks).
    """
    now, copies = world.places(), world.copies["places"]
    mixed = dict(now)
    for part in parts:
        mixed[part] = now[part] | {at: each for at, each in copies[part].items() if at[1] == world.truth.name}
    world.put_back(mixed, *parts)
    world.drivers = () if "logs" in parts else world.drivers
    return Outcome(0, "")


def older_store(truth: Truth, world: World, _: Outcome) -> Truth:
    """Until the log is applied again, readers see what they saw at the time of the copy."""
    versions = {**at_copy(world).versions, **truth.here.past, **truth.here.versions}
    return truth.with_space(truth.name, shown=False, versions=versions)


def has_older_store(world: World, at: str = "a") -> bool:
    """Whether the query's namespace in a store, the primary, is the older copy."""
    place = (place_of(at), world.truth.name)
    then = (world.copies.get("places") or {"spaces": {}})["spaces"].get(place)
    now = vars(store._spaces[place])
    if then is None or any(now[part] != then[part] for part in ("identity", "rows")):
        return False
    shows = [(each["pointer"].visible, each["pointer"].digest) for each in (now, then)]
    return shows[0] == shows[1]  # a driver may have claimed it since


def seen_in_store(truth: Truth, world: World) -> Space | None:
    """What the primary shows, where that is an earlier version that readers saw; None: it is not."""
    shown = readable(world, truth.name, newest=True)
    known = None if shown is None else truth.here.versions.get((shown[0], max(shown[1])))
    return known and truth.here._replace(content=known[0], shape=known[1], event=known[0].event, shown=True)


def at_copy(world: World) -> Space:
    """What was true of the query's namespace when the copies were made."""
    then: Truth = world.copies["truths"][0]
    return then.spaces[world.truth.name]


def older_log(truth: Truth, world: World, outcome: Outcome) -> Truth:
    if has_older_store(world):
        return older_both(truth, world, outcome)
    shown = readable(world, truth.name, newest=True)
    listed = world.copies["truths"][0].stores  # a store that was removed since is in the list again
    others = [has_older_store(world, at) for at in listed[1:]]
    if shown is None and all(others):  # the older log rebuilds the lost store
        return older_both(truth, world, outcome).with_space(truth.name, shown=False)
    return truth.with_space(truth.name, damaged="the log is an older copy")


def older_both(truth: Truth, world: World, _: Outcome) -> Truth:
    """Both are older copies, which fit: what they hold is true again, and nothing else of the namespace."""
    stores = world.copies["truths"][0].stores
    return truth._replace(spaces={**truth.spaces, truth.name: at_copy(world)}, stores=stores)


def may_put_back(world: World) -> bool:
    if "places" not in world.copies or not there(world):
        return False
    known = {world.uuid_of(world.truth.name), *(uuid for uuid, _ in world.truth.here.versions)} - {""}
    if not known <= {world.copies["uuid"]}:
        return False  # copies of another namespace are refused, and nothing else is to be seen
    then = world.copies["truths"][0].spaces.get(world.truth.name)
    return then is not None and then != world.truth.here and then.event >= 0


def may_lose_end(world: World) -> bool:
    """Whether the log has an end that an undamaged store, or an older copy of the only one, depends on.

    Of a killed command's version in front of that end, which no reader saw, the rows are not known here.
    """
    here = world.truth.here
    older = len(world.truth.stores) == 1 and "places" in world.copies and has_older_store(world)
    if healthy(world) or not (there(world) and not here.damaged and older):
        return healthy(world)
    records = [decode_record(each, "") for each in log_of(world).records]
    decided = [each.version for each in records if isinstance(each, Decided)]
    known = {version for _, version in here.versions} | {1}
    return len(decided) < 2 or decided[-2] in known


def end_lost(truth: Truth, world: World, outcome: Outcome) -> Truth:
    """Let the log bring an older store to the end that it has left (docs/operations.md, Copies of disks)."""
    here, name = truth.here, truth.name
    shown = readable(world, name, newest=True)
    with contextlib.closing(open_log(world.wal, name)) as log:
        state = fold_all(View(), log.decisions()).state
    if here.shown or shown is None or state is None or state.last_version < max(shown[1]):
        return lost("the log lost its end")(truth, world, outcome)
    if (shown[0], state.last_version) not in here.versions:  # of a command that was killed
        return lost("the log lost its end")(truth, world, outcome)
    content, shape = here.versions[shown[0], state.last_version]
    moved = moved_from(state)  # a killed finish had marked it
    follows = moved.lineage if moved else state.lineage
    lineage, batch = LINEAGES.index(follows) if follows else -1, state.last_batch
    lasts = [truth.firsts[LINEAGES.index(at)] + number for at, (_, number) in state.batches.items()]
    return truth.with_space(
        name, content=content, shape=shape, lineage=lineage, time_us=state.decided_at_us,
        event=max(lasts, default=content.event) if batch is None else truth.firsts[lineage] + batch[1],
        generation=max(here.generation, 1) if state.is_rewound else 0, moved=moved.to if moved else "",
        versions={at: known for at, known in here.versions.items() if at[1] <= state.last_version},
    )  # fmt: skip


def store_lost(truth: Truth, *_: object) -> Truth:
    if "gone" in truth.here.damaged and len(truth.stores) == 1:
        return truth._replace(spaces={**truth.spaces, truth.name: NOTHING})
    return truth.with_space(truth.name, shown=False)


NOTHING = Space(shown=False)
"""A namespace without log and any store: the next batch makes it from scratch, with a warning."""


def lost(damage: str) -> Callable[[Truth, World, Outcome], Truth]:
    def then(truth: Truth, world: World, _: Outcome) -> Truth:
        if "gone" in damage and not truth.here.shown and len(truth.stores) == 1:
            older = at_copy(world) if has_older_store(world) else seen_in_store(truth, world)
            older = NOTHING if older is None else older._replace(damaged=damage)
            return truth._replace(spaces={**truth.spaces, truth.name: older})
        damaged = "; ".join(filter(None, (truth.here.damaged, damage)))
        return truth.with_space(truth.name, damaged=damaged)

    return then


def step(seconds: float) -> Callable[[World], Outcome]:
    def act(_: World) -> Outcome:
        Time.us += round(seconds * 1e6)
        return Outcome(0, "")

    return act


def has_copy(world: World) -> bool:
    return there(world) and copy_name(world) in world.truth.spaces


def not_copied_yet(world: World) -> bool:
    return healthy(world) and len(world.truth.name) < 4


def with_ref(world: World) -> bool:
    return healthy(world) and world.truth.here.shape is not None


def copy_is_unfinished(truth: Truth, world: World) -> bool:
    return bool(truth.spaces[copy_name(world)].copy_of)


def is_whole_copy(world: World) -> bool:
    """Whether the copy is undamaged, and one of the query's namespace."""
    copy = world.truth.spaces[copy_name(world)]
    return not copy.damaged and copy.copy_of in ("", world.truth.name)
