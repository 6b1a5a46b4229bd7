"""Shared parts of the benchmarks: arguments, Spark and its streams, sides that alternate, medians."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tidegate.bench.batches import VALUE, run_query, running, session
from tidegate.bench.report import percentile
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing import arrow_barrier
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Column, TableSchema

__all__ = ["VALUE", "percentile", "running"]

DEADLINE_S = 600.0
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
UNIT = "((shiftrightunsigned(xxhash64(value), 11)) / 9007199254740992D)"
"""A number in [0, 1) for each ``value`` of a stream, by its hash."""
SCHEMA = TableSchema((Column("key", "string"),), (Column("n", "bigint"), Column("text", "string")))

Samples = dict[str, list[float]]


# -- arguments and folders ------------------------------------------------------------------------------


def parser_of(
    doc: str | None, *, wal: bool | None = None, store: bool | None = None, **defaults: float
) -> argparse.ArgumentParser:
    """Return a parser of numbers with these defaults, and of ``--wal`` and ``--store``, where not None.

    These are required where True. The first line of ``doc`` is the description.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for option, required in (("--wal", wal), ("--store", store)):
        if required is not None:
            parser.add_argument(option, required=required)
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser


@contextlib.contextmanager
def new_folder() -> Iterator[Path]:
    """Yield a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)


# -- Spark ----------------------------------------------------------------------------------------------


def spark_on(
    master: str = "local[2]", *, partitions: int = 2, **settings: str
) -> contextlib.AbstractContextManager[Any]:
    """Return a session without a page; settings have ``__`` for a dot in their names."""
    dotted = {name.replace("__", "."): value for name, value in settings.items()}
    return session(
        master, {"spark.driver.memory": "3g", "spark.sql.shuffle.partitions": str(partitions), **dotted}
    )


def connector_settings(store: str, jars: str | None) -> dict[str, str]:
    """Return the settings of the Spark Cassandra Connector: its jars in a folder, and the node."""
    if not jars:
        return {}
    node = urlsplit(store)
    return {
        "spark__jars": ",".join(str(jar) for jar in Path(jars).glob("*.jar")),
        "spark__cassandra__connection__host": str(node.hostname),
        "spark__cassandra__connection__port": str(node.port),
    }


def rate(spark: Any, rows: int, tasks: int = 2, **options: Any) -> Any:
    """Return a stream with ``rows`` consecutive numbers in ``value``, and a ``timestamp``, a batch."""
    source = spark.readStream.format("rate-micro-batch")
    return source.options(rowsPerBatch=rows, numPartitions=tasks, **options).load()


def run_batches(
    rows: Any,
    write: Callable[[Any, int], object],
    finished: Callable[[], bool],
    deadline_s: float = DEADLINE_S,
) -> None:
    """Call ``write`` for each batch of a stream until ``finished``. TidegateError: as ``run_query``."""
    run_query(rows, write, finished, deadline_s)


@contextlib.contextmanager
def sink_in(
    folder: Path | None, arguments: argparse.Namespace, name: str = "", **options: Any
) -> Iterator[Any]:
    """Yield a sink of a namespace of its own, which is dropped from its store afterwards.

    Log and store are those of the arguments, or files in the folder.
    """
    from tidegate.spark import VersionedSink

    wal = getattr(arguments, "wal", None) or f"file://{folder}/wal"
    store = getattr(arguments, "store", None) or f"sqlite://{folder}/store"
    namespace = f"bench-{os.getpid()}{name}"
    store_options = {"create": True} if store.startswith("cassandra") else {}
    sink = VersionedSink(
        namespace=namespace,
        wal=wal,
        store=store,
        **{"store_options": store_options, "allow_unsafe": True, **options},
    )
    try:
        yield sink
    finally:
        sink.close()
        with contextlib.closing(open_store(store, namespace, store_options)) as opened:
            opened.drop()


# -- without Spark --------------------------------------------------------------------------------------


def keys_up_to(count: int) -> list[bytes]:
    """Return the keys of ``write_versions``."""
    return [b"key-%07d" % number for number in range(count)]


@contextlib.contextmanager
def writer_of(where: Endpoints, options: Options) -> Iterator[Coordinator]:
    """Yield the coordinator of a writer; its store is closed afterwards."""
    log = open_log(where.wal, where.namespace)
    store = open_store(where.store, where.namespace, where.store_options)
    coordinator = Coordinator(where, log, store, options)
    open_namespace(coordinator, "bench")
    try:
        yield coordinator
    finally:
        store.close()


def write_versions(
    coordinator: Coordinator, keys: Iterable[bytes], versions: int, after: Callable[[], object] = lambda: None
) -> None:
    """Commit versions that change every key of table ``t``; call ``after`` after each."""
    arrow_barrier.BYTES_SCHEMA = SCHEMA  # the rows below are JSON
    first = coordinator.folded.last_version
    for version in range(first, first + versions):
        rows = {"t": dict.fromkeys(keys, json_value(version))}
        origin, key_groups = arrow_barrier.batch("bench", version), coordinator.folded.key_groups
        commit(coordinator, arrow_barrier.ArrowBarrier(coordinator.log, rows, origin, key_groups))
        after()


def json_value(version: int) -> bytes:
    """Return the value of every row of a version."""
    return b'{"n":%d,"text":"%s"}' % (version, b"x" * 40)


# -- processes ------------------------------------------------------------------------------------------


def tree(pid: int) -> list[int]:
    """Return the ids of a process and of all below it. One that ends meanwhile is left out."""
    pids = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                for child in (task / "children").read_text().split():
                    pids += tree(int(child))
    return pids


# -- figures --------------------------------------------------------------------------------------------


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds that the work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def microseconds_of(work: Callable[[], object], calls: int = 1) -> list[float]:
    """Return the microseconds of each call."""
    return [1e6 * seconds_of(work) for _ in range(calls)]


def alternate(
    sides: Mapping[str, Callable[[], object]], rounds: int, samples: Samples | None = None, *, start: int = 0
) -> Samples:
    """Call each side once a round, another one first in each, and append its seconds to ``samples``."""
    samples = defaultdict(list) if samples is None else samples
    names = list(sides)
    for turn in range(start, start + rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            samples.setdefault(name, []).append(seconds_of(sides[name]))
    return samples


def alternate_calls(
    sides: Mapping[str, Callable[[], object]], rounds: int, calls: int, warm_up: int = 0
) -> dict[str, float]:
    """Return the median microseconds of each side's calls, over rounds of all sides after ``warm_up``."""
    samples: Samples = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            samples[name] += microseconds_of(work, calls)
    return medians(samples, warm_up=warm_up * calls)


def medians(samples: Mapping[str, Sequence[float]], warm_up: int = 1) -> dict[str, float]:
    """Return the median of each, without the first ``warm_up``."""
    return {name: statistics.median(each[warm_up:]) for name, each in samples.items()}


def shown(samples: Iterable[float], digits: int = 2) -> str:
    """Format the samples in their order."""
    return " ".join(f"{sample:.{digits}f}" for sample in samples)
