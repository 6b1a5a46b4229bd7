"""The exploration: all words up to a length, depth-first, or random ones; a failing word is made shorter."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from model.commands import checks
from model.commands import operating as op
from model.commands import truth as truths
from model.commands.advice import advised, followed
from model.commands.held import hold
from model.commands.known import known_as
from model.commands.letters import LETTERS
from model.commands.seen import settle
from model.commands.truth import Space, Truth
from model.commands.world import Outcome, Time, World, digest_of
from model.commands.writing import healthy

KILL = "!"
"""``rekey!rekey.after_move``: the letter, killed when it first passes this failpoint."""
START = ("batch", "batch")
"""The first letters of every word: without a version there is nothing to command."""
Word = tuple[str, ...]


@dataclasses.dataclass
class Explored:
    """What was explored, and what was found: the text by word."""

    words: int = 0
    same: int = 0
    checks: int = 0
    refused: int = 0
    cannot: str = ""
    """The letter that had nothing to do in the last word."""
    known: dict[str, int] = dataclasses.field(default_factory=dict)
    found: dict[Word, str] = dataclasses.field(default_factory=dict)

    def note(self, word: Word, *wrong: str) -> str:
        """Count the known findings among these; add and return the first new one."""
        for each in wrong:
            name = known_as(word, each)
            if name:
                self.known[name] = self.known.get(name, 0) + 1
            else:
                self.found[word] = each
                print(" ".join(word), "->", " ".join(each.split())[:900], "\n", flush=True)
                return each
        return ""

    def __str__(self) -> str:
        return (
            f"{self.words} words, {self.words - self.same} different states, {self.checks} checks,"
            f" {self.refused} refusals, {len(self.found)} findings, known ones: {self.known}"
        )


def fits(world: World) -> bool:
    """Whether the newest export can be imported.

    Its table ``ref`` has the key that the one here has, and brings the derived table that is here.
    """
    (_, content, exported), here = world.truth.exports[-1], world.truth.here
    alike = exported is None or here.shape is None or exported.key == here.shape.key
    brings = exported is None or content.is_kept or not here.content.is_kept
    return healthy(world) and alike and brings


MUST: dict[str, Callable[[World], bool]] = {
    "backup": healthy,
    "import": fits,
    "relog": lambda world: world.truth.here.shown and world.truth.here.damaged == "the log is gone",
}
"""The states in which a letter is accepted, or becomes so by the advice of its refusal."""


def step(world: World, letter: str, explored: Explored, *, advice: bool = True) -> str:
    """Do one letter; return what is wrong with it. ``advice``: that of a refusal is followed, too."""
    name, _, failpoint = letter.partition(KILL)
    Time.letter, Time.ids = f"{letter} {world.word.count(letter)} {bool(world.held)}", 0
    world.unchanged = None  # a letter may change anything
    of = LETTERS[name]
    must = name in MUST and MUST[name](world)
    outcome = world.killed(lambda: of.act(world), failpoint) if failpoint else of.act(world)
    if outcome.crash:
        return f"{letter}: {outcome.crash}"
    if must and outcome.code:
        with world.trial():
            wrong = advised(world, outcome, lambda: of.act(world), letter, must=True)
        if wrong:
            return f"{letter} is refused where it must work: {wrong}"
    before = world.truths
    if outcome.killed:
        after = [each for truth in before for each in _after_kill(truth, world, name)]
        loads = max(each.loads for each in (*before, *after))  # a token is used once
        world.truths = tuple(each._replace(loads=loads) for each in (*before, *after))
        if len({each.here.shape for each in world.truths}) > 1:
            world.run("recover")  # the query's program has to know which form of its table is there
    elif outcome.done:
        world.truths = tuple(of.then(each, world, outcome) for each in before)
    world.word = (*world.word, letter)
    explored.refused += outcome.code != 0
    if name == "zombie" and outcome.done:
        world.truths = (*world.truths, *before)  # it may have been a replay
    if op.WORK_WAS_DONE in outcome.text:
        of_cron = "n" * (name == "cron")
        world.truths = tuple(op.backed_up(each, world, outcome, of_cron) for each in before)
    if name == "cron" and outcome.done:
        return f"{letter}: the backup of a moved namespace ends with exit 0: {outcome.text.strip()}"
    if name == "backup-copy" and outcome.done and all(op.copy_is_unfinished(each, world) for each in before):
        return f"{letter}: an unfinished copy is backed up: {outcome.text.strip()}"
    wrong = op.unnamed_loss(before[0].name, world, outcome) if name == "relog" and outcome.done else ""
    if name in ("relog", "rewind", "restore-from") and outcome.done:
        wrong = wrong or op.as_printed(world, outcome)
    wrong = wrong or settle(world)
    if any(each.here.content.is_kept for each in world.truths) and name != "underive":
        world.truths = tuple(each._replace(derives=True) for each in world.truths)  # status shows it
    if wrong:
        return f"after {letter} ({outcome.text.strip()[:300] or outcome.killed or 'done'}): {wrong}"
    if outcome.code and name != "zombie" and advice:
        return followed(world, outcome, lambda: of.act(world) if of.may(world) else Outcome(0, ""), letter)
    return ""


UNKILLED = ("drop-table", "remake", "remake-key", "widen", "rename", "zombie", "derive", "underive")
"""Letters that change what the query writes: the operator repeats them, or the query's batches do not fit."""
WRITES = ("batch", "load", "replace", "trim")
"""Letters whose first version may build the derived table."""
ELSEWHERE = ("relog", "relog-copy", "export", "export-old")
"""Letters that write another namespace, or files: killed, they leave what was true."""


def _after_kill(truth: Truth, world: World, name: str) -> Iterator[Truth]:
    """Yield what may be true once a killed command is rolled forward.

    A version that it decided has its time before readers see it: the next one is later (docs/protocol.md).
    """
    ends = [Outcome(0, "")]
    if name == "restore-from":
        has_log = truth.here.content.event >= 0 and "gone" not in truth.here.damaged
        ways = ("continue", "again", "new") if has_log else ("new",)
        ends = [Outcome(0, "", json.dumps({"way": way})) for way in ways]
    names = () if name in ELSEWHERE else ("restore", "rewind") if name == "rewind" else (name,)
    # Of a rewind the second record may be missing.
    afters = [LETTERS[each].then(truth, world, end) for each, end in itertools.product(names, ends)]
    if name in WRITES and truths.builds(truth):  # it may have been killed between its two versions
        afters.append(truths.built(truth, Time.us))
        yield from _after_kill(afters[-1], world, name)
    for after in (each.as_known_to(truth) for each in afters):
        spaces = dict(after.spaces)
        for at, space in spaces.items():
            had = truth.spaces.get(at, Space(shown=False))
            is_seen = had.content != space.content and (had.shown or had.content.event >= 0)
            before = had.content if is_seen else space.before
            spaces[at] = space._replace(shown=space.shown and had.shown, before=before)
            if is_seen and at == truth.name and space.time_us:  # of a new log the time is not known
                spaces[at] = spaces[at]._replace(time_us=max(Time.us, had.time_us + 1))
        yield after._replace(spaces=spaces)


def run(word: Sequence[str], world: World, explored: Explored) -> list[str]:
    """Run a word from the start, with the checks at its end; return all that is wrong."""
    begin(world)
    for letter in word:
        if not LETTERS[letter.partition(KILL)[0]].may(world):
            explored.cannot = letter  # of a word that is being made shorter
            return []
        if wrong := step(world, letter, explored):
            return [wrong]
    return list(checked(world, explored))


def begin(world: World) -> None:
    """Put the world into the state after ``START``, which is made once."""
    if world.start:
        world.restore(world.start)
        return
    world.clear()
    for letter in START:
        wrong = step(world, letter, Explored())
        assert not wrong, wrong
        Time.us += 1_000_000
    hold(world)
    world.word = ()
    world.start = world.snapshot()


def checked(
    world: World, explored: Explored, parts: Mapping[str, str] | None = None, *, later: bool = True
) -> Iterator[str]:
    """Yield what the checks find. ``parts``: those of the world, if they are known."""
    parts = parts or world.parts()
    for name in checks.CHECKS:
        explored.checks += 1
        if wrong := checks.answer(world, name, parts, later=later):
            yield f"{name}: {wrong}"


def every(
    world: World,
    letters: Sequence[str],
    length: int,
    explored: Explored,
    ended: Callable[[], bool] = lambda: False,
    *,
    kills: bool = False,
) -> None:
    """Explore all words up to a length; below a word with a new finding nothing is explored.

    With ``kills`` the first letter of each word is killed, at each failpoint that it passes.
    """
    begin(world)
    seen: dict[str, int] = {digest_of(world.parts()): length}

    def descend(left: int) -> None:
        kept = world.snapshot()
        killed = kills and left == length
        for letter in _killed(world, letters) if killed else letters:
            if ended():
                return
            if LETTERS[letter.partition(KILL)[0]].may(world):
                explored.words += 1
                wrong = step(world, letter, explored)
                parts = world.parts()
                digest = digest_of(parts)
                if wrong:
                    explored.note(world.word, wrong)
                elif digest in seen:
                    explored.same += 1
                else:
                    wrong = explored.note(world.word, *checked(world, explored, parts))
                if not wrong and left > 1 and seen.get(digest, 0) < left:
                    seen[digest] = left
                    descend(left - 1)
                seen.setdefault(digest, left)
                world.restore(kept)

    descend(length)


def _passed(world: World, letter: str) -> list[str]:
    """Return the failpoints that a letter passes."""
    with world.trial():
        return list(dict.fromkeys(world.passed(lambda: LETTERS[letter].act(world))))


def _killed(world: World, letters: Sequence[str]) -> Iterator[str]:
    """Yield the letters with the failpoints that they pass."""
    for letter in letters:
        if letter not in UNKILLED and LETTERS[letter].may(world):
            yield from (f"{letter}{KILL}{name}" for name in _passed(world, letter))


TREE, LATER = 20, 3
"""Of this number of random words one begins at the start, and the others at a state within the same tree; one
is followed by a batch an hour after the next batch, too.
"""
LEADS_OUT = ("relog", "restore-from", "recover")
"""Letters that an operator chooses where something is lost: most others are refused there."""


def random_words(
    world: World,
    number: int,
    length: int,
    *,
    seed: int,
    explored: Explored,
    ended: Callable[[], bool] = lambda: False,
) -> None:
    """Explore random words of up to this length; each failing one is made as short as it stays failing.

    One word of each tree is independent of all others: it is played from the start. Each other word of the
    tree continues a word's beginning, which is drawn from the tree, by one letter that was not tried there.
    What readers see is compared after each letter. The checks follow the last letter of each word, unless a
    word before ended in the same state.
    """
    seen: set[str] = set()
    for count in range(0, number, TREE):
        chance = random.Random(f"{seed}-{count}")
        begin(world)
        tree = Tree(world, explored, chance, seen)
        found = tree.grow_stem(chance.randint(min(5, length), length))
        for _ in range(1, min(TREE, number - count)):
            if ended() or found:
                break
            found = tree.grow_branch(length)
        if found:
            explored.note(*shortest(world, found, tree.wrong))
        if ended():
            return


class Tree:
    """Random words that share their beginnings. ``nodes``: the states, with the letters tried in each.

    ``wrong``: what is wrong with the word that failed.
    """

    def __init__(self, world: World, explored: Explored, chance: random.Random, seen: set[str]) -> None:
        self.world, self.explored, self.chance, self.seen = world, explored, chance, seen
        self.nodes: list[tuple[Any, set[str]]] = [(world.snapshot(), set())]
        self.wrong = ""

    def grow_stem(self, size: int) -> Word:
        """Play one word from the start; return it if it fails."""
        self.explored.words += 1
        for number in range(1, size + 1):
            word, fails = self._grow(self.nodes[-1][1], is_end=number == size)
            if fails:
                return word if fails == "new" else ()
        return ()

    def grow_branch(self, length: int) -> Word:
        """Play one more word, of a beginning and a letter; return it if it fails."""
        kept, tried = self.chance.choice([each for each in self.nodes if len(each[0][1][4]) < length])
        self.world.restore(kept)
        self.explored.words += 1
        word, fails = self._grow(tried, is_end=True)
        return word if fails == "new" else ()

    def _grow(self, tried: set[str], *, is_end: bool) -> tuple[Word, str]:
        """Add a letter, with the checks at a word's end; return the word, and whether it fails."""
        world, chance = self.world, self.chance
        letter = self._drawn(tried)
        wrong = step(world, letter, self.explored, advice=is_end or chance.random() < 0.25)
        word = world.word if world.word[-1:] == (letter,) else (*world.word, letter)
        found = [wrong] if wrong else []
        if is_end and not wrong:
            parts = world.parts()
            digest = digest_of(parts)
            if digest in self.seen:
                self.explored.same += 1
            else:
                self.seen.add(digest)
                found = list(checked(world, self.explored, parts, later=int(digest[:4], 16) % LATER == 0))
        self.wrong = next((each for each in found if not known_as(word, each)), "")
        if self.wrong:
            return word, "new"
        self.explored.note(word, *found)
        if not wrong:
            self.nodes.append((world.snapshot(), set()))
        return word, "known" * bool(wrong)

    def _drawn(self, tried: set[str]) -> str:
        """Draw a letter that was not tried here, killed or not."""
        world, chance = self.world, self.chance
        may = [name for name, letter in LETTERS.items() if letter.may(world)]
        often = [] if healthy(world) else [name for name in LEADS_OUT if name in may]
        for _ in range(10):
            letter = chance.choice([*may, *["batch"] * 4, *often * 4])
            if letter not in UNKILLED and chance.random() < 0.15 and (hits := _passed(world, letter)):
                letter = f"{letter}{KILL}{chance.choice(hits)}"
            if letter not in tried:
                break
        tried.add(letter)
        return letter


def shortest(world: World, word: Word, in_tree: str = "") -> tuple[Word, str]:
    """Leave letters out as long as the word fails, and not by a known finding.

    ``in_tree``: what was wrong with the word there.
    """

    def fails(tried: Word) -> str:
        return next((each for each in run(tried, world, Explored()) if not known_as(tried, each)), "")

    wrong = fails(word) or f"it fails only within its tree: {in_tree}"
    size = max(1, len(word) // 2)
    while size:
        at, before = 0, word
        while at < len(word):
            shorter = word[:at] + word[at + size :]
            if found := fails(shorter):
                word, wrong = shorter, found
            else:
                at += size
        if size > 1 or word == before:
            size //= 2
    return word, wrong
