"""The first stage of an update without Spark: rows by key, deadlines, refusals, digests."""

import asyncio
import re
import signal
import sys
import threading
import time
import tracemalloc

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import BadRecordError, FunctionError, StoreUnavailableError
from tidegate.keys.groups import key_group
from tidegate.spark.state import output_rows
from tidegate.spark.state.call_deadline import Deadline, Overdue
from tidegate.spark.state.key_rows import ROWS
from tidegate.spark.state.output_rows import MARK, strip_marks
from tidegate.spark.state.update import Functions, UpdateWork, run_function
from tidegate.values.decode import values_of
from tidegate.values.state_versions import next_state
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging.quarantine import ROWS_MAX
from tidegate.wal.staging.spec import StageSpec
from tidegate.wal.value_flags import REFUSED, RUN

KEY_GROUPS = 8
KEY = (Column("k", "string"),)
STATE = TableSchema(KEY, (Column("n", "int"), Column("s", "string")))
OUT = TableSchema(KEY, (Column("x", "int"),))
PAIRS = TableSchema((Column("a", "string"), Column("b", "int")), (), "bytes")
TABLES = {"out": OUT, "pairs": PAIRS, "t": STATE}
TYPES = tuple(tuple(schema.key_types) for schema in TABLES.values())
SPEC = StageSpec("uuid", "attempt", tuple(TABLES), TYPES, 1000, 40, 100, KEY_GROUPS)


def work(**changes):
    rows = TableSchema((), (Column("n", "int"),))
    made = {
        "spec": SPEC,
        "rows": rows,
        "schemas": TABLES,
        "batch": "batch 7",
        "deadline_s": 600.0,
        "parallelism": 2,
        **changes,
    }
    return UpdateWork(call=0, table="t", start=0, **made)


def batches(rows, size=1000):
    """Sorted as Spark hands them over: (key, number) in batches of so many rows."""
    entries = sorted(
        (
            (key_group(key.encode(), KEY_GROUPS), key.encode(), place, n)
            for place, (key, n) in enumerate(rows)
        ),
    )
    for start in range(0, len(entries), size):
        part = [(g, k, msgspec.json.encode({"n": n})) for g, k, _, n in entries[start : start + size]]
        columns = zip(zip(*part, strict=True), ROWS, strict=True)
        yield pa.record_batch([pa.array(column, field.type) for column, field in columns], schema=ROWS)


class State:
    """What keys hold, and who asked for what."""

    def __init__(self, held=()):
        self.held = {key.encode(): msgspec.json.encode(value) for key, value in dict(held).items()}
        self.asked = []

    def __call__(self, table, start, rows):
        assert (table, start) == ("t", 0)
        keys = rows["k"].to_pylist()
        self.asked.append(keys)
        return pa.array([self.held.get(key) for key in keys], pa.binary())


def run(fn, rows, held=(), size=1000, **changes):
    """(rows that were made, by table; marks)."""
    made, marks = {}, []
    for batch in run_function(batches(rows, size), work(**changes), Functions(fn), State(held), task=3):
        for row in batch.to_pylist():
            if row["t"] == MARK:
                marks.append((row["g"], msgspec.json.decode(row["v"].removeprefix(RUN))))
            elif row["v"].startswith(REFUSED):
                raise AssertionError(row["v"])
            else:
                made.setdefault(SPEC.tables[row["t"]], []).append((row["k"], row["v"]))
    return made, marks


def refusal(fn, rows=(("a", 1), ("b", 2)), held=(), **changes):
    """What is refused, as the second stage tells it."""
    with pytest.raises((FunctionError, BadRecordError)) as caught:
        for _ in strip_marks(
            run_function(batches(rows), work(**changes), Functions(fn), State(held), task=3), {}
        ):
            pass
    return f"{type(caught.value).__name__}: {caught.value}"


# -- rows by key ------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9))), st.integers(1, 9), st.integers(0, 5)
)
def test_each_key_is_called_once_with_its_rows_in_order_however_batches_are_cut(rows, size, most):
    """``most`` rows are read, the others skipped, wherever the batches end; state is asked for once."""
    seen, state = {}, State({"a": {"n": 1, "s": None}})

    def fn(key, found, held, emit):
        assert key not in seen
        assert (held is not None) == (key == "a")
        seen[key] = [row["n"] for row, _ in zip(found, range(most), strict=False)]

    for _ in run_function(batches(rows, size), work(), Functions(fn), state, task=0):
        pass
    expected = {}
    for key, n in rows:
        expected.setdefault(key, []).append(n)
    assert seen == {key: found[:most] for key, found in expected.items()}
    asked = [key for keys in state.asked for key in keys]
    assert sorted(asked) == sorted(key.encode() for key in expected)


def test_rows_that_a_function_keeps_are_no_other_keys_rows():
    kept = []

    def fn(key, rows, state, emit):
        assert [list(one) for one in kept] == [[]] * len(kept)
        kept.append(rows)

    run(fn, [("a", 1), ("a", 2), ("b", 3)])
    assert len(kept) == 2


def test_one_key_with_many_rows_takes_bounded_memory_i11():
    """A million rows, a batch at a time; what the function emits is held until it returns, no more."""
    size, rows_each = 200, 5_000
    one = next(iter(batches([("a", n) for n in range(rows_each)], rows_each)))
    seen = []

    def fn(key, rows, state, emit):
        seen.append(sum(row["n"] for row in rows))

    tracemalloc.start()
    try:
        for _ in run_function((one for _ in range(size)), work(), Functions(fn), State(), task=0):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == [size * sum(range(rows_each))]
    assert peak < 4_000_000, "a batch of rows takes about 1 MB"


# -- what is made ------------------------------------------------------------------------------------


def test_states_and_outputs_are_written_as_they_lie():
    def fn(key, rows, state, emit):
        emit("out", f"to {key}", {"x": sum(row["n"] for row in rows)})
        emit("pairs", (key, -1), b"\xff")
        emit("pairs", [key, 2], None)
        return None if state else {"s": key}

    made, marks = run(fn, [("a", 1), ("a", 2)], {"a": {"n": 1}})
    assert made == {
        "t": [(b"a", b"-")],
        "out": [(b"to a", b'+{"x":3}')],
        "pairs": [(b"1:a,2:-1,", b"+\xff"), (b"1:a,1:2,", b"-")],
    }
    assert [group for group, _ in marks] == [0, 4], "one for each task of the second stage"
    assert [mark.get("call") for _, mark in marks] == [None, 0], "one of them adds the time of the function"
    assert marks[1][1]["seconds"] > 0.0
    assert run(fn, [("b", 1)])[0]["t"] == [(b"b", b'+{"n":null,"s":"b"}')]


def test_a_state_that_equals_the_stored_one_is_not_written_in_whatever_form_it_lies():
    held = {"a": {"s": "x"}, "b": {"n": 1, "s": "y"}}  # a's is older than the column n

    def changed(key, rows, state, emit):
        state["n"] = 2
        return state

    assert run(lambda *given: given[2], [("a", 1), ("b", 1)], held)[0] == {}
    assert run(changed, [("a", 1)], held)[0] == {"t": [(b"a", b'+{"n":2,"s":"x"}')]}


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9)), min_size=1), st.integers(1, 9))
def test_the_digest_says_whether_two_runs_made_the_same_i1(rows, size):
    def fn(key, found, state, emit):
        emit("out", key, {"x": sum(row["n"] for row in found) + offset})

    offset = 0
    first, again = run(fn, rows)[1], run(fn, rows, size=size)[1]
    offset = 1
    other = run(fn, rows)[1]
    assert [mark["digest"] for _, mark in first] == [mark["digest"] for _, mark in again]
    assert {mark["digest"] for _, mark in first}.isdisjoint(mark["digest"] for _, mark in other)


# -- faults -------------------------------------------------------------------------------------------


def raises(key, rows, state, emit):
    try:
        raise KeyError("inner")
    except KeyError as error:
        message = "it\nfails"
        raise ValueError(message) from error


def swallows(key, rows, state, emit):
    try:
        emit("out", None, {"x": 1})
    except BadRecordError:
        return {"n": 1}


def forever(key, rows, state, emit):
    while True:
        pass


def sleeps(key, rows, state, emit):
    try:
        time.sleep(600)
    except BaseException:  # noqa: BLE001 - what the deadline raises
        return {"n": 1}


class Unshown(Exception):  # noqa: N818
    def __str__(self):
        raise ValueError  # whatever a user's exception may do


def unshown(key, rows, state, emit):
    raise Unshown


def cancelled(key, rows, state, emit):
    raise asyncio.CancelledError


def emits(*what):
    def fn(key, rows, state, emit):
        emit(*what)

    return fn


def returns(what):
    def fn(key, rows, state, emit):
        return what

    return fn


@pytest.mark.parametrize(
    "fn,message",
    [
        (raises, "FunctionError: table t, key 'a', batch 7: raises raised ValueError: it fails ("),
        (raises, "test_update.py:"),
        (raises, " in raises), caused by KeyError: 'inner'; nothing was decided; mend the function, then"),
        (unshown, "Unshown: (its message cannot be shown)"),
        (lambda *_: sys.exit(3), "raised SystemExit: 3"),
        (cancelled, "table t, key 'a', batch 7: cancelled raised CancelledError"),
        (forever, "key 'a', batch 7: forever did not return within function_deadline_s, 0.2 s ("),
        (sleeps, "sleeps did not return within function_deadline_s"),
        (returns(7), "BadRecordError: table t, key 'a', batch 7: fn returned a state that is"),
        (returns({"n": "7"}), "column n (int): a value of type str is not a whole number; nothing was"),
        (returns({"m": 7}), "column 'm' is not one of the table's columns, n, s"),
        (returns({"s": "x" * 90}), "the state takes 107 bytes, 100 are allowed"),
        (emits("out", None, {"x": 1}), "emits to table out, key None (NoneType): None (NoneType) is not a"),
        (emits("pairs", "a", b""), "emits to table pairs, key 'a' (str): the key has 2 columns"),
        (emits("pairs", ("a", "b"), b""), "'b' (str) is not a value of the key column's type, int"),
        (
            swallows,
            "BadRecordError: table t, key 'a', batch 7: the row that swallows emits to table out, key None",
        ),
        (emits("none", "k", {}), "FunctionError: table t, key 'a', batch 7: fn emits to 'none', which"),
        (emits("out", "k", {"x": 2**40}), "key 'k' (str): column x (int): a value of type int is not within"),
        (emits("out", "k" * 50, {"x": 1}), "the key takes 50 bytes, 40 are allowed"),
        (emits("pairs", ("k", 1), b"x" * 101), "the value takes 101 bytes, 100 are allowed"),
    ],
)
def test_what_a_function_does_wrong_is_told_with_its_key_i5(fn, message):
    assert message in refusal(fn, [("a", 1)], deadline_s=0.2)


def test_an_emit_after_the_function_returned_is_refused():
    kept = []

    def fn(key, rows, state, emit):
        if kept:
            kept[0]("out", "k", {"x": 1})
        kept.append(emit)
        return {"n": 1}

    run(fn, [("a", 1)])
    with pytest.raises(FunctionError, match="emit was called after fn had returned"):
        kept[0]("out", "k", {"x": 1})


def test_one_call_that_makes_more_than_a_task_can_hold_is_refused_i11(monkeypatch):
    monkeypatch.setattr(output_rows, "CALL_BYTES_MAX", 10_000)
    monkeypatch.setattr(output_rows, "BATCH_ROWS", 100)

    def fn(key, rows, state, emit):
        for n in range(int(key)):
            emit("pairs", ("k", n), b"x" * 90)

    assert len(run(fn, [(str(n), 0) for n in range(40, 60)])[0]["pairs"]) == sum(range(40, 60))
    assert "one call emitted more than" in refusal(fn, [("1000", 0)])


def test_what_fails_below_the_function_is_not_its_fault_even_if_it_swallows_it():
    def read(table, start, rows):
        if len(read_before) == 1:
            message = "away"
            raise StoreUnavailableError(message)
        read_before.append(rows)
        return pa.nulls(len(rows), pa.binary())

    def fn(key, rows, state, emit):
        try:
            list(rows)
        except StoreUnavailableError:
            return {"n": 1}

    read_before = []
    with pytest.raises(StoreUnavailableError):
        list(run_function(batches([("a", 1), ("b", 2)], 1), work(), Functions(fn), read, task=0))


def test_a_row_that_python_cannot_hold_is_a_bad_record():
    changed = work(rows=TableSchema((), (Column("n", "date"),)))

    def fn(key, rows, state, emit):
        list(rows)

    with pytest.raises(
        BadRecordError, match="key 'a', batch 7: a row has a value that Python cannot represent"
    ):
        list(
            strip_marks(
                run_function(batches([("a", "+10000-01-01")]), changed, Functions(fn), State(), task=0), {}
            )
        )


@pytest.mark.parametrize("day", ["+12000-01-01", "-0044-03-15"])
def test_a_key_that_python_cannot_hold_is_a_bad_record_told_once(day):
    """As an error it would be tried again by Spark, and looks like damage."""
    tables = {**TABLES, "t": TableSchema((Column("k", "date"),), STATE.value)}
    told = refusal(returns({"n": 1}), rows=[(day, 1)], schemas=tables)
    assert told.startswith(
        f"BadRecordError: table t, key b'{day}', batch 7: Python cannot represent this key"
    )


def test_rows_without_a_key_pass_by_the_function():
    bad = pa.record_batch(
        [pa.array([1, 2], pa.int32()), pa.array([None, b"\xff"]), pa.array([b"{}", b"{}"])], ROWS
    )
    aside = work(spec=msgspec.structs.replace(SPEC, quarantine=0))
    made = [
        row
        for batch in run_function([bad], aside, Functions(None), State(), task=0)
        for row in batch.to_pylist()
    ]
    assert [(row["k"], row["v"], row["t"]) for row in made[:2]] == [(None, b"+{}", 2), (b"\xff", b"+{}", 2)]


@pytest.mark.parametrize("quarantine, most", [(None, 1), (0, ROWS_MAX + 1)])
def test_a_batch_of_nothing_but_null_keys_is_not_gathered_in_memory_i11(monkeypatch, quarantine, most):
    """It ended as a FunctionError, of a call that had emitted too much, and Spark tried it four times."""
    monkeypatch.setattr(output_rows, "CALL_BYTES_MAX", 1_000_000)
    monkeypatch.setattr(output_rows, "BATCH_BYTES", 100_000)
    rows, value = 5_000, b"{" + b" " * 80 + b"}"
    columns = [[1] * rows, [None] * rows, [value] * rows]
    bad = pa.record_batch([pa.array(*of) for of in zip(columns, ROWS.types, strict=True)], ROWS)
    aside = work(spec=msgspec.structs.replace(SPEC, quarantine=quarantine))
    made = [batch["v"] for batch in run_function([bad] * 20, aside, Functions(None), State(), task=0)]
    assert sum(b"+" + value == one for values in made for one in values.to_pylist()) == most


# -- the deadline -------------------------------------------------------------------------------------


def test_the_wait_for_rows_does_not_count_and_what_was_before_is_restored():
    before = signal.getsignal(signal.SIGALRM)
    with Deadline(1.0) as deadline:  # a loaded machine may take some of it away
        deadline.begin()
        with deadline.waiting():
            time.sleep(1.5)
        deadline.end()
        assert not deadline.passed
        time.sleep(1.3)  # between two calls
        deadline.begin()
        with pytest.raises(Overdue):
            time.sleep(60)
        deadline.end()
        assert deadline.passed
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("later", [False, True], ids=["alone", "while-the-next-task-runs"])
def test_a_task_that_is_given_up_may_be_collected_by_any_thread(later):
    """Its generator then leaves the deadline's context there; the next task's clock goes on."""
    before = signal.getsignal(signal.SIGALRM)
    task = run_function(batches([("a", 1), ("b", 2)]), work(), Functions(raises), State(), task=0)
    next(task)
    given_up = Deadline(30.0)
    given_up.__enter__()
    faults = []

    def collect():
        try:
            task.close()
            given_up.__exit__(None, None, None)
        except ValueError as error:  # what signal.signal raises in any other thread than the main one
            faults.append(error)

    def in_a_thread():
        thread = threading.Thread(target=collect)
        thread.start()
        thread.join(60)

    try:
        if not later:
            in_a_thread()
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        with Deadline(0.1) as deadline:
            if later:
                in_a_thread()
            deadline.begin()
            with pytest.raises(Overdue):
                time.sleep(60)
        assert faults == []
    finally:
        signal.signal(signal.SIGALRM, before)


def test_rows_read_back_by_the_schema_of_their_table():
    """A state that is made here is what a reader gets."""
    made, _ = run(lambda *_: {"n": 5, "s": "ü"}, [("a", 1)])
    ((_, stored),) = made["t"]
    assert values_of(STATE).decode(stored[1:]) == {"n": 5, "s": "ü"}


# -- states of older versions ------------------------------------------------------------------------


NEWER = next_state("t", STATE, TableSchema(KEY, (Column("n", "string"),), state_version=3))


class Versions(State):
    """States as they are stored, of whatever version."""

    def __init__(self, **held):
        super().__init__()
        self.held = {key.encode(): value for key, value in held.items()}


HELD = {"a": b'{"n":1,"s":"x"}', "b": b'{"n@3":"one"}'}


def run_versions(fn, migrate, keys="abc"):
    """(rows of the state, refusals) of one call for each key."""
    rows = batches([(key, 1) for key in keys])
    of = work(schemas={**TABLES, "t": NEWER})
    made = run_function(rows, of, Functions(fn, migrate), Versions(**HELD), 3)
    return {row["k"]: row["v"] for batch in made for row in batch.to_pylist() if row["t"] != MARK}


def unchanged(key, rows, state, emit):
    return state


def test_a_touched_state_of_an_older_version_is_migrated_and_written_even_if_the_function_keeps_it():
    seen = []

    def migrate(state, version):
        seen.append((dict(state), version))
        return {"n": "one"}

    assert run_versions(unchanged, migrate) == {b"a": b'+{"n@3":"one"}'}
    assert seen == [({"n": 1, "s": "x"}, 1)]


def test_the_function_gets_a_migrated_state_as_readers_get_it():
    given_states = {}

    def fn(key, rows, state, emit):
        given_states[key] = (type(state), state)

    written = run_versions(fn, lambda *_: {})
    assert given_states == {"a": (dict, {"n": None}), "b": (dict, {"n": "one"}), "c": (type(None), None)}
    assert written == {b"a": b"-", b"b": b"-"}


def test_a_state_that_is_migrated_to_none_is_absent_and_removed():
    assert run_versions(unchanged, lambda *_: None) == {b"a": b"-"}


@pytest.mark.parametrize(
    "migrate, message",
    [
        (lambda *_: {"n": 1}, r"state of version 1: <lambda> returned a state that is none of"),
        (lambda *_: {"z": 1}, r"none of version 3: column 'z' is not one of the table's"),
        (lambda *_: 1 / 0, r"key 'a', batch 7, state of version 1: <lambda> raised ZeroDivision"),
    ],
)
def test_a_result_of_a_migration_that_does_not_fit_is_refused(migrate, message):
    (value,) = run_versions(unchanged, migrate).values()
    assert value.startswith(REFUSED)
    assert re.search(message, value.decode())
