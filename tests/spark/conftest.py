"""One Spark session for the folder, and streams: files in, versions out, in a folder of their own.

``--log kafka`` puts the log of every stream on a Kafka broker instead of into that folder.

Batches here are small, and small batches are staged by the driver. So that the staging job is tested, the
sinks of ``Stream`` have ``driver_stage_max_rows=0``; tests marked ``both_ways`` run once so, and once with
the driver staging every batch, the first one too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, types

sys.path.append(str(Path(__file__).parent))  # tools/run keeps it off

from log_places import FilePlace, KafkaPlace, LogPlace
from sink_threads import sink_threads

import tidegate
from services.support.kafka.foreign import foreign_kafka
from services.support.kafka.server import KafkaCluster
from support.spark_processes import DriverProcesses
from support.wait import wait_until
from tidegate.base.clock import Clock
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.spark import VersionedSink, configure
from tidegate.spark.session.releases import arrow_schema_of, type_of_ddl
from tidegate.wal.fold import View, fold_all

DEADLINE_S = 900.0
NAMESPACE = "flights"
LACKS = ("does not run on the pyspark that is installed", "No module named 'pyspark.", "from 'pyspark.")

Row = dict[str, Any]
Batch = Sequence[Row]
Function = Callable[[DataFrame, int], None]


# -- where the log is -------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--log", choices=("file", "kafka"), default="file", help="where the log of streams is")


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "on_kafka: the kind of log matters to it; `make test` runs it with --log kafka, too",
        "only_log(kind): it is about one kind of log",
        "both_ways: runs twice, batches staged by the job, and (slow) by the driver",
    ):
        config.addinivalue_line("markers", line)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))  # they share a JVM
        wanted = item.get_closest_marker("only_log")
        if wanted is not None and wanted.args[0] != log_kind(config):
            item.add_marker(pytest.mark.skip(reason=f"only with --log {wanted.args[0]}"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("both_ways") is not None:
        driver = pytest.param("driver", marks=pytest.mark.slow)
        metafunc.parametrize("stream", ["job", driver], indirect=True)


def log_kind(config: pytest.Config) -> str:
    return str(config.getoption("--log", "file"))


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Skip a module that needs a part of tidegate which this release of Spark lacks, and say so."""
    made = yield
    report = made.get_result()
    if report.failed and any(lack in str(report.longrepr) for lack in LACKS):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 1, f"Skipped: it {LACKS[0]}")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one broker for all tests: take new names for topics."""
    foreign = foreign_kafka()
    if foreign is not None:
        yield foreign.bootstrap
        return
    with KafkaCluster(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster.bootstrap


@pytest.fixture
def log_at(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], LogPlace]]:
    """The place of a log for what works in this folder: there, or on the broker."""
    made: list[LogPlace] = []

    def place(folder: Path) -> LogPlace:
        if log_kind(request.config) == "kafka":
            made.append(KafkaPlace(request.getfixturevalue("kafka"), folder / "wal"))
        else:
            made.append(FilePlace(folder / "wal"))
        return made[-1]

    yield place
    for one in made:
        one.drop()


# -- Spark ------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        configure(SparkSession.builder)
        .master("local[2,4]")  # 4: a task is tried so often
        .appName("tidegate tests")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # short lives
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")  # what fails here is meant to; the tests read the exceptions
    yield session
    session.stop()


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Callable[[str, object], None]]:
    """Sets a session option for one test."""
    before: dict[str, str | None] = {}

    def put(name: str, value: object) -> None:
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, str(value))

    yield put
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@dataclasses.dataclass
class Ran:
    """One run of a query: what its function raised, what Spark made of it, the batches it saw."""

    error: BaseException | None = None
    exception: StreamingQueryException | None = None
    batches: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Stream:
    """One namespace with its input, checkpoint, log and store. ``schema`` is Spark's DDL of the input."""

    spark: SparkSession
    folder: Path
    schema: str
    log: LogPlace
    staged_by: str = "job"
    files: int = 0

    def __post_init__(self) -> None:
        self.input.mkdir(parents=True)
        self.store = f"sqlite://{self.folder}/store"

    @property
    def input(self) -> Path:
        return self.folder / "input"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def add(self, *batches: Batch) -> None:
        """One file for each batch, older first by modification time."""
        schema = arrow_schema_of(self._spark_schema())
        for rows in batches:
            self.files += 1
            path = self.input / f"{self.files:04}.parquet"
            hidden = path.with_name(f"_{path.name}")  # Spark does not look at such names
            pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), hidden)
            os.utime(hidden, (1_600_000_000 + 100 * self.files,) * 2)
            hidden.rename(path)

    def _spark_schema(self) -> types.StructType:
        return type_of_ddl(self.schema)

    def sink(self, **options: Any) -> VersionedSink:
        where = {"namespace": NAMESPACE, "store": self.store, **self.log.keywords}
        ways = {} if self.staged_by == "driver" else {"driver_stage_max_rows": 0}
        sink = VersionedSink(**{**where, "heartbeat_s": 0.1, **ways, **options})
        if self.staged_by == "driver":
            sink._small.staged(0, 0)  # as if a small batch had been there already
        return sink

    def start(self, function: Function, *, per_batch: int = 1, **trigger: Any) -> tuple[Any, Ran]:
        """A running query, and what becomes of it (its ``error`` once the function raised)."""
        ran = Ran()

        def noted(rows: DataFrame, batch_id: int) -> None:
            ran.batches.append(batch_id)
            try:
                function(rows, batch_id)
            except Exception as error:
                ran.error = error
                raise
            except BaseException as error:  # pytest's own: py4j would never answer Spark
                ran.error = error
                raise RuntimeError(str(error)) from error

        query = (
            self.spark.readStream.schema(self._spark_schema())
            .option("maxFilesPerTrigger", per_batch)
            .parquet(str(self.input))
            .writeStream.foreachBatch(noted)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        return query, ran

    def run(self, function: Function, *, per_batch: int = 1) -> Ran:
        """Run the query over all files that are there, to its end."""
        query, ran = self.start(function, per_batch=per_batch)
        try:
            ended = query.awaitTermination(DEADLINE_S)
        except StreamingQueryException as error:
            ended, ran.exception = True, error
        if not ended:
            query.stop()
            pytest.fail(f"the query did not end within {DEADLINE_S} s")
        for thread in threading.enumerate():
            if thread.name == "tidegate-failed-batch":  # its line is in the log when this returns
                thread.join(DEADLINE_S)
        return ran

    def commit(self, function: Function, *batches: Batch, per_batch: int = 1) -> Ran:
        """Add batches and run; the query must not fail."""
        self.add(*batches)
        ran = self.run(function, per_batch=per_batch)
        if ran.error is not None:
            raise ran.error
        assert ran.exception is None, ran.exception
        return ran

    def in_batch(self, check: Function) -> None:
        """Call ``check`` from the next batch of a query, as a sink would be called."""
        ran = self.run(check)
        if ran.error is not None:
            raise ran.error
        assert ran.exception is None, ran.exception
        assert ran.batches, "there was no file for a batch"

    # -- what came of it ------------------------------------------------------------------------

    def gate(self) -> Any:
        return tidegate.connect(self.store, namespace=NAMESPACE)

    def version(self) -> int:
        with self.gate() as gate:
            return int(gate.version())

    def rows(self, table: str, version: int | None = None) -> dict[Any, Any]:
        """A table's content at a version (default: the newest)."""
        with self.gate() as gate, gate.snapshot(version=version) as snapshot:
            return dict(snapshot.table(table).scan())

    def view(self) -> View:
        """The decision log, folded from its beginning."""
        with self.log.opened(NAMESPACE) as log:
            return fold_all(View(), log.decisions())

    def records(self) -> list[tuple[int, bytes]]:
        """What stands in the decision log, byte for byte."""
        return self.log.records(NAMESPACE)

    def segments(self) -> int:
        """How much was staged: one for each try of a task with rows, one per manifest."""
        return len(self.log.segments(NAMESPACE))

    def decided(self) -> int:
        """The last version that the decision log has; 0 for a log that is not there."""
        state = self.view().state
        return 0 if state is None else state.last_version


@pytest.fixture
def stream(
    spark: SparkSession,
    tmp_path: Path,
    log_at: Callable[[Path], LogPlace],
    request: pytest.FixtureRequest,
) -> Callable[..., Stream]:
    """Makes a stream of rows with this schema; the name tells several streams of a test apart.

    ``staged_by`` is who stages its batches, the job or the driver.
    """

    def make(schema: str, name: str = "stream", staged_by: str = getattr(request, "param", "job")) -> Stream:
        return Stream(spark, tmp_path / name, schema, log_at(tmp_path / name), staged_by)

    return make


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is published until this is set."""
    let_go, plain = threading.Event(), SqliteStore.publish

    def publish(store: Any, entry: Any, epoch: int) -> Any:
        assert let_go.wait(60)
        return plain(store, entry, epoch)

    monkeypatch.setattr(SqliteStore, "publish", publish)
    yield let_go
    let_go.set()


@pytest.fixture
def pass_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the driver's clock by minutes; a decision may be less than an hour ahead of the log's."""
    real, ahead = Clock.now_us, [0]
    monkeypatch.setattr(Clock, "now_us", lambda clock: real(clock) + ahead[0])

    def pass_by(minutes: float) -> None:
        ahead[0] += round(minutes * 60_000_000)

    return pass_by


# -- drivers in processes of their own --------------------------------------------------------------


@pytest.fixture
def drive() -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs a script of this folder to its end, as ``DriverProcesses.run``."""
    with contextlib.closing(DriverProcesses()) as drivers:
        yield drivers.run


@pytest.fixture
def poll() -> Callable[..., Any]:
    return functools.partial(wait_until, deadline_s=DEADLINE_S)


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """Every test ends its own background work: a heartbeat that outlives its query is a defect."""
    yield
    wait_until(lambda: not sink_threads(), "background threads end with their query")
