"""Timeouts of keyed state without Spark: batch after batch of the first stage, on tables in memory."""

import random

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import BadRecordError, ConfigError, CorruptError, FunctionError
from tidegate.keys.groups import key_group, task_of
from tidegate.spark.calls.update import timeout_of, timeout_schemas
from tidegate.spark.state import timeouts
from tidegate.spark.state.key_rows import ROWS
from tidegate.spark.state.output_rows import MARK, strip_marks
from tidegate.spark.state.timeouts import TimeoutWork
from tidegate.spark.state.update import Functions, UpdateWork, run_function
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging import due_queue
from tidegate.wal.staging.spec import StageSpec

KEY_GROUPS = 8
KEY = (Column("k", "string"),)
STATE, OUT = TableSchema(KEY, (Column("n", "int"),)), TableSchema(KEY, (Column("n", "int"),))
SCHEMAS = {"out": OUT, "t": STATE}
TABLES = {**timeout_schemas("t", KEY), **SCHEMAS}
NAMES = tuple(sorted(TABLES))
SECOND = 1_000_000
TIMEOUT = 64 * SECOND
"""Due times are whole seconds."""
START = 1_700_000_000 * SECOND


def count(key, rows, state, emit):
    """Counts a key's rows; a row with 0 removes the state."""
    numbers = [row["n"] for row in rows]
    return None if 0 in numbers else {"n": (state or {"n": 0})["n"] + sum(numbers)}


def close(key, state, emit):
    """Emits what a key has had, and forgets it."""
    emit("out", key, state)


class Place:
    """The tables of a namespace, changed by batch after batch, as the store would have them."""

    def __init__(
        self, fn=count, on_timeout=close, timeout=TIMEOUT, key_bytes_max=100, value_bytes_max=1000, stride=1
    ):
        self.strides = tuple(stride if name in ("t", "_due.t") else 1 for name in NAMES)
        self.rows = {name: {} for name in NAMES}
        self.functions = Functions(fn, None, on_timeout)
        self.timeout = timeout
        self.limits = key_bytes_max, value_bytes_max
        self.version = 0
        self.asked = []

    def read(self, table, start, rows):
        keys = rows["k"].to_pylist()
        self.asked += [(table, key) for key in keys]
        if "g" in rows.schema.names:
            stride = self.strides[NAMES.index(table)]
            assert rows["g"].to_pylist() == [key_group(key, KEY_GROUPS, stride) for key in keys]
        values = [self.rows[table].get(key) for key in keys]
        return pa.array([None if value is None else value[1:] for value in values], pa.binary())

    def batch(self, at, rows=(), tasks=2):
        """The rows that a batch writes, by table and key. ``at``: seconds since the start."""
        types = tuple(tuple(TABLES[name].key_types) for name in NAMES)
        spec = StageSpec(
            "uuid",
            "a",
            NAMES,
            types,
            1000,
            *self.limits,
            KEY_GROUPS,
            at_us=START + int(at * SECOND),
            batch="batch 7",
            strides=self.strides,
        )
        work = UpdateWork(
            spec=spec,
            call=0,
            table="t",
            start=0,
            rows=TableSchema((), (Column("n", "int"),)),
            schemas=SCHEMAS,
            batch="batch 7",
            deadline_s=600.0,
            parallelism=tasks,
            timeout=TimeoutWork(self.timeout, 0, 0),
        )
        made = {name: {} for name in NAMES}
        self.asked = []
        for task in range(tasks):
            output = run_function(
                given_to(task, tasks, rows, spec.stride("t")),
                work,
                self.functions,
                self.read,
                task,
                self.read,
            )
            for found in strip_marks(output, {}):
                for row in found.to_pylist():
                    assert row["t"] != MARK
                    table, key = NAMES[row["t"]], row["k"]
                    if table in ("t", "_due.t"):
                        assert key not in made[table], "one row for each key"
                    made[table][key] = row["v"]
        return made

    def commit(self, at, rows=(), tasks=2):
        """Make the batch the next version; return what it emitted, by key."""
        made = self.batch(at, rows, tasks)
        for name, changes in made.items():
            kept = {**self.rows[name], **changes}
            self.rows[name] = {key: value for key, value in kept.items() if value != b"-"}
        return {key.decode(): msgspec.json.decode(value[1:])["n"] for key, value in made["out"].items()}

    @property
    def states(self):
        return {key.decode(): msgspec.json.decode(value[1:])["n"] for key, value in self.rows["t"].items()}


def given_to(task, tasks, rows, stride):
    """The rows of a task, sorted as Spark hands them over."""
    placed = sorted(
        (key_group(key.encode(), KEY_GROUPS, stride), key.encode(), place, n)
        for place, (key, n) in enumerate(rows)
    )
    mine = [
        (g, k, msgspec.json.encode({"n": n}))
        for g, k, _, n in placed
        if task_of(g, tasks, KEY_GROUPS) == task
    ]
    columns = zip(*mine, strict=True) if mine else ((), (), ())
    yield pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)], schema=ROWS
    )


# -- when ---------------------------------------------------------------------------------------------


def test_a_key_without_rows_is_handed_over_once_in_the_first_batch_after_its_time():
    place = Place()
    assert place.commit(0, [("a", 1), ("b", 2)]) == {}
    assert place.commit(63.999, [("b", 3)]) == {}
    assert place.commit(64) == {"a": 1}
    assert place.states == {"b": 5}
    assert place.commit(127.9) == {}
    assert place.commit(128) == {"b": 5}
    assert place.commit(1000) == {}
    assert place.states == {}


def test_a_batch_with_the_keys_rows_moves_its_time_even_if_that_is_over():
    place = Place()
    place.commit(0, [("a", 1)])
    assert place.commit(500, [("a", 1)]) == {}
    assert place.commit(563) == {}
    assert place.commit(564) == {"a": 2}


def test_nothing_is_left_of_keys_that_timed_out_or_were_removed():
    place = Place()
    place.commit(0, [("a", 1), ("b", 1)])
    place.commit(5, [("b", 0)])
    assert place.states == {"a": 1}
    assert place.commit(70) == {"a": 1}
    place.commit(200)
    assert [name for name, rows in place.rows.items() if rows] == ["out"]


def test_a_state_that_on_timeout_returns_stays_without_a_timeout_until_its_next_rows():
    calls = []

    def keep(key, state, emit):
        calls.append(key)
        return {"n": -state["n"]}

    place = Place(on_timeout=keep)
    place.commit(0, [("a", 7)])
    place.commit(64)
    assert (place.states, place.rows["_due.t"], place.rows["_due_at.t"]) == ({"a": -7}, {}, {})
    place.commit(1000)
    assert calls == ["a"]
    place.commit(1001, [("a", 1)])
    place.commit(1065)
    assert (calls, place.states) == (["a", "a"], {"a": 6})


def test_a_state_that_was_removed_elsewhere_does_not_time_out():
    """By a delete, or because it expired."""
    place = Place()
    place.commit(0, [("a", 1)])
    del place.rows["t"][b"a"]
    assert place.commit(64) == {}
    assert place.rows["_due.t"] == place.rows["_due_at.t"] == {}


def test_states_that_are_older_than_the_timeout_get_one_with_their_next_rows():
    place = Place()
    place.rows["t"] = {b"a": b'+{"n":1}', b"b": b'+{"n":2}'}
    place.commit(0, [("a", 1)])
    assert place.commit(1000) == {"a": 2}
    assert place.states == {"b": 2}


# -- how much -------------------------------------------------------------------------------------------


def test_a_batch_costs_what_is_due_and_not_what_is_there():
    place = Place()
    place.commit(0, [(f"k{n}", 1) for n in range(300)])
    place.commit(10, [("late", 1)])
    place.commit(20, [("a", 1)])
    assert len(place.asked) == KEY_GROUPS + 2, "the lists of the groups, the key's state and its due time"
    assert place.batch(21) == {name: {} for name in NAMES}
    assert len(place.asked) == KEY_GROUPS


def test_the_row_of_a_key_that_always_has_rows_is_written_once_in_a_step():
    place, written = Place(), 0
    for quarter in range(400):
        written += len(place.batch(quarter / 4, [("a", 1)], tasks=1)["_due.t"])
        place.commit(quarter / 4, [("a", 1)], tasks=1)
    assert written == 101 + 1, "a row for each step, and its move in the queue"
    places = [key for key in place.rows["_due_at.t"] if b",2:-1," not in key]
    assert len(places) == 1, "and it is once in the queue"


def test_a_task_takes_a_bounded_number_of_due_keys_the_oldest_first(monkeypatch):
    monkeypatch.setattr(timeouts, "DUE_MAX", 10)
    monkeypatch.setattr(due_queue, "PART_BYTES", 40)
    place = Place()
    for batch in range(10):
        place.commit(batch, [(f"{batch}-{n}", 1) for n in range(20)])
    emitted = []
    while found := place.commit(1000, [("1-0", 1)] if not emitted else []):
        assert len(found) <= 2 * 14
        emitted.append(set(found))
    assert len(emitted) > 5
    assert set().union(*emitted) == {f"{batch}-{n}" for batch in range(10) for n in range(20)} - {"1-0"}
    assert sum(map(len, emitted)) == 199, "each once"
    ages = [[int(key[0]) for key in found] for found in emitted]
    assert max(ages[0]) <= 1
    assert place.commit(1065) == {"1-0": 2}


# -- any history ------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.integers(1, 40_000_000),
        st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3)), max_size=5),
        st.integers(1, 4),
        st.sampled_from([64, 64, 64, 13, 300]),
    ),
    max_size=25,
)


LIMITS = st.tuples(
    st.sampled_from([2, 100_000]), st.sampled_from([12, 65_536]), st.sampled_from([8, 4_000_000])
)


@given(STEPS, LIMITS, st.sampled_from([1, 4, 8]))
def test_any_history_is_followed_as_by_a_dictionary_whatever_the_number_of_tasks(steps, limits, stride):
    """With ``most`` keys at once some are late, and none is lost or early."""
    most, part, pending = limits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeouts, "DUE_MAX", most)
        patch.setattr(due_queue, "PART_BYTES", part)
        patch.setattr(timeouts, "PENDING_BYTES", pending)
        place, states, dues, now = Place(stride=stride), {}, {}, 0
        for wait, rows, tasks, timeout in [*steps, *[(400 * SECOND, [], 1, 64)] * 12]:
            now += wait
            place.timeout = timeout * SECOND
            expected = {}
            touched = {key for key, _ in rows}
            for key in [key for key, due in dues.items() if due <= START + now and key not in touched]:
                expected[key] = states[key]
            emitted = place.commit(now / SECOND, rows, tasks)
            assert emitted.items() <= expected.items()
            assert most == 2 or emitted == expected
            for key in emitted:
                del states[key], dues[key]
            for key in touched:
                numbers = [n for name, n in rows if name == key]
                states[key] = states.get(key, 0) + sum(numbers)
                step = TimeoutWork(place.timeout, 0, 0).step_us
                dues[key] = -(-(START + now + place.timeout) // step) * step
                if 0 in numbers:
                    del states[key], dues[key]
            assert place.states == states
        assert states == {}
        assert place.rows["_due.t"] == place.rows["_due_at.t"] == {}


def test_a_second_run_of_a_batch_makes_the_same_rows_i1():
    chance, place = random.Random(7), Place()
    for at in range(0, 300, 7):
        rows = [(f"k{chance.randrange(40)}", chance.randrange(4)) for _ in range(6)]
        assert place.batch(at, rows) == place.batch(at, rows)
        place.commit(at, rows)


# -- what is refused ------------------------------------------------------------------------------------


def refused(place, at=64):
    with pytest.raises((FunctionError, BadRecordError, CorruptError)) as caught:
        place.commit(at)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_an_error_of_on_timeout_names_the_key():
    def fail(key, state, emit):
        raise ValueError("no")

    def emits_to_due(key, state, emit):
        emit("_due.t", key, None)

    place = Place(on_timeout=fail)
    place.commit(0, [("a", 1)])
    told = refused(place)
    assert told.startswith("FunctionError: table t, key 'a', batch 7: fail raised ValueError: no (")
    place.functions = Functions(count, None, lambda *_: 3)
    assert "table t, key 'a', batch 7: <lambda> returned a state that is none" in refused(place)
    place.functions = Functions(count, None, emits_to_due)
    assert "emits to '_due.t', which is not one of its outputs (out)" in refused(place)


@pytest.mark.parametrize(
    "damage, why",
    [
        (lambda rows: rows.pop(min(rows)), "is not there"),
        (lambda rows: rows.update(dict.fromkeys(rows, b"+\xff")), "cannot be read"),
        (lambda rows: rows.update({min(rows): b"+\x92\xc4\x01a\xc4\x01b"}), "has keys of other key groups"),
    ],
)
def test_a_damaged_queue_is_an_error(damage, why):
    place = Place()
    place.commit(0, [("a", 1)])
    damage(place.rows["_due_at.t"])
    assert why in (told := refused(place))
    assert told.startswith("CorruptError: table _due_at.t: ")


def test_a_damaged_due_time_is_an_error():
    place = Place()
    place.commit(0, [("a", 1)])
    place.rows["_due.t"][b"a"] = b"+{}"
    assert "CorruptError: table _due_at.t: a row of _due.t cannot be read" in refused(place)


def test_rows_of_the_queue_that_do_not_fit_are_refused_and_not_put_aside():
    place = Place(value_bytes_max=40)
    place.batch(0, [("a" * 30, 1)])
    with pytest.raises(BadRecordError, match=r"table _due_at.t, batch 7: the value takes 48 bytes, 40 are"):
        place.batch(0, [("a" * 45, 1)])


@pytest.mark.parametrize(
    "timeout, on_timeout, why",
    [
        (None, close, "on_timeout needs a timeout"),
        ("1 h", None, "a timeout needs a function, on_timeout"),
        ("1 h", count, "count cannot be called as count"),
        ("soon", close, "timeout of table t is 'soon'; it must be a duration"),
        (0.5, close, "must be 1 second to 36,525 days"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(timeout, on_timeout, why):
    with pytest.raises(ConfigError, match=why):
        timeout_of("t", timeout, on_timeout)


def test_names_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"use 1 to 56 characters, since .* the table _due_at\.t"):
        timeout_of("t" * 57, "1 h", close)
    timeout_of("t" * 56, "1 h", close)
    with pytest.raises(ConfigError, match="a timeout needs the name due_us for itself"):
        timeout_schemas("t", (Column("due_us", "bigint"),))
