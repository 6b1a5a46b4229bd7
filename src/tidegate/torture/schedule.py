"""The schedule of a run: its cells and their order, a function of the seed.

A **cell** is one fault at one failpoint, finished in one way, in a namespace of its own.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from tidegate.base import failpoints
from tidegate.errors import ConfigError
from tidegate.torture.driver.faults import (
    CLOCK_STEPS_S,
    FAULTS,
    OUTSIDE,
    SPARK,
    TABLE,
    TOPOLOGY,
    WITH_SPARK,
)
from tidegate.torture.driver.full_disk import folder_of
from tidegate.torture.driver.side_work import TIDIES, side_work_at
from tidegate.torture.driver.tcp_proxy import server_of
from tidegate.torture.driver.workloads import STATEFUL

FINISHES = {
    "same": "the same driver continues; if it is dead, the same query starts again",
    "second": "a second driver takes over, whose Spark forgot which batches are committed",
    "recover": "`tidegate recover` makes visible what was decided; then the query starts again",
    "claimed": "a second driver claims the namespace and dies at once; then the query starts again",
}
"""The ways to finish what a fault left, by name."""


LOGINS = ("username", "password", "credential_provider")
"""Options of a store by which its client logs in. A login in the store's URL is read from the URL."""
ONCE = ("fill.after_begin", "follow.after_claim")
"""Failpoints that a driver reaches once."""


class Cell(NamedTuple):
    """A cell of the crash table, in one round of it."""

    failpoint: str
    fault: str
    finish: str
    round: int = 1

    def __str__(self) -> str:
        return f"{self.failpoint}:{self.fault}:{self.finish}:{self.round}"

    @property
    def alone(self) -> bool:
        """Whether it disturbs everything that uses the same servers."""
        return self.fault in TOPOLOGY or self.fault not in FAULTS

    @property
    def side_work(self) -> str:
        """The driver's background work, by its name in ``upkeep``."""
        return side_work_at(self.failpoint)


class Skipped(NamedTuple):
    """A group of cells that cannot be run, by failpoint and fault, with the reason."""

    failpoint: str
    fault: str
    cells: int
    reason: str


class Shape(msgspec.Struct, frozen=True):
    """The details of a cell that the seed chooses: when its fault strikes, and the size of its batches.

    ``nth``: the hit of the failpoint at which the fault strikes. ``old``: the namespace has versions from
    before the fault, whose rows the log no longer has.
    """

    nth: int
    old: bool
    batches: int
    reopen_at: int
    key_groups: int
    parallelism: int
    frame_bytes: int


def cell_of(text: str, planned: Collection[str] = ()) -> Cell:
    """Parse the name of a cell, such as ``publish.before:kill:second``, with or without ``:ROUND``.

    ``planned``: the faults of the user's plan. ConfigError: no cell has that name.
    """
    parts = text.split(":")
    failpoint, fault, finish = (*parts[:3], "", "", "")[:3]
    number = parts[3] if len(parts) > 3 else "1"
    if failpoint not in failpoints.NAMES or fault not in {*FAULTS, *planned} or finish not in FINISHES:
        raise ConfigError(
            f"{text!r} is not a cell: write FAILPOINT:FAULT:FINISH, as in publish.before:kill:second"
        )
    if len(parts) > 4 or not number.isdecimal() or int(number) < 1:
        raise ConfigError(f"{text!r}: a cell's round is a whole number, 1 or more")
    return Cell(failpoint, fault, finish, int(number))


def check_names(kind: str, names: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    """Return the names without duplicates, in the order of the known ones. ``kind``: "fault" or "workload".

    ConfigError: a name is unknown, or there is none.
    """
    requested = set(names)
    unknown = sorted(requested.difference(known))
    if unknown or not requested:
        problem = f"unknown {kind} {', '.join(unknown)}" if unknown else f"no {kind} is named"
        raise ConfigError(f"{problem}; the {kind}s are {', '.join(known)}")
    return tuple(name for name in known if name in requested)


class Environment(NamedTuple):
    """The environment of a run, which decides which faults are possible.

    ``planned``: the faults of the user's plan. ``logs_in``: the store's options contain a login.
    ``lacking``: the faults of the store's topology that are not possible, each with its reason. ``spark``:
    the master of drivers that are Spark applications; '': they are without Spark.
    """

    store: str
    planned: tuple[str, ...] = ()
    logs_in: bool = False
    lacking: Mapping[str, str] = MappingProxyType({})
    spark: str = ""

    @property
    def has_executors(self) -> bool:
        """Whether the executors are processes of their own."""
        return not re.match(r"local(\[|$)", self.spark)


def impossible(fault: str, environment: Environment) -> str:
    """Return the reason why a fault is not possible here; '' when it is possible."""
    store, planned, logs_in, lacking, spark = environment
    if fault in planned:
        return ""
    kind = store.partition(":")[0]
    if fault in SPARK and not spark:
        return "the drivers are without Spark (--spark MASTER)"
    if fault in SPARK and fault != "python-worker" and not environment.has_executors:
        return (
            f"with master {spark} the driver is the only executor: give --spark local-cluster[2,1,1024], or"
            " the master of a cluster"
        )
    if spark and fault not in WITH_SPARK:
        return "it is not done to a driver that is a Spark application: run it without --spark"
    if fault.startswith("net-") and logs_in:
        return "the store asks for a login, and the connection of a disturbed request does not log in"
    if fault.startswith("net-") and server_of(store) is None:
        return f"a store at {kind}:// is not reached through a plain TCP proxy (only redis://host:port is)"
    if fault == "full" and folder_of(store) is None:
        return f"the disk of a store at {kind}:// is its server's (only sqlite:// writes on this machine)"
    if fault in OUTSIDE and kind.partition("+")[0] not in ("redis", "rediss"):
        return f"a store at {kind}:// has neither slots nor replicas nor hashes (only Redis has)"
    if fault in lacking:
        return lacking[fault]
    return ""


def unreached(failpoint: str, fault: str, environment: Environment) -> str:
    """Return the reason why no driver reaches a failpoint in cells of this fault; '' when one does."""
    in_task = failpoint.startswith("stage.")
    if environment.spark and side_work_at(failpoint):
        return "a driver that is a Spark application only commits here: run it without --spark"
    if environment.spark and in_task and fault not in SPARK:
        return f"Spark's tasks reach it, where only the faults {', '.join(SPARK)} are done"
    if fault == "shuffle" and not in_task:
        return "no task reads shuffle files then"
    if failpoint.startswith("trim.") and fault in CLOCK_STEPS_S:
        return "the log is kept for longer than a clock may be off: a cell whose clocks step cuts nothing"
    return ""


def skipped(faults: Iterable[str], environment: Environment) -> list[Skipped]:
    """List the cells of the whole table that are not run, with the reasons. No cell is left out silently."""
    cells_left_out = []
    for fault in faults:
        reason = impossible(fault, environment)
        if reason:
            cells_left_out.append(Skipped("", fault, len(failpoints.NAMES) * len(FINISHES), reason))
            continue
        for name in failpoints.NAMES:
            reason = unreached(name, fault, environment)
            if reason:
                cells_left_out.append(Skipped(name, fault, len(FINISHES), reason))
    return cells_left_out


def _pairs(faults: Iterable[str], environment: Environment) -> list[tuple[str, str]]:
    """Pair every failpoint with every fault that is possible at it."""
    possible = [fault for fault in faults if not impossible(fault, environment)]
    every = itertools.product(failpoints.NAMES, possible)
    return [(name, fault) for name, fault in every if not unreached(name, fault, environment)]


def cells(seed: int, faults: Iterable[str], environment: Environment) -> Iterator[Cell]:
    """Yield the cells of round after round, without end.

    A round has every cell once, in an order set by the seed.
    """
    pairs = _pairs(faults, environment)
    table = [pair for pair in pairs if pair[1] in TABLE]
    others = [pair for pair in pairs if pair[1] not in TABLE]
    for number in itertools.count(1):
        chance = random.Random(f"{seed}-order-{number}")
        for group in (table, others) if number == 1 and not environment.spark else (pairs,):
            this = [Cell(*pair, finish, number) for pair in group for finish in FINISHES]
            chance.shuffle(this)
            yield from this
        if not pairs:
            return


def round_size(faults: Iterable[str], environment: Environment) -> int:
    """Return the number of cells of a round."""
    return len(_pairs(faults, environment)) * len(FINISHES)


def shape_of(cell: Cell, seed: int, *, spark: bool = False) -> Shape:
    """Choose the details of a cell from the seed alone. ``spark``: its drivers are Spark applications."""
    chance = random.Random(f"{seed}-shape-{cell}")
    opens, tidies = cell.failpoint.startswith("open."), cell.side_work == TIDIES
    # The second open is by a driver that opens again, after two batches. A store is added once.
    most = 1 if cell.failpoint in ONCE else 2 if opens or tidies or spark else 3
    nth = chance.randrange(1, most + 1)
    return Shape(
        nth=nth,
        # In one of four cells of an open, the namespace is new at the fault: it has nothing to lose.
        old=not spark and (not (opens and nth == 1 and chance.random() < 0.5) or cell.fault in OUTSIDE),
        batches=3 if spark else 6 if tidies else 4,  # 6: readers may hold the oldest versions for a while
        reopen_at=2 if opens else 0,
        key_groups=chance.choice((4, 8, 16)),
        # With fewer tasks all may have read their shuffle files at the fault.
        parallelism=chance.randrange(1, 4) if cell.fault != "shuffle" else 4,
        frame_bytes=chance.choice((300, 700, 5_000)),
    )


def workloads_of(cell: Cell, seed: int, names: tuple[str, ...]) -> tuple[str, ...]:
    """Choose the workloads of a cell whose drivers are Spark applications: few, so that a batch takes little.

    One is of tables whose rows tasks compute from state, one of other tables, where there are both.
    """
    chance = random.Random(f"{seed}-workloads-{cell}")
    kinds = ([name for name in names if (name in STATEFUL) is kind] for kind in (True, False))
    return tuple(chance.choice(kind) for kind in kinds if kind)
