"""The schedule: which fault at which failpoint, finished in which way. The same seed gives the same one.

A **cell** is one fault at one failpoint, finished in one way, in a namespace of its own.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from tidegate.base import failpoints
from tidegate.errors import ConfigError
from tidegate.torture.driver.faults import CLOCK_STEPS_S, FAULTS, OUTSIDE, TABLE, TOPOLOGY
from tidegate.torture.driver.full_disk import folder_of
from tidegate.torture.driver.tcp_proxy import server_of
from tidegate.torture.driver.upkeep import TIDIES, beside_at

FINISHES = {
    "same": "the same driver goes on; where it is dead, the same query starts again",
    "second": "a second driver takes over, whose Spark forgot which batches are committed",
    "recover": "`tidegate recover` makes visible what was decided; then the query starts again",
    "claimed": "a second driver claims the namespace and dies at once; then the query starts again",
}
"""The ways to finish what a fault left, by name."""


LOGINS = ("username", "password", "credential_provider")
"""Options of a store by which its client logs in. What its URL says of that is seen there."""
ONCE = ("fill.after_begin", "follow.after_claim")
"""Failpoints that a driver comes by once."""


class Cell(NamedTuple):
    """One cell of the crash table, in one round of it."""

    failpoint: str
    fault: str
    finish: str
    round: int = 1

    def __str__(self) -> str:
        return f"{self.failpoint}:{self.fault}:{self.finish}:{self.round}"

    @property
    def alone(self) -> bool:
        """Whether it disturbs all that runs on the same servers."""
        return self.fault in TOPOLOGY

    @property
    def beside(self) -> str:
        """What its drivers do besides committing, as ``besides`` names it."""
        return beside_at(self.failpoint)


class Skipped(NamedTuple):
    """Cells that cannot be run: of a failpoint, of a fault, and why."""

    failpoint: str
    fault: str
    cells: int
    reason: str


class Shape(msgspec.Struct, frozen=True):
    """What the seed chooses for a cell: when it strikes, and how its batches are cut. ``old``: the namespace
    has versions before the fault, whose rows the log no longer has.
    """

    nth: int
    old: bool
    batches: int
    reopen_at: int
    key_groups: int
    parallelism: int
    frame_bytes: int


def cell_of(text: str) -> Cell:
    """The cell that ``publish.before:kill:second`` names, with ``:ROUND`` or without. ConfigError."""
    parts = text.split(":")
    failpoint, fault, finish = (*parts[:3], "", "", "")[:3]
    number = parts[3] if len(parts) > 3 else "1"
    if failpoint not in failpoints.NAMES or fault not in FAULTS or finish not in FINISHES:
        raise ConfigError(
            f"{text!r} is no cell: write FAILPOINT:FAULT:FINISH, as in publish.before:kill:second"
        )
    if len(parts) > 4 or not number.isdecimal() or int(number) < 1:
        raise ConfigError(f"{text!r}: a cell's round is a whole number, 1 or more")
    return Cell(failpoint, fault, finish, int(number))


def check_faults(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once, in the list's order. ConfigError: one is not known, or there is none."""
    given = set(names)
    unknown = sorted(given - FAULTS.keys())
    if unknown or not given:
        what = f"unknown fault {', '.join(unknown)}" if unknown else "no fault is named"
        raise ConfigError(f"{what}; the faults are {', '.join(FAULTS)}")
    return tuple(name for name in FAULTS if name in given)


class Here(NamedTuple):
    """What decides which faults can be had: the store's URL, the command that kills a server, whether the
    store's options log in, and which faults of its topology cannot be had, and why.
    """

    store: str
    server_kill: str = ""
    logs_in: bool = False
    lacking: Mapping[str, str] = MappingProxyType({})


def impossible(fault: str, here: Here) -> str:
    """Why a kind of fault cannot be had here; '' when it can."""
    store, server_kill, logs_in, lacking = here
    if fault.startswith("net-") and logs_in:
        return "the connection that brings a disturbed request does not log in, and the store asks for it"
    if fault.startswith("net-") and server_of(store) is None:
        kind = store.partition(":")[0]
        return f"a store at {kind}:// is not reached through a plain TCP proxy (only redis://host:port is)"
    if fault == "full" and folder_of(store) is None:
        kind = store.partition(":")[0]
        return f"the disk of a store at {kind}:// is its server's (only that of sqlite:// can be had here)"
    if fault in OUTSIDE and store.partition("+")[0].partition(":")[0] not in ("redis", "rediss"):
        kind = store.partition(":")[0]
        return f"a store at {kind}:// has neither slots nor replicas nor hashes (only Redis has)"
    if fault in lacking:
        return lacking[fault]
    if fault == "server" and not server_kill:
        return "no command that kills and restarts a server was given (--allow-server-kill)"
    return ""


def unreached(failpoint: str, fault: str) -> str:
    """Why no driver comes by a failpoint when this fault is to be done there; '' when one does."""
    if failpoint.startswith("trim.") and fault in CLOCK_STEPS_S:
        return (
            "where clocks step the log is kept for longer than they may be off, so nothing is cut in a cell"
        )
    return ""


def skipped(faults: Iterable[str], here: Here) -> list[Skipped]:
    """What of the whole table is not run, and why: nothing is left out silently."""
    found = []
    for fault in faults:
        reason = impossible(fault, here)
        if reason:
            found.append(Skipped("", fault, len(failpoints.NAMES) * len(FINISHES), reason))
            continue
        for name in failpoints.NAMES:
            reason = unreached(name, fault)
            if reason:
                found.append(Skipped(name, fault, len(FINISHES), reason))
    return found


def _pairs(faults: Iterable[str], here: Here) -> list[tuple[str, str]]:
    """Every failpoint with every fault that can be had at it."""
    possible = [fault for fault in faults if not impossible(fault, here)]
    every = itertools.product(failpoints.NAMES, possible)
    return [(name, fault) for name, fault in every if not unreached(name, fault)]


def cells(seed: int, faults: Iterable[str], here: Here) -> Iterator[Cell]:
    """Round after round, without end, every cell once in each, in an order that the seed gives.

    The first round begins with the faults of the crash table.
    """
    pairs = _pairs(faults, here)
    table = [pair for pair in pairs if pair[1] in TABLE]
    beside = [pair for pair in pairs if pair[1] not in TABLE]
    for number in itertools.count(1):
        chance = random.Random(f"{seed}-order-{number}")
        for some in (table, beside) if number == 1 else (pairs,):
            this = [Cell(*pair, finish, number) for pair in some for finish in FINISHES]
            chance.shuffle(this)
            yield from this
        if not pairs:
            return


def round_size(faults: Iterable[str], here: Here) -> int:
    """How many cells a round has."""
    return len(_pairs(faults, here)) * len(FINISHES)


def shape_of(cell: Cell, seed: int) -> Shape:
    """The details of a cell, from the seed alone."""
    chance = random.Random(f"{seed}-shape-{cell}")
    opens, tidies = cell.failpoint.startswith("open."), cell.beside == TIDIES
    # The second open is of a driver that opens anew, after two batches; a store is added once.
    most = 1 if cell.failpoint in ONCE else 2 if opens or tidies else 3
    nth = chance.randrange(1, most + 1)
    return Shape(
        nth=nth,
        # One in four cells of an open disturbs how a namespace is made: it has nothing that could be lost.
        old=not (opens and nth == 1 and chance.random() < 0.5) or cell.fault in OUTSIDE,
        batches=6 if tidies else 4,  # readers may hold the oldest versions for a while
        reopen_at=2 if opens else 0,
        key_groups=chance.choice((4, 8, 16)),
        parallelism=chance.randrange(1, 4),
        frame_bytes=chance.choice((300, 700, 5_000)),
    )
