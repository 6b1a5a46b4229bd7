r"""Reads of readers in other languages beside their bare Redis client.

    tools/run python tests/services/run.py redis-memory -- \
        python benchmarks/bench_readers.py --store {redis} --reader go|java [--rounds 2000] [--key-groups 128]

One key, 121 keys of 3 tables, and a scan of 1,000 rows. The reader's own program does the timing, so it is
that language's time: the reader and the bare client (HGET; HMGET or HGETALL of plain hashes in one pipeline)
alternately, at an unchanged version. It prints medians in microseconds, their ratio, and the round trips of
one call, which a proxy in that program counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import redis

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import SCHEMA, json_value, new_folder, parser_of, writer_of

from tidegate.committers.commit import commit
from tidegate.keys.groups import key_group
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.testing import arrow_barrier

ROOT = Path(__file__).resolve().parent.parent
TABLES = {"one": 10_000, "two": 10_000, "three": 10_000, "scanned": 1_000}
"""The number of rows of each table; the keys are k0, k1 and so on."""
NAMESPACE = "bench-readers"


def build_go(folder: Path) -> list[str]:
    """Build the program of readers/go; return its command."""
    program = folder / "conformance"
    build = ["go", "build", "-o", str(program), "./cmd/conformance"]
    subprocess.run(build, cwd=ROOT / "readers" / "go", check=True)
    return [str(program)]


def build_java(_folder: Path) -> list[str]:
    """Build the classes of readers/java; return the command of their benchmark."""
    pom = ROOT / "readers" / "java" / "pom.xml"
    target = pom.parent / "target"
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={target / 'lib'}"]
    subprocess.run(["mvn", "-q", "-B", "-f", str(pom), "package", *copy], check=True)
    places = ":".join(str(target / each) for each in ("classes", "test-classes", "lib/*"))
    return ["java", "-cp", places, "dev.tidegate.reader.Bench"]


READERS = {"go": build_go, "java": build_java}
"""By language, a function that builds the reader's program and returns its command; ``bench`` follows it."""


def write(store: str, folder: Path, key_groups: int) -> None:
    """Write the namespace, and the same stored rows as plain hashes ``bare:<table>:<key group>``."""
    arrow_barrier.BYTES_SCHEMA = SCHEMA  # the rows below are JSON
    rows = {
        table: {f"k{number}".encode(): json_value(number) for number in range(count)}
        for table, count in TABLES.items()
    }
    with writer_of(
        Endpoints(NAMESPACE, f"file://{folder}/wal", store), Options(key_groups=key_groups)
    ) as coordinator:
        origin = arrow_barrier.batch("bench", 0)
        commit(coordinator, arrow_barrier.ArrowBarrier(coordinator.log, rows, origin, key_groups))
    with redis.Redis.from_url(store) as client, client.pipeline(transaction=False) as pipe:
        for table, values in rows.items():
            for key, value in values.items():
                pipe.hset(f"bare:{table}:{key_group(key, key_groups)}", key, b"+" + value)
        pipe.execute()


def main() -> None:
    parser = parser_of(__doc__, store=True, rounds=2_000, key_groups=128)
    parser.add_argument("--reader", choices=sorted(READERS), required=True)
    arguments = parser.parse_args()
    with new_folder() as folder:
        command = READERS[arguments.reader](folder)
        write(arguments.store, folder, arguments.key_groups)
        numbers = ["-rounds", str(arguments.rounds), "-key-groups", str(arguments.key_groups)]
        bench = [*command, "bench", *numbers, arguments.store, NAMESPACE]
        done = subprocess.run(bench, stdout=subprocess.PIPE, text=True, check=True)
    print(f"{'':24}{'reader, us':>12}{'bare, us':>12}{'ratio':>8}{'round trips':>13}{'bare':>6}")
    for name, found in json.loads(done.stdout).items():
        ratio = found["us"] / found["bare_us"]
        print(
            f"{name:24}{found['us']:12.0f}{found['bare_us']:12.0f}{ratio:8.2f}"
            f"{found['round_trips']:13.0f}{found['bare_round_trips']:6.0f}"
        )


if __name__ == "__main__":
    main()
