"""``writeStream.format("tidegate")`` without Spark, which calls its writer: plans, tasks and commits.

I1 Atomic, I2 Exactly once, I5 Nothing before decided, I6 One writer.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil

import msgspec
import pyarrow as pa
import pytest

import tidegate
from tidegate.base import failpoints
from tidegate.errors import ConfigError, ConflictError, LineageError
from tidegate.keys.groups import groups_of, key_group
from tidegate.spark.session import marked_runs
from tidegate.spark.session.whole_retries import OPTIONS
from tidegate.spark.source.writing import committer, plan, sorted_rows
from tidegate.spark.source.writing import prepare as shaping
from tidegate.spark.source.writing.checkpoint import planned_batch
from tidegate.spark.source.writing.prepare import PREPARED, Prepared, prepare
from tidegate.spark.state.output_rows import RunMark, mark_value
from tidegate.wal.file.log import FileLog
from tidegate.wal.fold import View, fold_all
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging.last_per_key import PLACE, place_of

source = pytest.importorskip("tidegate.spark.source.data_source", exc_type=ImportError)
stream_writer = pytest.importorskip("tidegate.spark.source.writing.stream_writer", exc_type=ImportError)

TASKS, GROUPS = 2, 128
SCHEMA = TableSchema((Column("k", "string"),), (Column("n", "int"),))
NO_TABLE = 65_535


@pytest.fixture(autouse=True)
def nothing_kept():
    """As in a process that Spark has just started; what a test opened ends with it."""
    yield
    failpoints.arm(None)
    forget()


def forget():
    committer.forget_committer()
    plan.forget_planner()


class Context:
    """A task's context, as far as the writer asks it."""

    def __init__(self, task, properties):
        self._task, self._properties = task, properties

    def partitionId(self):  # noqa: N802 - Spark's name
        return self._task

    def attemptNumber(self):  # noqa: N802 - Spark's name
        return 0

    def getLocalProperty(self, name):  # noqa: N802 - Spark's name
        return self._properties.get(name)


class Query:
    """A query's checkpoint, and its batches: planned, staged by tasks, committed."""

    def __init__(self, folder, monkeypatch, name="q", lineage="query-1"):
        self.folder, self._patch, self.lineage = folder, monkeypatch, lineage
        self.checkpoint = folder / f"checkpoint-{name}"
        self.batch = -1
        self.properties = {}
        self.overwrite, self.prepared = False, Prepared(SCHEMA, TASKS, GROUPS, None, deletes=False)
        self.options = {
            "namespace": "n", "wal": f"file://{folder}/wal", "store": f"sqlite://{folder}/store",
            "table": "t", "checkpointlocation": str(self.checkpoint),
        }  # fmt: skip
        for part in ("offsets", "commits"):
            (self.checkpoint / part).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": lineage}))

    def begin(self):
        """As Spark does before it plans a batch."""
        self.batch += 1
        (self.checkpoint / "offsets" / str(self.batch)).write_text(f'v1\n{{}}\n{{"offset":{self.batch}}}')
        return self

    def writer(self):
        known = {PREPARED: msgspec.json.encode(self.prepared).decode()}
        kinds = {PLACE: "long", "k": "binary", "o0": "long", "v": "binary"}
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": known if name == "k" else {}}
            for name, kind in kinds.items()
        ]
        schema = shaping.StructType.fromJson({"type": "struct", "fields": fields})
        return source.TidegateSource(self.options).streamWriter(schema, self.overwrite)

    def planned(self):
        """A writer as the tasks get it."""
        writer = self.writer()
        copy = stream_writer.StreamWriter.__new__(stream_writer.StreamWriter)
        vars(copy).update(writer.__getstate__())
        return copy

    def message(self, writer, task, rows, runs="1"):
        """The commit message of one task for rows of (key, order, value or None for a delete)."""
        ours = {
            "sql.streaming.queryId": self.lineage, "streaming.sql.batchId": str(self.batch),
            "spark.jobGroup.id": "run-1", **dict.fromkeys(OPTIONS, "true"), **self.properties,
        }  # fmt: skip

        class Here:
            get = staticmethod(lambda: Context(task, ours))

        self._patch.setattr(stream_writer, "TaskContext", Here)
        return writer.write(iter(batches_of(task, rows, self.prepared, runs)))

    def stage(self, rows, runs=("1", "1")):
        writer = self.planned()
        return [self.message(writer, task, rows, runs[task]) for task in range(TASKS)]

    def commit(self, messages):
        self.writer().commit(messages, self.batch)

    def run(self, *rows):
        """One batch from its begin to its end, as Spark would run it."""
        self.begin()
        self.commit(self.stage(rows))
        (self.checkpoint / "commits" / str(self.batch)).write_text("v1\n{}")

    def rows(self):
        with tidegate.connect(self.options["store"], "n") as gate, gate.snapshot() as snap:
            return {k: v["n"] for k, v in snap.table("t").scan()}

    def state(self):
        with contextlib.closing(FileLog(self.folder / "wal", "n")) as log:
            return fold_all(View(), log.decisions()).state


def batches_of(task, rows, prepared, runs):
    """What arrives behind the shuffle: this task's rows, not sorted, and the mark of the one map task."""
    owned = groups_of(task, prepared.parallelism, prepared.key_groups)
    mine = [row for row in rows if key_group(row[0].encode(), GROUPS) in owned]
    values = [b"-" if n is None else b'+{"n":%d}' % n for _, _, n in mine]
    places = [place_of(key_group(k.encode(), GROUPS), 0, hash(k) & 0xFFFFFFFF) for k, _, _ in mine]
    mark = place_of(owned.start, NO_TABLE), None, None, mark_value(RunMark("rows/0", runs))
    rows = [*zip(places, (k.encode() for k, *_ in mine), (o for _, o, _ in mine), values, strict=True), mark]
    columns = zip(*rows, strict=True)
    kinds = (pa.int64(), pa.binary(), pa.int64(), pa.binary())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    yield pa.record_batch(arrays, names=[PLACE, "k", "o0", "v"])


@pytest.fixture
def query(tmp_path, monkeypatch):
    return Query(tmp_path, monkeypatch)


# -- what is right ---------------------------------------------------------------------------------------


def test_rows_win_by_their_order_and_deletes_delete(query):
    query.run(("a", 2, 20), ("a", 1, 10), ("b", 1, 1))
    assert query.rows() == {"a": 20, "b": 1}
    query.run(("b", 1, None), ("c", 1, 3))
    assert query.rows() == {"a": 20, "c": 3}
    query.run()
    assert query.state().last_version == 3


def test_complete_mode_replaces_the_table(query):
    query.overwrite = True
    query.run(("a", 1, 1), ("b", 1, 2))
    query.run(("b", 1, 3))
    assert query.rows() == {"b": 3}


def test_newer_rows_stay_whatever_comes_later(query):
    query.prepared = msgspec.structs.replace(query.prepared, newer_by="n")
    query.run(("a", 5, 5), ("b", 1, 1))
    query.run(("a", 4, 4), ("b", 2, 2))
    assert query.rows() == {"a": 5, "b": 2}


def test_a_ttl_is_that_of_the_table(query):
    query.options["ttl"] = "7 days"
    query.run(("a", 1, 1))
    assert query.state().tables["t"].expires


def test_a_batch_that_spark_proves_empty_comes_as_one_task(query):
    query.run(("a", 1, 1))
    query.begin()
    query.commit([query.message(query.planned(), 0, ())])
    assert query.state().last_version == 2
    assert query.rows() == {"a": 1}


# -- replays and restarts --------------------------------------------------------------------------------


@pytest.mark.parametrize("anew", [False, True], ids=["same processes", "new processes"])
def test_a_batch_that_comes_again_is_skipped_and_its_rows_are_not_staged_i2(query, anew):
    query.run(("a", 1, 1))
    if anew:
        forget()
    (query.checkpoint / "commits" / "0").unlink()
    again = query.stage([("a", 1, 99)])
    assert {message.staged.ack for message in again} == {b""}
    query.commit(again)
    assert (query.rows(), query.state().last_version) == ({"a": 1}, 1)


def test_a_commit_that_comes_twice_is_one_version_i2(query):
    query.begin()
    messages = query.stage([("a", 1, 1)])
    query.commit(messages)
    query.commit(messages)
    forget()
    query.commit(messages)
    assert query.state().last_version == 1


@pytest.mark.parametrize(
    "place", ["manifest.after_write", "decide.after_append", "publish.before", "publish.after"]
)
def test_a_crash_of_the_commit_leaves_one_version_of_the_batch_i2_i4(query, place):
    query.run(("a", 1, 1))
    query.begin()
    failpoints.arm(f"{place}=raise@1")
    with pytest.raises(failpoints.FailpointError):
        query.commit(query.stage([("a", 1, 2)]))
    failpoints.arm(None)
    query.writer().abort([], query.batch)
    forget()
    query.commit(query.stage([("a", 1, 3)]))
    decided = place != "manifest.after_write"
    assert query.rows() == {"a": 2 if decided else 3}
    assert query.state().last_version == 2


def test_a_planner_that_made_a_lost_store_again_does_not_fence_its_own_committer_i6(query):
    """Red before: FencedError once, from the committer that this query has in the process beside it."""
    query.run(("a", 1, 1))
    shutil.rmtree(query.folder / "store" / "n")
    query.run(("b", 1, 2))
    assert (query.rows(), query.state().last_version) == ({"a": 1, "b": 2}, 2)


# -- what is refused -------------------------------------------------------------------------------------


def test_tasks_that_read_different_runs_of_the_shuffle_decide_nothing_i1(query):
    query.run(("a", 1, 1))
    query.begin()
    with pytest.raises(ConflictError, match="a shuffle again after tasks had read it"):
        query.commit(query.stage([("a", 1, 2), ("b", 1, 2)], runs=("1", "2")))
    assert query.state().last_version == 1
    query.commit(query.stage([("a", 1, 2)], runs=("2", "2")))
    assert query.rows() == {"a": 2}


def test_tasks_of_two_plans_decide_nothing_i1(query):
    query.begin()
    one, two = query.stage([("a", 1, 1)]), query.stage([("a", 1, 2)])
    with pytest.raises(ConflictError, match="by 2 plans"):
        query.commit([one[0], two[1]])
    assert query.state().last_version == 0


def test_a_version_that_came_in_between_ends_the_batch_and_the_next_start_stages_again_i1(query):
    query.run(("a", 1, 1))
    query.begin()
    old = query.stage([("a", 1, 2)])
    query.commit(query.stage([("a", 1, 3)]))
    query.begin()
    for message in old:
        message.staged.batch = message.staged.batch._replace(batch_id=query.batch, fingerprint="x")
    with pytest.raises(ConflictError, match="version 2 was decided after this batch was planned"):
        query.commit(old)
    query.commit(query.stage([("a", 1, 4)]))
    assert (query.rows(), query.state().last_version) == ({"a": 4}, 3)


def test_a_second_query_writes_nothing_i6(query, tmp_path, monkeypatch):
    query.run(("a", 1, 1))
    other = Query(tmp_path, monkeypatch, "other", "query-2")
    with pytest.raises(LineageError):
        other.run(("a", 1, 2))
    assert query.rows() == {"a": 1}
    query.run(("a", 1, 3))
    assert query.rows() == {"a": 3}


def test_other_offsets_under_the_same_number_are_refused_t5(query):
    query.run(("a", 1, 1))
    query.batch = -1
    (query.checkpoint / "commits" / "0").unlink()
    query.begin()
    (query.checkpoint / "offsets" / "0").write_text('v1\n{}\n{"offset":77}')
    with pytest.raises(LineageError, match="from other source offsets"):
        query.stage([("a", 1, 2)])


def test_the_checkpoint_of_another_query_is_refused(query):
    query.begin()
    query.properties = {"sql.streaming.queryId": "another"}
    with pytest.raises(
        ConfigError, match="is the checkpoint of batch 0 of query query-1, and this is batch 0 of"
    ):
        query.commit(query.stage([("a", 1, 1)]))


@pytest.mark.parametrize(
    "properties",
    [
        {"spark.shuffle.manager": "org.example.RemoteShuffleManager"},
        {"spark.shuffle.push.enabled": "true"},
        *({name: "false"} for name in OPTIONS),
    ],
    ids=str,
)
def test_shuffles_that_spark_does_not_compare_are_refused_i1(query, properties):
    query.begin()
    query.properties = properties
    with pytest.raises(ConfigError, match=r"could mix two runs \(I1\)"):
        query.commit(query.stage([("a", 1, 1)]))
    assert query.state().last_version == 0


def test_rows_that_moved_after_prepare_are_refused(query):
    query.begin()
    key = next(k for k in map(str, itertools.count()) if key_group(k.encode(), GROUPS) >= GROUPS // 2)
    rows = batches_of(1, [(key, 1, 1)], query.prepared, "1")
    writer = query.planned()
    query.message(writer, 0, ())
    with pytest.raises(ConfigError, match="call prepare as the last step before"):
        writer.write(rows)


def test_fewer_tasks_with_rows_are_refused(query):
    query.begin()
    messages = query.stage([(str(number), 1, 1) for number in range(20)])
    with pytest.raises(ConfigError, match="has sent the rows to 2 tasks, and 1 have written them"):
        query.commit(messages[:1])


@pytest.mark.parametrize(
    "change,why",
    [
        ({"table": None}, "needs the option 'table'"),
        ({"wal": None}, "needs the option 'wal'"),
        ({"wal": "memory://w"}, "which share no memory:// log or"),
        ({"store": "memory://s"}, "which share no memory:// log or"),
        ({"checkpointlocation": None}, "needs the option 'checkpointLocation'"),
        ({"order_by": "n"}, r"give it to prepare\(df, order_by=...\)"),
        ({"commit": "pipelined"}, "has no option 'commit'"),
        ({"tabel": "t"}, "has no option 'tabel'.*did you mean"),
        ({"store": "[redis://cache:6379"}, "is no list of JSON"),
        ({"keep_versions": "many"}, "keep_versions is 'many'"),
        ({"ttl": "soon"}, "soon"),
        ({"storeoptions": "5"}, "must be JSON objects"),
        ({"table": "_own"}, "reserved"),
    ],
    ids=str,
)
def test_a_wrong_option_is_one_sentence_before_anything_is_written(query, tmp_path, change, why):
    query.options = {name: value for name, value in (query.options | change).items() if value is not None}
    with pytest.raises(ConfigError, match=why):
        query.writer()
    assert not (tmp_path / "wal").exists()


def test_rows_that_were_not_prepared_are_refused(query):
    schema = shaping.StructType([shaping.StructField("k", shaping.StringType())])
    with pytest.raises(ConfigError, match=r"call rows = prepare\(df, key=...\)"):
        source.TidegateSource(query.options).streamWriter(schema, overwrite=False)


@pytest.mark.parametrize("argument", [{"newer_by": "n"}, {"deletes": True}], ids=str)
def test_complete_mode_has_no_order_by_state_and_no_deletes(query, argument):
    query.overwrite, query.prepared = True, msgspec.structs.replace(query.prepared, **argument)
    with pytest.raises(ConfigError, match="output mode complete do not go together"):
        query.writer()


def test_another_number_of_key_groups_is_named(query):
    query.run(("a", 1, 1))
    query.prepared = msgspec.structs.replace(query.prepared, key_groups=64)
    query.begin()
    with pytest.raises(ConfigError, match="give prepare key_groups=128"):
        query.stage([])


def test_prepare_takes_a_dataframe():
    with pytest.raises(ConfigError, match="rows must be a DataFrame"):
        prepare([1], "k")


@pytest.mark.parametrize("numbered", ["", "o"])
@pytest.mark.parametrize("rows", [0, 3])
def test_rows_without_nulls_and_their_mark_have_one_schema(monkeypatch, numbered, rows):
    """Python sends a task's batches as one stream of Arrow, which has one schema."""

    class Here:
        get = staticmethod(lambda: Context(2, {}))

    monkeypatch.setattr(marked_runs, "TaskContext", Here)
    names = ["g", *numbered, "v"]
    fields = [pa.field(name, pa.int64() if name == "g" else pa.binary(), nullable=False) for name in "gv"]
    schema = pa.schema([*fields, pa.field("h", pa.int64(), nullable=False)])
    batches = [pa.record_batch([[1] * n, [b"+"] * n, [7] * n], schema=schema) for n in (rows, 2, 0) if rows]
    output = pa.schema([pa.field(n, pa.binary() if n == "v" else pa.int64()) for n in names])
    *sent, mark = marked_runs._marking("rows", {"g": [0, 64]}, "v", numbered, output)(iter(batches))
    assert {each.schema for each in (*sent, mark)} == {output}
    assert mark["g"].to_pylist() == [0, 64]
    assert len(set(mark["v"].to_pylist())) == 1
    if numbered and rows:
        order = [n for each in sent for n in each["o"].to_pylist()]
        assert order == [(2 << marked_runs.INDEX_BITS) + n for n in range(rows + 2)]


# -- the checkpoint --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://{}/"])
def test_the_newest_batch_is_read_from_the_checkpoint(query, form):
    query.begin().begin()
    batch = planned_batch(form.format(query.checkpoint))
    assert batch[:4] == ("query-1", "", 1, '[{"offset":1}]')


def test_a_file_source_is_identified_by_its_files_however_long_its_note(query):
    notes = query.checkpoint / "sources" / "0"
    notes.mkdir(parents=True)
    (query.checkpoint / "offsets" / "0").write_text('v1\n{}\n{"logOffset":9}')

    def fingerprint(mine, others=3):
        lines = [
            json.dumps({"path": f"file:///{b}-{n}", "batchId": b}) for b in range(9) for n in range(others)
        ]
        lines += [json.dumps({"path": name, "batchId": 9}) for name in mine]
        (notes / "9.compact").write_text("\n".join(["v1", *lines]))
        return planned_batch(str(query.checkpoint)).fingerprint

    assert fingerprint(["a"]) == fingerprint(["a"], others=3000) != fingerprint(["b"])
    assert fingerprint(["a" * 99] * 3000) == fingerprint(["a" * 99] * 3000, others=2000)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda at: (at / "metadata").unlink(),
        lambda at: (at / "offsets" / "0").unlink(),
        lambda at: (at / "commits" / "0").write_text("v1"),
        lambda at: (at / "offsets" / "0").write_text("v2\n{}\n5"),
        lambda at: (at / "metadata").write_text("[]"),
    ],
    ids=["no metadata", "no offsets", "committed", "another form", "no object"],
)
def test_what_is_no_running_batch_is_refused(query, spoil):
    query.begin()
    spoil(query.checkpoint)
    with pytest.raises(ConfigError, match="othing was written"):
        planned_batch(str(query.checkpoint))
    with pytest.raises(ConfigError, match="cannot be read by PyArrow"):
        planned_batch("dbfs:/checkpoints/1")


# -- sorting ---------------------------------------------------------------------------------------------


def test_rows_are_sorted_in_bounded_memory_with_nothing_left_on_disk_i11(monkeypatch, tmp_path):
    """More rows than memory has room for, one place far more often than all others."""
    monkeypatch.setattr(sorted_rows, "RUN_BYTES", 100_000)
    monkeypatch.setattr(sorted_rows, "PIECE_BYTES", 5_000)
    monkeypatch.setenv(sorted_rows.FOLDERS, str(tmp_path))
    chance = random.Random(7)
    places = [chance.choice([5, chance.randrange(1000)]) for _ in range(40_000)]
    batches = [
        pa.record_batch({PLACE: pa.array(part, pa.int64()), "v": [b"%d" % p for p in part]})
        for part in (places[start : start + 1000] for start in range(0, len(places), 1000))
    ]
    before, most, found = pa.default_memory_pool().bytes_allocated(), 0, []
    for batch in sorted_rows.sorted_by_place(iter(batches)):
        most = max(most, pa.default_memory_pool().bytes_allocated() - before)
        found += zip(batch[PLACE].to_pylist(), batch["v"].to_pylist(), strict=True)
    assert found == sorted((p, b"%d" % p) for p in places)
    assert most < 400_000 < sum(batch.nbytes for batch in batches)
    assert list(tmp_path.iterdir()) == []


def test_no_rows_are_no_batches():
    assert list(sorted_rows.sorted_by_place([])) == []
