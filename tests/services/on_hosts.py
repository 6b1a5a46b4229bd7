r"""Start servers on hosts of their own, run one command that disturbs them, end them.

    tools/run python tests/services/on_hosts.py kafka3 cluster spark -- tidegate torture \
        --wal {kafka} --store {redis} --spark {spark} --cluster {plan} --allow-unsafe --duration 20min

Each server, and each of three workers of Spark, is on a host: a network namespace on a bridge
(``support/hosts.py``). The command is on a host of its own, with the driver and the readers. ``kafka3`` are
three brokers, two of which must have each record; ``redis`` is one server, ``cluster`` three primaries and
their replicas, ``spark`` a standalone master and three workers. ``{plan}`` is a plan of faults
(docs/torture.md): servers that stop, hosts that are cut off, groups of hosts that do not reach each other,
one way or both ways. It needs root and the program ``ip``. Exit code: the command's; 2: it was not run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # tools/run keeps it off

from services.run import run
from services.support.hosts import Cut, Host, Hosts, why_not

HOLD_S = (1, 4, 8)
"""Shorter and longer than what clients wait, and than what a broker or a node may be away for."""


class Kind(NamedTuple):
    """A kind of servers: the word of the command for its URL, its group of hosts, and how it is made."""

    word: str
    group: str
    hosts: int
    make: Callable[[Path, list[Host], str], Any]


def kafka3(folder: Path, hosts: list[Host], _: str) -> Any:
    from services.support.kafka.server import KafkaCluster

    copies = {"default.replication.factor": "3", "min.insync.replicas": "2"}
    return KafkaCluster(folder, 3, hosts=hosts, settings=copies)


def redis(folder: Path, hosts: list[Host], _: str) -> Any:
    from services.support.redis.server import RedisServer

    return RedisServer(folder, host=hosts[0])


def cluster(folder: Path, hosts: list[Host], _: str) -> Any:
    from services.support.redis.cluster import RedisCluster

    return RedisCluster(folder, hosts=hosts)


def spark(folder: Path, hosts: list[Host], master: str) -> Any:
    from services.support.spark.cluster import SparkCluster

    return SparkCluster(folder, *(host.address for host in hosts), hosts=hosts, master=master)


KINDS = {
    "kafka3": Kind("{kafka}", "broker", 3, kafka3),
    "redis": Kind("{redis}", "redis", 1, redis),
    "cluster": Kind("{redis}", "redis", 6, cluster),
    "spark": Kind("{spark}", "worker", 3, spark),
}


def cuts(hosts: Hosts, groups: dict[str, list[Host]]) -> dict[str, Cut]:
    """Return the cuts of a plan, by name."""
    outside = [hosts["outside"]]
    found = {}
    for group, members in groups.items():
        for number, host in enumerate(members):
            found[f"{group}-{number}-off"] = hosts.off(host)
            if group != "worker" and len(members) > 1:
                others = [each for each in members if each != host]
                found[f"{group}-{number}-alone"] = hosts.cut([host], others)
        found[f"driver-to-{group}"] = hosts.cut(outside, members, one_way=True)
        found[f"{group}-to-driver"] = hosts.cut(members, outside, one_way=True)
        if len(members) > 3:
            found[f"{group}-halves"] = hosts.cut(members[::2], members[1::2])
        if group != "worker" and "worker" in groups:
            found[f"workers-from-{group}"] = hosts.cut(groups["worker"], members)
    return found


def paused(servers: dict[str, Any]) -> dict[str, Cut]:
    """Return faults that stop a server's process for a while, by name."""
    pids = {}
    if kafka := servers.get("broker"):
        pids |= {f"broker-{number}": kafka.pid(number) for number in range(3)}
    if store := servers.get("redis"):
        members = getattr(store, "servers", [store])
        pids |= {f"redis-{number}": each.pid for number, each in enumerate(members)}
    return {f"{name}-paused": Cut(f"kill -STOP {pid}", f"kill -CONT {pid}") for name, pid in pids.items()}


def plan_of(faults: dict[str, Cut]) -> str:
    """Return a plan as TOML."""
    entries = []
    for number, (name, cut) in enumerate(faults.items()):
        begin, end = map(json.dumps, cut.commands)
        hold_s = HOLD_S[number % len(HOLD_S)]
        entries.append(f'[[fault]]\nname = "{name}"\nbegin = {begin}\nend = {end}\nhold_s = {hold_s}\n')
    return "\n".join(entries)


def main(arguments: list[str]) -> int:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    names, command = arguments[:end], arguments[end + 1 :]
    if not names or not command or not {*names} <= {*KINDS}:
        print(__doc__, file=sys.stderr)
        return 2
    if why := why_not():
        print(f"{why}; hosts need root and the program ip (Debian: iproute2)", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-")))
        hosts = running.enter_context(Hosts())
        outside = hosts["outside"].address
        os.environ["SPARK_LOCAL_IP"] = outside
        groups, servers = {}, {}
        for kind in (KINDS[name] for name in names):
            groups[kind.group] = [hosts.add(f"{kind.group}-{number}") for number in range(kind.hosts)]
            made = kind.make(folder / kind.group, groups[kind.group], outside)
            servers[kind.group] = running.enter_context(made)
            command = [word.replace(kind.word, made.url) for word in command]
        plan = folder / "plan.toml"
        plan.write_text(plan_of(cuts(hosts, groups) | paused(servers)))
        code = run([word.replace("{plan}", str(plan)) for word in command])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
