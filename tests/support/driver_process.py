r"""A driver without Spark, as a process of its own, for crash tests and demonstrations.

    python tests/support/driver_process.py --wal file:///w --store sqlite:///s \
        --namespace n --checkpoint /c --batches 5

It commits batches 0 to K-1 whose rows are a pure function of seed and batch id, and replays as Spark does: a
batch's offsets are noted in the checkpoint folder before it runs, its commit after it, so that a process
killed in between runs the same batch again. Batch b makes version b + 1 and nothing else does, so
``expected_at`` computes the rows that a reader must find at a version. Failpoints are set by
TIDEGATE_FAILPOINTS. Each event is one line of JSON on standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer
from tidegate.errors import TidegateError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.testing.process.driver import Checkpoint, make_driver_of, make_trimmer, pipeline_of
from tidegate.testing.process.forked import WithoutPandas
from tidegate.wal.fold import replay_of
from tidegate.wal.open_log import open_log

MARKER = "marker"
"""A table whose every key holds the number of the batch: two numbers in it are a mixed read."""

KEPT, CLEARED = "aircraft", "alerts"
MARKER_KEYS = 8

Content = dict[str, dict[bytes, bytes]]
"""Live values by table and key."""


def rows_of(seed: int, batch_id: int, rows: int) -> dict[str, dict[bytes, bytes | None]]:
    """Compute the changes of one batch: about ``rows`` upserts, deletes among them, and the marker."""
    chance = random.Random(f"{seed}-{batch_id}")
    number = b"%d" % batch_id
    kept: dict[bytes, bytes | None] = {}
    cleared: dict[bytes, bytes | None] = {}
    for _ in range(rows):
        kept[b"N%d" % chance.randrange(2 * rows)] = b"%d-%d" % (batch_id, chance.randrange(1_000))
        key = b"a%d" % chance.randrange(rows)
        cleared[key] = None if chance.random() < 0.5 else number
    marker: dict[bytes, bytes | None] = {b"m%d" % at: number for at in range(MARKER_KEYS)}
    return {KEPT: kept, CLEARED: cleared, MARKER: marker}


def expected_at(seed: int, version: int, rows: int) -> Content:
    """Compute every table's live rows at a version, from the batches alone."""
    content: Content = {KEPT: {}, CLEARED: {}, MARKER: {}} if version else {}
    for batch_id in range(version):
        for table, changes in rows_of(seed, batch_id, rows).items():
            for key, value in changes.items():
                if value is None:
                    content[table].pop(key, None)
                else:
                    content[table][key] = value
    return content


def say(event: str, **facts: object) -> None:
    """Print one event as one JSON line, at once."""
    print(json.dumps({"event": event, **facts}), flush=True)


def make_driver(args: argparse.Namespace) -> Coordinator:
    """Make a driver whose versions are all applied in works of their own, as executors apply them."""
    options = Options(
        key_groups=args.key_groups,
        frame_bytes=args.frame_bytes,
        driver_apply_max_changes=0,
        parallelism=args.parallelism,
        keep_versions=args.keep_versions or 1,
        decide_deadline_s=args.deadline,
        apply_deadline_s=args.deadline,
        summary_every=args.summary_every,
        commit_in_flight=args.in_flight or Options().commit_in_flight,
        allow_unsafe=args.allow_unsafe,
    )
    log = open_log(args.wal, args.namespace, args.wal_options)
    store = open_store(args.store, args.namespace)
    return make_driver_of(
        Endpoints(args.namespace, args.wal, args.store, args.wal_options), log, store, options
    )


@contextlib.contextmanager
def as_in_the_background(what: str) -> Iterator[None]:
    """Print an error instead of failing the batch: a newer driver may have trimmed what it reads."""
    try:
        yield
    except TidegateError as error:
        say(f"not {what}", error=type(error).__name__, message=str(error))


def run_query(driver: Coordinator, args: argparse.Namespace) -> None:
    """Open, then run every batch in turn, from the first that the checkpoint does not have."""
    recovered = open_namespace(driver, args.lineage)
    say("opened", epoch=driver.epoch, recovered=recovered)
    checkpoint, trimmer = Checkpoint(args.checkpoint), make_trimmer(driver, args.wal_retain)
    pipeline = pipeline_of(driver) if args.in_flight else None
    for batch_id in range(checkpoint.next_batch(), args.batches):
        offsets = checkpoint.plan(batch_id)
        origin = batch(args.lineage, batch_id, offsets)
        fact = replay_of(driver.folded, origin)
        if fact is not None:
            say("replayed", batch=batch_id, version=fact.version)
        else:
            barrier = ArrowBarrier(
                driver.log,
                rows_of(args.seed, batch_id, args.rows),
                origin,
                driver.folded.key_groups,
                parallelism=args.parallelism,
                source_offsets=offsets,
            )
            fact = commit(driver, barrier) if pipeline is None else pipeline.commit(barrier)
            say("committed", batch=batch_id, version=fact.version, attempt=fact.attempt)
        retire(driver, args)
        checkpoint.done(batch_id)
        trim(driver, trimmer)
    if pipeline is not None:
        pipeline.drain(args.deadline)
        retire(driver, args)
        trim(driver, trimmer)
    say("done", version=driver.folded.last_version)


# On this thread, not in the background, so that a kill in it always strikes at the same place.


def retire(driver: Coordinator, args: argparse.Namespace) -> None:
    """Retire the versions that ``--keep-versions`` no longer keeps."""
    if args.keep_versions:
        with as_in_the_background("retired"):
            retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)


def trim(driver: Coordinator, trimmer: Trimmer) -> None:
    """Trim the log, when it is due."""
    with as_in_the_background("trimmed"):
        trimmer.trim(driver.decisions.view, driver.clock.now_us())


def run_recover(driver: Coordinator) -> None:
    """Complete what was decided, and no more, with nothing but the log and the store."""
    recovered = open_namespace(driver, None)
    say("recovered", epoch=driver.epoch, recovered=recovered)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wal", required=True, help="URL of the log")
    parser.add_argument("--store", required=True, help="URL of the store")
    parser.add_argument("--namespace", default="crash")
    parser.add_argument("--wal-options", type=json.loads, default={}, help="the log's options, as JSON")
    parser.add_argument("--allow-unsafe", action="store_true", help="as the option of the same name")
    parser.add_argument("--checkpoint", type=Path, help="folder that stands for Spark's checkpoint")
    parser.add_argument("--lineage", default="query-1")
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=30, help="upserts per batch and table")
    parser.add_argument("--key-groups", type=int, default=8)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--frame-bytes", type=int, default=700)
    parser.add_argument("--deadline", type=float, default=20.0, help="seconds to decide, and to apply")
    parser.add_argument("--keep-versions", type=int, default=0, help="retire older ones; 0 keeps all")
    parser.add_argument("--summary-every", type=int, default=500, help="versions between Summaries")
    parser.add_argument("--wal-retain", type=float, default=86_400.0, help="seconds that the log is kept")
    parser.add_argument("--in-flight", type=int, default=0, help="commit pipelined, so many versions at most")
    parser.add_argument("--recover", action="store_true", help="only finish what was decided")
    args = parser.parse_args(argv)
    if args.checkpoint is None and not args.recover:
        parser.error("--checkpoint is needed, except with --recover")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run; the exit code is 0 or that of the error, which is printed as an event."""
    args = arguments(argv)
    driver = make_driver(args)
    try:
        if args.recover:
            run_recover(driver)
        else:
            run_query(driver, args)
    except TidegateError as error:
        say("error", error=type(error).__name__, message=str(error))
        return error.exit_code
    finally:
        driver.store.close()
        driver.log.close()
    return 0


if __name__ == "__main__":
    sys.meta_path.insert(0, WithoutPandas())
    sys.exit(main())
