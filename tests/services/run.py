"""Start servers, run one command that needs them, end them; the exit code is the command's.

    tools/run python tests/services/run.py kafka -- tidegate doctor --wal {kafka}
    tools/run python tests/services/run.py kafka redis -- tidegate demo --wal {kafka} --store {redis}

In the command ``{kafka}`` becomes kafka://host:port (or several, with commas), ``{redis}`` or
``{cassandra}`` the store's URL:

    kafka      one broker              redis      one server, redis://host:port
    kafka3     three                   sentinel   a primary, a replica and three Sentinels,
                                                  redis+sentinel://host:port,host:port,host:port/name
                                       cluster    three primaries and their replicas,
                                                  redis+cluster://host:port,...
                                       redis-memory  as redis, but nothing goes to a disk: for benchmarks

    cassandra           one node, cassandra://host:port/tidegate; that keyspace is not made yet
    cassandra-cluster   three, cassandra://host:port,host:port,host:port/tidegate

At most one of a kind. Ctrl-C and SIGTERM end the command first, then the servers.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # tools/run keeps it off

END_S = 20.0


# A client's library is imported when its servers are asked for: no Kafka is needed to run Redis.
def kafka(folder: Path, brokers: int = 1) -> Any:
    from services.support.kafka.server import KafkaCluster

    return KafkaCluster(folder, brokers)


def redis(folder: Path) -> Any:
    from services.support.redis.server import RedisServer

    return RedisServer(folder)


def redis_memory(folder: Path) -> Any:
    """Without persistence: a server that rewrites its append-only file takes a core of the measured ones."""
    from services.support.redis.server import RedisServer

    return RedisServer(folder, settings={"appendonly": "no"})


def sentinel(folder: Path) -> Any:
    from services.support.redis.sentinel import RedisSentinel

    return RedisSentinel(folder)


def cluster(folder: Path) -> Any:
    from services.support.redis.cluster import RedisCluster

    return RedisCluster(folder)


def cassandra(folder: Path) -> Any:
    from services.support.cassandra.config import LARGE_JVM
    from services.support.cassandra.server import CassandraServer

    return CassandraServer(folder, jvm=LARGE_JVM)


def cassandra_cluster(folder: Path) -> Any:
    from services.support.cassandra.cluster import CassandraCluster

    return CassandraCluster(folder)


class Kind(NamedTuple):
    word: str
    make: Callable[[Path], Any]


KINDS = {
    "kafka": Kind("{kafka}", kafka),
    "kafka3": Kind("{kafka}", lambda folder: kafka(folder, brokers=3)),
    "redis": Kind("{redis}", redis),
    "redis-memory": Kind("{redis}", redis_memory),
    "sentinel": Kind("{redis}", sentinel),
    "cluster": Kind("{redis}", cluster),
    "cassandra": Kind("{cassandra}", cassandra),
    "cassandra-cluster": Kind("{cassandra}", cassandra_cluster),
}


def run(command: list[str]) -> int:
    """Run it to its end. When we are told to end, so is it: SIGTERM, and SIGKILL if that is not heeded."""
    child = subprocess.Popen(command)
    try:
        return child.wait()
    finally:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            child.wait(END_S)
        child.kill()


def asked_for(arguments: list[str]) -> tuple[list[Kind], list[str]] | None:
    """The kinds of servers and the command; None when that is not what the arguments say."""
    if "--" not in arguments:
        return None
    at = arguments.index("--")
    names, command = arguments[:at], arguments[at + 1 :]
    words = [KINDS[name].word for name in names if name in KINDS]
    if not names or not command or len(set(words)) < len(names):
        return None
    return [KINDS[name] for name in names], command


def main(arguments: list[str]) -> int:
    asked = asked_for(arguments)
    if asked is None:
        print(__doc__, file=sys.stderr)
        return 2
    kinds, command = asked
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with contextlib.ExitStack() as running:
        folder = running.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-"))
        for n, kind in enumerate(kinds):
            url = running.enter_context(kind.make(Path(folder, str(n)))).url
            command = [word.replace(kind.word, url) for word in command]
        code = run(command)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
