"""Rounds of cases: the calls of all cases are made in the same transactions, in each of two ways."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import tidegate
from differential.cases import BATCHES, FUNCTIONS, PLAIN, Case, random_case
from differential.encoding import json_text, key_bytes, key_group
from differential.frames import Frames, frames_of
from differential.model import Changes
from tidegate.spark import VersionedSink
from tidegate.wal.fold import View, fold_all
from tidegate.wal.open_log import open_log
from tidegate.wal.staging.quarantine import TABLE as QUARANTINE

SHOWN = 5
"""The faults of a batch that are printed."""
SIZE = 10
"""The number of cases in a round. Each Spark task reads the plan of all of them: more cases are slower."""
FRUGAL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Spark compiles nothing, and plans once. Most of the time of small batches is that of its compiler."""
SETTINGS: list[dict[str, str]] = [
    {},
    {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
    {"spark.sql.session.timeZone": "America/New_York"},
    {"spark.sql.ansi.enabled": "false", "spark.sql.session.timeZone": "Asia/Kathmandu"},
    {"spark.sql.caseSensitive": "true", "spark.sql.legacy.timeParserPolicy": "CORRECTED"},
    {"spark.sql.function.concatBinaryAsString": "true", "spark.sql.adaptive.enabled": "false"},
]
WAYS = ("first", "second")


@dataclasses.dataclass
class Round:
    """Cases, and what is the same for all of them.

    Without functions the job stages the first way and the driver the second one. With functions the job
    stages both, the second one at another number of tasks in each batch.
    """

    seed: int
    first: int
    cases: list[Case]
    settings: dict[str, str]
    key_groups: int
    partitions: int
    """The partitions of the rows. Calls of one partition each are one task of Spark's."""
    tasks: dict[str, list[int]]
    has_functions: bool

    @property
    def where(self) -> str:
        return f"seed {self.seed}, round {self.first}, cases {[case.number for case in self.cases]}"


def random_round(seed: int, first: int, size: int = SIZE) -> Round:
    """Return the round that begins with this case: the same for the same arguments."""
    chance = random.Random(f"{seed}/{first}/round")
    has_functions = chance.random() < 0.25
    kinds = (*PLAIN, *FUNCTIONS, *FUNCTIONS, *FUNCTIONS) if has_functions else PLAIN
    settings = chance.choice(SETTINGS) | (FRUGAL if chance.random() < 0.8 else {})
    tasks = {way: [chance.randint(1, 3)] * BATCHES for way in WAYS}
    if has_functions:
        tasks["second"] = [chance.randint(1, 4) for _ in range(BATCHES)]
    cases = [random_case(seed, number, kinds) for number in range(first, first + size)]
    key_groups, partitions = chance.choice([4, 7, 16]), chance.choice([1, 1, 1, 2])
    return Round(seed, first, cases, settings, key_groups, partitions, tasks, has_functions)


def run(spark: SparkSession, folder: Path, played: Round) -> None:
    """Run a round as a query: a namespace begins with a query. Raises: AssertionError: a result is wrong."""
    (folder / "input").mkdir(parents=True)
    for index in range(BATCHES):
        (folder / "input" / f"{index:06}.json").write_text('{"x": 1}')
    errors: list[BaseException] = []
    play = Play(played, folder / "round")

    def write(batch_df: Any, batch_id: int) -> None:
        try:
            play.write(batch_df, batch_id)
        except BaseException as error:
            errors.append(error)
            raise

    source = spark.readStream.schema("x int").option("maxFilesPerTrigger", 1).json(str(folder / "input"))
    query = (
        source.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise (errors[0] if errors else error) from None
    finally:
        play.close()


class Play:
    """A round while it runs: the two sinks, and the model of each case for each way."""

    def __init__(self, played: Round, folder: Path) -> None:
        self.round, self.folder = played, folder
        self.models = {way: [case.model(played.key_groups) for case in played.cases] for way in WAYS}
        self.sinks: dict[str, VersionedSink] = {}

    def write(self, batch_df: Any, batch: int) -> None:
        """Write a batch in both ways, and check what is in the logs; after the last one what readers get."""
        session = batch_df.sparkSession
        frames = [
            session.createDataFrame(case.tuples(batch), case.ddl, verifySchema=False).coalesce(
                self.round.partitions
            )
            for case in self.round.cases
        ]

        def calls(txn: Any, _: Any) -> None:
            for case, rows in zip(self.round.cases, frames, strict=True):
                case.write(txn, rows, batch)

        with _set(session, self.round.settings):
            for way in WAYS:
                self._sink(way, batch).each(calls)(batch_df, batch)
        staged = {way: self._frames(way) for way in WAYS}
        faults = []
        for way, (tasks, of_way) in staged.items():
            if tasks != (1 if self._is_driver(way) else self.round.tasks[way][batch]):
                faults.append(f"{way}: {tasks} tasks staged it")
            faults += [f"{way}, {fault}" for fault in self._stored_faults(way, batch, of_way)]
        quarantined = [rows.get(QUARANTINE, []) for _, rows in staged.values()]
        if quarantined[0] != quarantined[1]:
            faults.append(f"{QUARANTINE}: {quarantined}")
        if batch == BATCHES - 1:
            faults += [f"{way}, {fault}" for way in WAYS for fault in self._reader_faults(way)]
        if faults:
            raise AssertionError("\n".join((f"{self.round.where}, batch {batch}", *faults[:SHOWN])))

    def _is_driver(self, way: str) -> bool:
        return way == "second" and not self.round.has_functions

    def _sink(self, way: str, batch: int) -> VersionedSink:
        tasks = self.round.tasks[way]
        if batch and tasks[batch] != tasks[batch - 1]:
            self.sinks.pop(way).close()
        if way not in self.sinks:
            self.sinks[way] = VersionedSink(
                namespace=way,
                wal=f"file://{self.folder}/wal",
                store=f"sqlite://{self.folder}/store",
                parallelism=tasks[batch],
                key_groups=self.round.key_groups,
                on_bad_record="quarantine",
                ttl={case.table: 1e9 for case in self.round.cases if case.expires},
                local_dir=str(self.folder / "local"),
                **({} if self._is_driver(way) else {"driver_stage_max_rows": 0}),
            )
        self.sinks[way]._small.staged(0, 0)  # predicts a small batch
        return self.sinks[way]

    def _frames(self, way: str) -> tuple[int, Frames]:
        """Return the number of tasks of the last version, and its rows."""
        with contextlib.closing(open_log(f"file://{self.folder}/wal", way)) as log:
            state = fold_all(View(), log.decisions()).state
            assert state is not None
            return frames_of(log, state.recent[-1])

    def _stored_faults(self, way: str, batch: int, frames: Frames) -> Iterator[str]:
        """Compare the rows of a version's frames with the model, byte for byte."""
        tasks, expected = self.round.tasks[way][batch], Changes()
        has_bad = False
        for case, model in zip(self.round.cases, self.models[way], strict=True):
            for table, changes in model.follow(case.calls[batch], case.rows[batch], tasks).items():
                expected.setdefault(table, {}).update(changes)
            has_bad |= case.has_bad_rows(batch)
        for table in sorted({*frames, *expected} - {QUARANTINE}):
            rows = [(group, key, _without_time(value or b"")) for group, key, value in frames.get(table, [])]
            changes = expected.get(table, {})
            wanted = [(key_group(key, self.round.key_groups), key, stored) for key, stored in changes.items()]
            if rows != sorted(wanted):
                stored, model_rows = _differing(rows, wanted), _differing(wanted, rows)
                yield f"table {table}\n  stored {stored}\n  model  {model_rows}"
        if has_bad != (QUARANTINE in frames):
            yield f"{QUARANTINE} has rows: {not has_bad}"

    def _reader_faults(self, way: str) -> Iterator[str]:
        """Compare what readers get with the rows of the model, both as JSON."""
        with (
            tidegate.connect(f"sqlite://{self.folder}/store", namespace=way) as gate,
            gate.snapshot() as snap,
        ):
            known = {*snap.tables()} - {"_local"}
            for model in self.models[way]:
                for table in known & {*model.tables}:
                    read = {_key(key): _parsed(value) for key, value in snap.table(table).scan()}
                    rows = {key: _content(stored) for key, stored in model.tables[table].items()}
                    for key, fields in read.items():
                        if isinstance(fields, dict) and key in rows:  # a column may be younger than the row
                            rows[key] = dict.fromkeys(fields) | rows[key]
                    if read != rows:
                        yield f"readers of {table}\n  read  {read}\n  model {rows}"

    def close(self) -> None:
        for sink in self.sinks.values():
            sink.close()
        self.sinks = {}
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def _set(session: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            session.conf.unset(name) if old is None else session.conf.set(name, old)


def _without_time(stored: bytes) -> bytes:
    """Leave out the time at which a row expires."""
    return stored[:1] + stored[9:] if stored[:1] == b"e" else stored


def _differing(rows: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    return [row for row in rows if row not in others][:5]


def _key(key: Any) -> bytes | None:
    return key_bytes(key if isinstance(key, tuple) else (key,))


def _parsed(value: Any) -> Any:
    return value if isinstance(value, bytes) else json.loads(json_text(value))


def _content(stored: bytes) -> Any:
    return json.loads(stored[1:]) if stored[1:2] == b"{" else stored[1:]
