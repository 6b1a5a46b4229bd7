"""The demo's input: every departure from New York's airports in January 2013, in days or in batches of days.

Rows as they are: 27,004 flights; 155 have no tail number, 521 were cancelled (no departure
time). The expected contents of the tables after each batch are computed here from the rows alone,
without tidegate and without Spark: the reader checks against them.
"""

from __future__ import annotations

import csv
import gzip
import importlib.resources
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

APPLY_CHANGES = 1_500
"""The demo's ``small_batch_rows``: larger batches are staged and applied by tasks. A day has about 800."""
FILE = "flights-2013-01.csv.gz"
DAYS = [range(day, day + 1) for day in range(1, 32)]
"""The month in batches of one day."""
BATCHES = [range(1, 11), *DAYS[10:13], range(14, 28), *DAYS[27:31]]
"""The month in the demo's batches: two of several days, which are large, and small ones of one day.

The large ones are the first that a driver process stages: Spark's tasks stage that one in any case.
"""
NOT_KNOWN = "NA"

Row = dict[str, str]


class Expected(NamedTuple):
    """The expected contents of the tables at one version."""

    departures: int
    cancelled: int
    without_tail: int
    airports: dict[str, int]
    routes: dict[tuple[str, str], int]
    aircraft: dict[str, tuple[str, str, str]]
    """Per tail number its latest departure so far: carrier, flight, destination."""


def rows() -> list[Row]:
    """All rows of the month, as the file has them."""
    content = (importlib.resources.files(__package__) / FILE).read_bytes()
    return list(csv.DictReader(io.StringIO(gzip.decompress(content).decode())))


def write_days(folder: Path, batches: Sequence[range] = DAYS) -> None:
    """One CSV file a batch, older first by modification time: the stream takes one per batch."""
    folder.mkdir(parents=True, exist_ok=True)
    everything = rows()
    for days in batches:
        of_days = [row for row in everything if int(row["day"]) in days]
        path = folder / f"2013-01-{days[0]:02}.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(of_days[0]))
            writer.writeheader()
            writer.writerows(of_days)
        os.utime(path, (1_357_000_000 + 86_400 * days[0],) * 2)


def expected_by_version(batches: Sequence[range] = BATCHES) -> Iterator[Expected]:
    """Yield the expected contents after each batch: version n is batch n, counted from 1."""
    departures = cancelled = without_tail = 0
    airports: dict[str, int] = {}
    routes: dict[tuple[str, str], int] = {}
    latest: dict[str, tuple[tuple[str, int, int], tuple[str, str, str]]] = {}
    everything = rows()
    for days in batches:
        for row in everything:
            if int(row["day"]) not in days:
                continue
            without_tail += row["tailnum"] == NOT_KNOWN
            flown = row["dep_time"] != NOT_KNOWN
            cancelled += not flown
            departures += flown
            origin, dest = row["origin"], row["dest"]
            airports[origin] = airports.get(origin, 0) + flown
            routes[origin, dest] = routes.get((origin, dest), 0) + flown
            if flown and row["tailnum"] != NOT_KNOWN:
                order = (row["time_hour"], int(row["sched_dep_time"]), int(row["flight"]))
                seen = latest.get(row["tailnum"])
                if seen is None or order >= seen[0]:
                    latest[row["tailnum"]] = (order, (row["carrier"], row["flight"], dest))
        aircraft = {tail: what for tail, (_, what) in latest.items()}
        yield Expected(departures, cancelled, without_tail, dict(airports), dict(routes), aircraft)
