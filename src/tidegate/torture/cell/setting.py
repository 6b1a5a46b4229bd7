"""The setting that all cells of a run share, and the exceptions of a cell that cannot be finished."""

from __future__ import annotations

import msgspec
import xxhash

from tidegate.torture.cell.cluster import ClusterFault
from tidegate.torture.driver.driver import Where
from tidegate.torture.schedule import Cell


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The setting of all cells of a run. ``folder`` is the report's, ``plan`` the user's own faults."""

    wal: str
    store: str
    wal_options: dict[str, object]
    store_options: dict[str, object]
    allow_unsafe: bool
    prefix: str
    folder: str
    seed: int
    workloads: tuple[str, ...]
    deadline_s: float
    plan: tuple[ClusterFault, ...]
    keep: bool
    cluster: str = ""
    """The file of the plan."""
    spark: str = ""
    """The master of drivers that are Spark applications."""
    reader: str = ""
    """The command of a reader of the user's own."""


class Unfinished(Exception):  # noqa: N818 - it is an outcome, not a failure of the program
    """The cell could not be finished: a wait was too long, or a process ended unexpectedly."""


class Unanswered(Unfinished):
    """A process of the cell had no answer of log or store in time."""


class Stopped(Exception):  # noqa: N818
    """The whole run is being ended."""


def namespace_of(setting: Setting, cell: Cell) -> str:
    """Name the namespace of a cell, by the run's random prefix and the cell's digest."""
    return f"{setting.prefix}-{xxhash.xxh64_hexdigest(str(cell).encode())[:10]}"


def where_of(setting: Setting, namespace: str) -> Where:
    """Return the location of a namespace of this run."""
    return Where(
        setting.wal,
        setting.store,
        namespace,
        setting.wal_options,
        setting.store_options,
        setting.allow_unsafe,
    )
