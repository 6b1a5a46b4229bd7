"""The demo's reader process: no Spark, no Java. Checks every version against the input.

At each look it takes a snapshot of the newest version, and of an older one that can still be
read, reads the three tables from it, and compares them with what the rows up to that version add
up to. A version that is retired under its eyes is refused, and looked at no more. One line of JSON
per report.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import tidegate
from tidegate.demo.data import APPLY_CHANGES, Expected, expected_by_version

PAUSE_S = 0.4
"""Between two looks: the two cores are for the stream."""


def differences(snapshot: Any, expected: Expected) -> list[str]:
    """How the three tables at one version differ from the input up to it; none is right."""
    airports = dict(snapshot.table("airports").scan())
    routes = dict(snapshot.table("routes").scan())
    aircraft = dict(snapshot.table("aircraft").scan())
    actual = {
        "airports": {origin: value["departures"] for origin, value in airports.items()},
        "routes": {route: value["departures"] for route, value in routes.items()},
        "aircraft": {
            tail: (value["carrier"], str(value["flight"]), value["dest"]) for tail, value in aircraft.items()
        },
        "departures": sum(value["departures"] for value in routes.values()),
        "cancelled": sum(value["cancelled"] for value in airports.values()),
        "without_tail": sum(value["without_tail"] for value in airports.values()),
    }
    return [name for name, value in actual.items() if value != getattr(expected, name)]


def main(store: str, store_options: dict[str, Any], namespace: str, stop: Path) -> None:
    """Check until the file ``stop`` appears; then every version that can be read once more, and report."""
    expected = list(expected_by_version())
    checked, seen = 0, set()
    torn: list[str] = []
    by_tasks: dict[int, int] = {}
    pick = random.Random(2013)
    gate = None
    while True:
        ending = stop.exists()
        try:
            gate = gate or tidegate.connect(store, namespace, store_options)
            newest = gate.version()
        except tidegate.ConfigError:
            newest = 0  # the writer has not made the namespace yet
        if gate is None or newest == 0:
            time.sleep(0.02)
            continue
        infos = gate.history()
        readable = [info.version for info in infos]
        for info in infos:  # the large ones, before they are retired
            if info.parallelism and sum(info.changes.values()) > APPLY_CHANGES:
                by_tasks[info.version] = info.parallelism
        for version in readable if ending else {newest, pick.choice(readable)}:
            try:
                with gate.snapshot(version=version) as snapshot:
                    wrong = differences(snapshot, expected[version - 1])
            except tidegate.SnapshotExpiredError:
                continue
            checked += 1
            seen.add(version)
            torn += [f"version {version}: {name}" for name in wrong]
        report = {
            "checked": checked,
            "versions": len(seen),
            "readable": len(readable),
            "newest": newest,
            "torn": torn[:5],
            "by_tasks": by_tasks,
        }
        print(json.dumps(report), flush=True)
        if ending:
            break
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    arguments = json.load(sys.stdin)
    main(
        arguments["store"],
        arguments["store_options"],
        arguments["namespace"],
        Path(arguments["stop"]),
    )
