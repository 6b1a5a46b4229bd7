r"""Reads while a writer is killed: the plain writer's, then tidegate's, and a picture of both.

    tools/run python tests/services/run.py redis -- \
        python benchmarks/bench_killed_writer.py --store {redis} --picture docs/pictures/killed-writer.svg

Each writer is a Spark program in a process of its own, which rewrites the markers of bench_torn_reads.py to
the batch's number in every batch, one batch after the other. Half a batch's time after it began batch
``--kill-in``, it is killed with its JVM (SIGKILL), and started again with that batch. A reader looks every
10 ms, the plain one by one MGET, tidegate's by a snapshot and one ``get_many``. A read that sees two numbers
is torn. Printed: the reads and the torn ones. tidegate's log is ``--wal``, or a folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from bench_torn_reads import batch_of, plain_reader, plain_writer, versioned_reader
from harness import new_folder, parser_of, spark_on

from tidegate.sinks.open_store import open_store

KINDS = {"plain": "foreachPartition with pipelined SETs", "tidegate": "tidegate"}
PAUSE_S = 0.01
DEADLINE_S = 600.0
LEFT, WIDTH, HEIGHT, GAP = 60, 800, 130, 62
STYLE = "text{font:13px sans-serif;fill:#333}path{fill:none}.whole{stroke:#00897b;stroke-width:3}\
.torn{stroke:#d32f2f;stroke-width:2}.down{fill:#eceff1}.axis{stroke:#90a4ae}"


class Read(NamedTuple):
    """One read: when, in seconds, and the least and greatest number among the markers."""

    at: float
    least: int
    most: int


class Run(NamedTuple):
    """The reads during one writer's run, and when that was killed and began its batch again."""

    reads: list[Read]
    killed: float
    again: float

    @property
    def torn(self) -> int:
        """The number of torn reads."""
        return sum(read.least != read.most for read in self.reads)


# -- the writer's process -------------------------------------------------------------------------------


def write(kind: str, arguments: argparse.Namespace, folder: Path, namespace: str, first: int) -> None:
    """Write batches from ``first`` on until the file ``stop`` exists; print the begin and end of each."""
    with spark_on() as spark, contextlib.ExitStack() as closing:
        if kind == "plain":
            write_plain = plain_writer(arguments.store)
        else:
            from tidegate.spark import VersionedSink

            wal = arguments.wal or f"file://{folder}/wal"
            options: dict[str, Any] = {"table": "t", "key": "key", "allow_unsafe": True}
            sink = closing.enter_context(
                contextlib.closing(
                    VersionedSink(namespace=namespace, wal=wal, store=arguments.store, **options)
                )
            )
        number = first
        while not (folder / "stop").exists():
            print(f"begin {number}", flush=True)
            rows = batch_of(spark, arguments.rows, number)
            if kind == "plain":
                write_plain(rows)
            else:
                sink.load({"t": rows}, token=str(number))
            print(f"end {number}", flush=True)
            number += 1


# -- the run ---------------------------------------------------------------------------------------------


def run(kind: str, arguments: argparse.Namespace, folder: Path, namespace: str) -> Run:
    """Play one writer: its batches, its kill, its restart and as many batches again."""
    read = plain_reader(arguments.store) if kind == "plain" else versioned_reader(arguments.store, namespace)
    reads: list[Read] = []
    ended = threading.Event()
    reader = threading.Thread(target=_read_on, args=(read, reads, ended), daemon=True)
    reader.start()
    (folder / "stop").unlink(missing_ok=True)
    with _writer(kind, arguments, folder, namespace, 1) as process:
        begun = took = 0.0
        for number in range(1, arguments.kill_in + 1):
            begun = _reached(process, f"begin {number}")
            if number < arguments.kill_in:
                took = _reached(process, f"end {number}") - begun
        time.sleep(took / 2)
        killed = time.monotonic()
    with _writer(kind, arguments, folder, namespace, arguments.kill_in) as process:
        again = _reached(process, f"begin {arguments.kill_in}")
        _reached(process, f"end {2 * arguments.kill_in - 1}")
        (folder / "stop").touch()
        process.wait(DEADLINE_S)
    ended.set()
    reader.join(DEADLINE_S)
    begin = reads[0].at
    return Run([Read(each.at - begin, *each[1:]) for each in reads], killed - begin, again - begin)


def _read_on(read: Callable[[], list[Any]], reads: list[Read], ended: threading.Event) -> None:
    """Read until ended. Reads before every marker exists do not count."""
    while not ended.wait(PAUSE_S):
        values = read()
        if values and None not in values:
            reads.append(Read(time.monotonic(), min(values), max(values)))


@contextlib.contextmanager
def _writer(
    kind: str, arguments: argparse.Namespace, folder: Path, namespace: str, first: int
) -> Iterator[subprocess.Popen[str]]:
    """Yield the writer's process, which is killed at the end, and after a deadline, with its JVM."""
    command = [sys.executable, __file__, "--store", arguments.store, "--rows", str(arguments.rows)]
    command += ["--write", kind, str(folder), namespace, str(first)]
    command += ["--wal", arguments.wal] if arguments.wal else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    deadline = threading.Timer(DEADLINE_S, kill)
    deadline.start()
    try:
        yield process
    finally:
        deadline.cancel()
        kill()
        process.wait()


def _reached(process: subprocess.Popen[str], line: str) -> float:
    """Wait for this line of the writer, and return the time."""
    assert process.stdout is not None
    for each in process.stdout:
        if each.strip() == line:
            return time.monotonic()
    raise SystemExit(f"the writer ended before {line!r}")


# -- the picture -----------------------------------------------------------------------------------------


def picture(runs: dict[str, Run]) -> str:
    """Draw the reads over time: a whole read at its number, a torn one from its least to its greatest."""
    height = len(runs) * (HEIGHT + GAP) + 30
    seconds = max(each.reads[-1].at for each in runs.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}">',
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>',
    ]
    for index, (kind, each) in enumerate(runs.items()):
        parts += _panel(KINDS[kind], each, 36 + index * (HEIGHT + GAP), seconds)
    parts.append(
        f'<text x="{LEFT}" y="{height - 10}">Each mark is a read of 100 keys that every batch rewrites: '
        '<tspan fill="#00897b">whole</tspan>, or <tspan fill="#d32f2f">torn</tspan> between batches</text>'
    )
    return "\n".join([*parts, "</svg>\n"])


def _panel(title: str, each: Run, top: int, seconds: float) -> list[str]:
    numbers = max(read.most for read in each.reads)

    def x(at: float) -> int:
        return LEFT + round(at / seconds * WIDTH)

    def y(number: int) -> int:
        return top + HEIGHT - round((number - 0.5) / numbers * HEIGHT)

    whole = sorted({(x(read.at), y(read.most)) for read in each.reads if read.least == read.most})
    torn = {(x(read.at), y(read.least), y(read.most)) for read in each.reads if read.least != read.most}
    share = f"{each.torn:,} of {len(each.reads):,} reads torn ({each.torn / len(each.reads):.0%})"
    bottom, killed, again = top + HEIGHT, x(each.killed), x(each.again)
    return [
        f'<text x="{LEFT}" y="{top - 10}" font-weight="bold">{title}: {share}</text>',
        f'<rect class="down" x="{killed}" y="{top}" width="{again - killed}" height="{HEIGHT}"/>',
        f'<text x="{killed + 4}" y="{top + 15}">driver killed in a batch</text>',
        f'<text x="{again + 4}" y="{top + 15}">started again</text>',
        f'<path class="axis" d="M{LEFT} {top}V{bottom}H{LEFT + WIDTH}"/>',
        f'<text x="6" y="{y(1) + 4}">batch 1</text><text x="6" y="{y(numbers) + 4}">batch {numbers}</text>',
        f'<text x="{LEFT + WIDTH}" y="{bottom + 16}" text-anchor="end">{seconds:.0f} s</text>',
        f'<path class="torn" d="{"".join(f"M{at} {least}V{most}" for at, least, most in sorted(torn))}"/>',
        f'<path class="whole" d="{"".join(f"M{at - 1} {number}h2" for at, number in whole)}"/>',
    ]


def main() -> None:
    parser = parser_of(__doc__, wal=False, store=True, rows=50_000, kill_in=5)
    parser.add_argument("--picture", type=Path, help="an SVG of the reads")
    parser.add_argument("--write", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        kind, folder, namespace, first = arguments.write
        write(kind, arguments, Path(folder), namespace, int(first))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a writer's process is ended, too
    namespace = f"bench-{os.getpid()}-killed"
    with new_folder() as folder:
        try:
            runs = {kind: run(kind, arguments, folder, namespace) for kind in KINDS}
        finally:
            with contextlib.closing(open_store(arguments.store, namespace, {})) as opened:
                opened.drop()
    for kind, each in runs.items():
        print(f"{kind:9} {each.torn:,} of {len(each.reads):,} reads torn ({each.torn / len(each.reads):.1%})")
    if arguments.picture:
        arguments.picture.write_text(picture(runs))


if __name__ == "__main__":
    main()
