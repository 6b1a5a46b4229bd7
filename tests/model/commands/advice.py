"""The next step that an error prints: it is run as printed, and must lead out."""

from __future__ import annotations

import datetime
import json
import re
import shlex
import shutil
from collections.abc import Callable

from model.commands.answers import Answers
from model.commands.operating import copy_name, finished, has_copy, relogged, restored_from
from model.commands.truth import LINEAGES, Truth, batch
from model.commands.world import Outcome, Time, World
from model.commands.writing import query

COMMAND = re.compile(r"`tidegate ([^`]+)`")
NAMESPACE = re.compile(r"set namespace='([^']+)'")
RESTART = "stop this one, or restart it if it is the one that should run"
STORE = re.compile("is not given: give it as ([a-z]+)=URL")
STEPS_MAX = 12
RESTARTS_MAX = 3
AFTER_VERSION = "run this command after its next version"
CLOCKS = re.compile(r"Set the clocks right .* a restart after ([0-9: -]+) UTC continues", re.DOTALL)
"""The clocks are right at the next letter, or time passes (docs/operations.md, Wrong clocks)."""
NEXT_BATCH = re.compile("start the query with this checkpoint, unchanged; its next batch is ([0-9]+)")
OTHER_NAME = "restore under a --namespace that does not exist yet"
"""The query continues there."""
OTHER_BACKUP = "give a --namespace that does not exist yet"
"""The backup is of an earlier namespace of this name."""
NO_WAY = "no log can rebuild this store"
"""Without a backup it is made again from the input (docs/operations.md, Rebuild from the input)."""


def followed(world: World, outcome: Outcome, again: Callable[[], Outcome], letter: str) -> str:
    """Follow the advice of a refused letter, and take it back: once in each state for the same steps."""
    text = outcome.text
    steps = (*COMMAND.findall(text), *NAMESPACE.findall(text))
    ends = ("command again" in text, bool(CLOCKS.search(text)), NO_WAY in text)
    if not steps and not any(ends):
        return ""
    trimmed = any(each.startswith("trim") for each in world.word)
    key = (steps, ends, letter if any(ends) else "", trimmed, *world.parts().values())

    def follow() -> str:
        with world.trial():
            return advised(world, outcome, again, letter)

    return str(_followed.get(key, follow))


_followed = Answers()


def advised(
    world: World, outcome: Outcome, again: Callable[[], Outcome], what: str, *, must: bool = False
) -> str:
    """Follow the advice of a refusal until the refused call is accepted; '' if it is, or none is given.

    The commands of one message are run in their order, and the call after each of them. A command of the
    operator may stay refused, with nothing left to do, unless its message asks to run it again, or with
    ``must``. It is accepted, too, if the advice is the same command with other options, and that works.
    """
    own = what.partition("!")[0]
    given = must or what.startswith("the query")  # a step has to be given, and not one that removes the rows
    must = given or "command again" in outcome.text
    tried: list[str] = []
    refused: dict[str, str] = {}
    refused_text = ""
    last, worked = outcome, False
    waiting, names = COMMAND.findall(outcome.text), NAMESPACE.findall(outcome.text)
    steps = 0
    while (waiting or names) and (steps := steps + 1) <= STEPS_MAX:
        if names:
            name = names.pop(0)
            tried.append(f"namespace={name!r}")
            world.truths = tuple(_moved_to(each, name, world, outcome) for each in world.truths)
        else:
            line = waiting.pop(0)
            words = _filled(world, line)
            if words is None or shlex.join(words) in tried or _destroys(world, words):
                continue
            tried.append(shlex.join(words))
            world.word = (*world.word, "advice")
            before = world.parts()
            done = _run(world, words)
            if AFTER_VERSION in done.text:
                done = _after_batches(world, words)
            last = done
            if done.crash or OTHER_NAME in done.text:
                return _ended(world, words, done, f"{what}: {_short(outcome)}; `{tried[-1]}`")
            if not done.done:
                refused_text += f"; `{tried[-1]}`: {_short(done)}"
                retried = {} if world.parts() == before else refused  # it did a part of its work
                tried = [each for each in tried if each not in retried]
                waiting = [*COMMAND.findall(done.text), *waiting, *retried.values()]
                refused = {**({} if retried else refused), tried[-1]: line}
                continue
            worked = words[0] != "drop" or not waiting  # a step alone, or the first one of several
            tried = [each for each in tried if each not in refused]  # they may be accepted now
            waiting, refused = [*waiting, *refused.values()], {}
            saves_more = words[0] == "relog" and _saves_more(world, done)
            world.truths = tuple(_known_after(each, words, done, world) for each in world.truths)
            if saves_more or (not must and not (words[0] == "drop" and waiting)) or words[0] == own:
                return ""
        if not must and not waiting:
            return ""
        last = again()
        if last.crash:
            return f"{what} after {tried}: {last.crash}"
        if last.done:
            return ""
        if CLOCKS.search(last.text):
            break
        waiting += [each for each in COMMAND.findall(last.text) if each not in waiting]
        names += [each for each in NAMESPACE.findall(last.text) if f"namespace={each!r}" not in tried]
    if waits := CLOCKS.search(f"{last.text}\n{outcome.text}"):
        at = datetime.datetime.fromisoformat(f"{waits[1]}+00:00")
        Time.us = max(Time.us, round(at.timestamp() * 1e6) + 1_000_000)
        last = again()
        return "" if last.done else f"{what} is refused after {waits[1]}, too: {_short(last)}"
    if (worked and not must) or (not tried and not given):
        return ""
    backed_up = world.truth.name in world.truth.backups and OTHER_BACKUP not in refused_text
    if NO_WAY in outcome.text + refused_text and not backed_up:
        return _made_again(world, what)
    ends = f"{tried}{refused_text}; the last: {_short(last)}"
    return f"{what}: {_short(outcome)}; its advice does not lead out: {ends}"


def _saves_more(world: World, done: Outcome) -> bool:
    """Whether a relog saved a newer version than the operator knows, of a store that no older copy has."""
    saved = json.loads(done.json)["version"]
    return all(
        saved > max((number for _, number in each.here.versions), default=saved) for each in world.truths
    )


def _run(world: World, words: list[str]) -> Outcome:
    """Run a command, and again if its message asks for that, or for a store that the log lists."""
    done = world.run(*words)
    store = STORE.search(done.text)
    if store is not None and store[1] not in world.truth.stores:
        stores = (*world.truth.stores, store[1])
        world.truths = tuple(each._replace(stores=stores) for each in world.truths)
        done = world.run(*words)
    for _ in range(RESTARTS_MAX):  # each takes one epoch more: a store may be ahead of an older log by some
        if RESTART in done.text:
            done = world.run(*words)
    return done


def _ended(world: World, words: list[str], done: Outcome, where: str) -> str:
    """Return what is wrong where a command crashed, or has to be run for another name."""
    if done.crash:
        return f"{where}: {done.crash}"
    made = world.run(*words, "--namespace", f"{world.truth.name}x")
    return "" if made.done else f"{where}, under another name: {_short(made)}"


def _after_batches(world: World, words: list[str]) -> Outcome:
    """Let the query make a version, and run the command: a batch that is in the restored state makes none."""
    for _ in range(STEPS_MAX):
        query(world)
        world.truths = tuple(batch(each, Time.us) for each in world.truths)
    return world.run(*words)


def _made_again(world: World, what: str) -> str:
    """Rebuild from the input: the namespace is dropped, and a query on a new checkpoint makes it again."""
    known = world.truth
    if not any(letter.startswith("trim") for letter in world.word):
        return f"{what}: it says that the log was trimmed, which it never was"
    done = world.run("drop", "--namespace", known.name, "--force", "--yes")
    if done.done:
        done = query(world, lineage=known.lineage + 1, event=0, first=0)
    return "" if done.done else f"{what}: no rebuild from the input: {_short(done)}"


def _moved_to(truth: Truth, name: str, world: World, outcome: Outcome) -> Truth:
    """Let the query continue in a namespace; a copy that it was moved to is whole."""
    if name == copy_name(world) and has_copy(world) and truth.spaces[name].copy_of == truth.name:
        return finished(truth, world, outcome)
    return truth._replace(name=name)


def _destroys(world: World, words: list[str]) -> bool:
    """Whether a command would remove the query's rows: that is no way out."""
    here = world.truth.here
    of = words[words.index("--namespace") + 1] if "--namespace" in words else world.truth.name
    return words[0] == "drop" and of == world.truth.name and here.shown and here.content.event >= 0


def _known_after(truth: Truth, words: list[str], done: Outcome, world: World) -> Truth:
    """What is true after an advised command, as far as the query's next batch depends on it."""
    if words[0] == "relog":
        return relogged(truth, world, done)
    if words[0] == "rebuild-checkpoint" and (batch := NEXT_BATCH.search(done.text)):
        return truth._replace(event=truth.first + int(batch[1]))
    if words[0] == "rekey" and "--finish" in words and has_copy(world):
        return finished(truth, world, done)._replace(name=truth.name)  # the next step names the copy
    return restored_from(truth, world, done) if words[0] == "restore-from" else truth


def _filled(world: World, line: str) -> list[str] | None:
    """Return the command's words, with the world's names for the capitals; None: it is not for here."""
    known = world.truth
    words = shlex.split(line)
    folders = {
        "restore-from": f"backup-{known.name}",
        "backup": f"backup-{known.name}",
        "export": f"export-advised-{len(world.word)}",
        "rebuild-checkpoint": f"checkpoint-{len(world.word)}",
        "adopt": "metadata-of-query",
    }
    meant = {
        "FOLDER": folders.get(words[0], "nothing"),
        "DIR": folders.get(words[0], "nothing"),
        "NEW_FOLDER": "backup-advised",
        "NAME": f"{known.name}r" if words[0] == "rekey" else "b",
        "N": "2" if world.groups_of(known.name) == 4 else "4",
        "VERSION": "nothing",
        "URL": "nothing",
        "SOURCE": known.name,
        "NAME=URL": f"b={world.url('b')}",
        "a=URL": f"a={world.url('a')}",
        "b=URL": f"b={world.url('b')}",
    }
    filled = [meant.get(word, word) for word in words]
    if words[0] in ("doctor", "status", "verify") or words == ["export"] or "nothing" in filled:
        return None
    if words[0] == "restore-from" and known.name not in known.backups:
        return None
    if "backup-advised" in filled:  # it is new each time
        shutil.rmtree(world.folder / "backup-advised", ignore_errors=True)
        world.files = None
    if "metadata-of-query" in filled:
        path, world.files = world.folder / "metadata-of-query", None
        path.mkdir(exist_ok=True)
        (path / "metadata").write_text(json.dumps({"id": LINEAGES[known.lineage]}))
    asks = ("drop", "adopt", "restore", "restore-from", "rekey", "relog", "import")
    if words[0] in ("relog", "restore-from"):
        filled.append("--json")
    asked = (words[0] in asks or "drop" in words) and "--yes" not in filled
    return [*filled, *["--yes"] * asked]


def _short(outcome: Outcome) -> str:
    return outcome.text.strip().splitlines()[-1][:400] if outcome.text.strip() else f"exit {outcome.code}"
