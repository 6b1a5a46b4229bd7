"""Run a command, and report its memory, and that of processes that run meanwhile, over time.

    tools/run python tests/services/run.py kafka redis -- python tools/resident.py -- \
        tidegate torture --wal {kafka} --store {redis} --duration 1h

Looked at twice a minute: every process of the parent that started this one, so its servers, too.
In the end the median of each tenth of the time, in MiB: of the command's own process, of all that it started
together, and of each server. The exit code is the command's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict

import psutil

EVERY_S, TENTHS = 30.0, 10
SERVERS = {
    "kafka.Kafka": "Kafka",
    "CassandraDaemon": "Cassandra",
    "redis-server": "Redis",
    "valkey-server": "Redis",
}
MIB = 1024 * 1024


def looked(command: int) -> dict[str, float]:
    """MiB that are resident now, by who holds them."""
    found: dict[str, float] = defaultdict(float)
    mine = {command} | {child.pid for child in psutil.Process(command).children(recursive=True)}
    for process in psutil.Process(os.getppid()).children(recursive=True):
        try:
            words, held = " ".join(process.cmdline()), process.memory_info().rss / MIB
        except psutil.Error:
            continue  # it has just ended
        server = next((name for part, name in SERVERS.items() if part in words), None)
        if process.pid == command:
            found["command"] += held
        elif process.pid in mine:
            found["its processes"] += held
        elif server is not None:
            found[server] += held
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--every", type=float, default=EVERY_S, metavar="SECONDS")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="behind --")
    arguments = parser.parse_args()
    looks: list[tuple[float, dict[str, float]]] = []
    begun = time.monotonic()
    running = subprocess.Popen([word for word in arguments.command if word != "--"])
    while running.poll() is None:
        try:
            running.wait(arguments.every)
        except subprocess.TimeoutExpired:
            looks.append((time.monotonic() - begun, looked(running.pid)))
    _print(looks, time.monotonic() - begun)
    return running.returncode


def _print(looks: list[tuple[float, dict[str, float]]], whole_s: float) -> None:
    print(f"MiB resident, median of each tenth of {whole_s / 60:.0f} min")
    for name in dict.fromkeys(name for _, found in looks for name in found):
        tenths = [
            [found.get(name, 0.0) for at, found in looks if int(at / whole_s * TENTHS) == tenth]
            for tenth in range(TENTHS)
        ]
        print(f"{name:14}" + "".join(f"{statistics.median(held):8,.0f}" for held in tenths if held))


if __name__ == "__main__":
    sys.exit(main())
