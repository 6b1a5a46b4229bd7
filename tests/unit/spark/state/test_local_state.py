"""Local state without Spark: what instances read at the base version, what they write, what is refused."""

import contextlib
import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.base.names import LOCAL
from tidegate.errors import BadRecordError, ConfigError, CorruptError, FunctionError
from tidegate.options import Options
from tidegate.spark.state import local_state
from tidegate.spark.state.call_deadline import Deadline
from tidegate.spark.state.local_state import (
    ITEMS_MAX,
    LocalWork,
    instance_key,
    item_key,
    run_instance,
    run_local,
    table_of,
)
from tidegate.spark.state.output_rows import MARK, OutputRows
from tidegate.spark.state.udf_runner import UdfRunner
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging.spec import StageSpec
from tidegate.wal.value_flags import REFUSED

NAME = "seen"
TABLE = table_of(NAME)


class Rows:
    """What a store answers of the last version, and the changes of one batch."""

    def __init__(self):
        self.tables = {LOCAL: {}, TABLE: {}}
        self.version = 0
        self.changes = []
        self.asked = 0

    def get_many(self, at, keys):
        assert (at.version, at.start) == (self.version, 0)
        self.asked += len(keys)
        return pa.array([self.tables[at.table].get(key) for key in keys], pa.binary())

    def apply(self, changes):
        """All or nothing: every key once, as an upsert or a delete of what is there."""
        places = [(change.table, change.key) for change in changes]
        assert len(places) == len(set(places)), "two instances wrote one row"
        for table, key, value in changes:
            if value == b"-":
                del self.tables[table][key]  # KeyError: deletes what was never there
            else:
                self.tables[table][key] = value[1:]
        self.version += 1
        self.changes = changes

    def lists(self, parallelism):
        """The state as it lies there; every row has to belong to it."""
        counts = {int(key.split(b":")[-1].rstrip(b",")): value for key, value in self.tables[LOCAL].items()}
        assert sorted(counts) == list(range(parallelism))
        found = []
        for index in range(parallelism):
            told = counts[index]
            count = int(told.split(b'"items":')[1].split(b",")[0])
            assert told == b'{"items":%d,"parallelism":%d}' % (count, parallelism)
            found.append([self.tables[TABLE][item_key(index, place)] for place in range(count)])
        assert len(self.tables[TABLE]) == sum(map(len, found))
        return found


ITEMS = TableSchema((Column("instance", "int"), Column("item", "int")), (Column("value", "binary"),), "bytes")
ROWS = TableSchema((), (Column("n", "bigint"),))


def changes(rows, index, parallelism, fn, redistribute="split"):
    """What one instance writes."""
    spec = StageSpec("uuid", "attempt", (LOCAL, TABLE), (("string", "int"), ("int", "int")), 1000, 20, 100, 8)
    starts = (0, 0) if rows.version else (-1, -1)
    work = LocalWork(
        spec, 0, NAME, redistribute, ITEMS, ROWS, {}, rows.version, starts, "batch 7", 60.0, parallelism, 3
    )
    with Deadline(work.deadline_s) as deadline:
        calls = UdfRunner(spec, {}, OutputRows(index), deadline, lambda: None)
        return list(run_instance(work, fn, rows, index, iter(()), calls))


def run(rows, parallelism, fn, redistribute="split"):
    """One batch of all instances."""
    each = [changes(rows, index, parallelism, fn, redistribute) for index in range(parallelism)]
    rows.apply([change for of_one in each for change in of_one])


def keep(instance, rows, state, emit):
    return state


def halves(state, n):
    return [state[part::n] for part in range(n)]


def joined(states):
    return [item for state in states for item in state]


LISTS = st.lists(st.binary(max_size=3), max_size=6)


@settings(max_examples=60)
@given(
    st.lists(LISTS, min_size=1, max_size=6),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.sampled_from(["split", (None, None), (halves, joined), (halves, None), (None, joined)]),
)
def test_rescaling_loses_and_doubles_nothing(lists, steps, redistribute):
    rows = Rows()
    run(rows, len(lists), lambda instance, *_: lists[instance.index])
    assert rows.lists(len(lists)) == lists
    items = joined(lists)
    before = len(lists)
    for parallelism in steps:
        run(rows, parallelism, keep, redistribute)
        found = rows.lists(parallelism)
        assert sorted(joined(found)) == sorted(items)
        if redistribute == "split" and parallelism != before:
            assert joined(found) == items, "in the order of the old instances"
            assert max(map(len, found)) - min(map(len, found)) <= 1
        before = parallelism
        run(rows, parallelism, keep, redistribute)
        assert rows.changes == [], "the state as given writes nothing"


@given(st.lists(LISTS, min_size=1, max_size=5), st.integers(1, 12))
def test_union_gives_every_instance_all_items(lists, parallelism):
    rows = Rows()
    run(rows, len(lists), lambda instance, *_: lists[instance.index], "union")
    run(rows, parallelism, keep, "union")
    before = len(lists)
    assert rows.lists(parallelism) == (lists if before == parallelism else [joined(lists)] * parallelism)


@given(st.lists(LISTS, min_size=1, max_size=4), st.integers(1, 5))
def test_a_union_of_which_each_keeps_its_share_grows_nothing(lists, times):
    """How union is meant: the function keeps what is its own."""

    def own(instance, _, state, __):
        if instance.before in (0, instance.parallelism):
            return state
        return [item for item in state if hash_of(item) % instance.parallelism == instance.index]

    def hash_of(item):
        return sum(item) + len(item)

    rows = Rows()
    run(rows, len(lists), lambda instance, *_: lists[instance.index], "union")
    for parallelism in range(len(lists) + 1, len(lists) + 1 + times):
        run(rows, parallelism, own, "union")
        assert sorted(joined(rows.lists(parallelism))) == sorted(joined(lists))


@given(st.lists(LISTS, min_size=1, max_size=5), st.integers(1, 9))
def test_split_and_merge_are_there_and_back(lists, parallelism):
    """Growing and shrinking again gives every instance what it had, when merge undoes split."""

    def cut(state, n):
        return (
            [state, *([] for _ in range(n - 1))]
            if not state
            else [state[:-1], *([] for _ in range(n - 2)), state[-1:]]
        )

    rows = Rows()
    run(rows, len(lists), lambda instance, *_: lists[instance.index])
    after = len(lists) + parallelism
    run(rows, after, keep, (cut, joined))
    run(rows, len(lists), keep, (cut, joined))
    assert rows.lists(len(lists)) == lists


def test_without_functions_new_instances_are_empty_and_survivors_take_what_lost_ones_held():
    rows = Rows()
    run(rows, 2, lambda instance, *_: [b"%d" % instance.index])
    run(rows, 5, keep, (None, None))
    assert rows.lists(5) == [[b"0"], [b"1"], [], [], []]
    run(rows, 5, lambda instance, *_: [b"%d" % instance.index], (None, None))
    run(rows, 2, keep, (None, None))
    assert rows.lists(2) == [[b"0", b"2", b"4"], [b"1", b"3"]]


def test_the_function_is_told_what_it_is_called_for():
    rows, seen = Rows(), []

    def note(instance, _, state, __):
        seen.append((instance.index, instance.parallelism, instance.before))
        return state

    for parallelism in (2, 2, 3, 1):
        run(rows, parallelism, note)
    assert seen == [(0, 2, 0), (1, 2, 0), (0, 2, 2), (1, 2, 2), (0, 3, 2), (1, 3, 2), (2, 3, 2), (0, 1, 3)]


def test_cost_follows_the_changes():
    """One item more at one of three instances: two rows. Each instance asks for its own rows only."""
    rows = Rows()
    run(rows, 3, lambda *_: [b"%d" % n for n in range(50)])
    rows.asked = 0
    run(rows, 3, lambda instance, _, state, __: [*state, b"x"] if instance.index == 1 else state)
    assert [change.key for change in rows.changes] == [item_key(1, 50), instance_key(NAME, 1)]
    assert rows.asked == 3 * (50 + 2)
    run(rows, 3, lambda instance, _, state, __: state[:-1] if instance.index == 1 else state)
    assert [change.value[:1] for change in rows.changes] == [b"-", b"+"]


def test_a_list_that_the_function_changes_in_place_is_written():
    rows = Rows()
    run(rows, 1, lambda *_: [b"a"])

    def in_place(_, __, state, ___):
        state.append(b"b")
        state[0] = b"c"
        return state

    run(rows, 1, in_place)
    assert rows.lists(1) == [[b"c", b"b"]]


WRONG = {
    "raises": (lambda *_: 1 // 0, "<lambda> raised ZeroDivisionError"),
    "returns nothing": (lambda *_: None, "fn returned NoneType; it must return the list"),
    "returns text": (lambda *_: "abc", "fn returned str"),
    "returns a generator": (lambda *_: (b"" for _ in range(2)), "fn returned generator"),
    "an item that is no bytes": (
        lambda *_: [b"a", {"n": 1}],
        "item 1 cannot be stored: .*is not bytes.*schema=",
    ),
    "an item too large": (
        lambda *_: [b"x" * 101],
        "item 0 takes 101 bytes, 100 are allowed.*value_bytes_max",
    ),
    "too many": (
        lambda *_: [b""] * (ITEMS_MAX + 1),
        f"returned {ITEMS_MAX + 1} items, {ITEMS_MAX} are allowed",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_state_is_refused_with_its_name_instance_and_batch(case):
    fn, told = WRONG[case]
    refused = BadRecordError if "item " in told else FunctionError
    with pytest.raises(refused, match=f"^local state seen, instance 1 of 3, batch 7: .*{told}"):
        changes(Rows(), 1, 3, fn)
    with pytest.raises(refused, match="nothing was decided"):
        changes(Rows(), 1, 3, fn)


def test_a_list_that_takes_too_much_memory_is_refused_i11(monkeypatch):
    monkeypatch.setattr(local_state, "LIST_BYTES_MAX", 150)
    assert changes(Rows(), 1, 3, lambda *_: [b"x" * 75] * 2)
    told = "^local state seen, instance 1 of 3, batch 7: 2 of its 3 items take 152 bytes, 150 are allowed"
    with pytest.raises(FunctionError, match=told):
        changes(Rows(), 1, 3, lambda *_: [b"x" * 76] * 3)


BAD_FUNCTIONS = {
    "split raises": ((lambda *_: 1 // 0, None), 4, ", split: <lambda> raised ZeroDivisionError"),
    "too few shares": (
        (lambda state, _: [state], None),
        4,
        "split returned 1 of them; it must return 2 lists",
    ),
    "no shares": ((lambda *_: None, None), 4, "split returned NoneType; it must return 2 lists"),
    "a share that is no list": ((lambda state, _: [state, b""], None), 4, "split returned bytes"),
    "merge raises": ((None, lambda _: 1 // 0), 1, ", merge: <lambda> raised ZeroDivisionError"),
    "no merged state": ((None, lambda _: None), 1, "merge returned NoneType"),
}


@pytest.mark.parametrize("case", BAD_FUNCTIONS)
def test_functions_that_redistribute_wrongly_are_refused(case):
    functions, parallelism, told = BAD_FUNCTIONS[case]
    rows = Rows()
    run(rows, 2, lambda *_: [b"a", b"b"])
    with pytest.raises(FunctionError, match=f"local state seen, instance .*{told}"):
        run(rows, parallelism, keep, functions)
    assert rows.lists(2) == [[b"a", b"b"]] * 2


def test_a_split_that_is_not_repeatable_is_refused():
    """Every instance that takes a share calls it: items would be lost, or doubled."""
    turn = iter(range(100))

    def shifting(state, n):
        shares = [[] for _ in range(n)]
        shares[next(turn) % n] = state
        return shares

    rows = Rows()
    run(rows, 2, lambda *_: [b"a"])
    with pytest.raises(FunctionError, match=r"split returned two results for the same state.*repeatable"):
        run(rows, 4, keep, (shifting, None))


def test_another_way_to_redistribute_takes_effect_with_the_next_rescale():
    rows = Rows()
    run(rows, 2, lambda instance, *_: [b"%d" % instance.index], "union")
    run(rows, 2, keep, "split")
    run(rows, 3, keep, "split")
    assert rows.lists(3) == [[b"0"], [b"1"], []]
    run(rows, 2, keep, (None, lambda states: [b"+".join(joined(states))]))
    assert rows.lists(2) == [[b"0+"], [b"1"]] or rows.lists(2) == [[b"0"], [b"1"]]
    run(rows, 3, keep, "union")
    assert rows.lists(3) == [[b"0", b"1"]] * 3


@pytest.mark.parametrize(
    "lost", [(LOCAL, instance_key(NAME, 0)), (LOCAL, instance_key(NAME, 1)), (TABLE, item_key(1, 2))]
)
def test_rows_that_are_not_there_are_no_empty_state_i10(lost):
    rows = Rows()
    run(rows, 2, lambda *_: [b"a", b"b", b"c"])
    table, key = lost
    del rows.tables[table][key]
    for parallelism in (2, 3, 1):
        with pytest.raises(CorruptError, match=r"local state seen: at version 1 .*instance [01]"):
            run(rows, parallelism, keep, "split")


@pytest.mark.parametrize("table", [LOCAL, TABLE])
def test_a_local_state_has_no_time_to_live(table):
    with pytest.raises(ConfigError, match="a local state does not expire"):
        Options(ttl={table: 60})
    Options(ttl={f"{LOCAL}ity": 60})


# -- the task of one instance ---------------------------------------------------------------------


def task(fn, numbers=(), index=1, deadline_s=60.0, key_bytes_max=20):
    """What a task gives for an instance of two, as rows (t, k, v); t -1 is a mark."""
    types = (("string", "int"), ("int", "int"))
    spec = StageSpec("uuid", "attempt", (LOCAL, TABLE), types, 1000, key_bytes_max, 100, 8)
    work = LocalWork(spec, 0, NAME, "split", ITEMS, ROWS, {}, 0, (-1, -1), "batch 7", deadline_s, 2, 5)
    rows = [None, *(f'{{"n":{number}}}'.encode() for number in numbers)]
    source = pa.record_batch(
        {"i": pa.array([index] * len(rows), pa.int32()), "r": pa.array(rows, pa.binary())}
    )
    batches = iter([source.slice(at, 2) for at in range(0, len(rows), 2)])
    made = [row for batch in run_local(work, fn, Rows(), batches) for row in batch.to_pylist()]
    left = sum(1 for _ in batches)
    assert left == 0 or made[-1]["v"].startswith(REFUSED), "all rows are taken"
    return [(row["t"], row["k"], row["v"]) for row in made]


def collect(_, rows, state, __):
    return [*state, *(b"%d" % row["n"] for row in rows)]


def test_a_task_gives_the_changes_of_its_instance_and_a_mark_for_every_task():
    made = task(collect, [5, 6, 7])
    assert made[:4] == [
        *((1, item_key(1, place), b"+%d" % number) for place, number in enumerate([5, 6, 7])),
        (0, instance_key(NAME, 1), b'+{"items":3,"parallelism":2}'),
    ]
    assert [(table, key) for table, key, _ in made[4:]] == [(MARK, b"")] * 5, "of the staging, which has five"
    assert b"local state seen/1" in made[4][2]


def test_the_marks_tell_runs_apart_that_made_other_rows():
    """What Spark ran again must not be mixed with its first run: the acks are compared (I1)."""
    mark, again = task(collect, [5, 6, 7])[-1], task(collect, [5, 6, 7])[-1]
    assert mark == again
    assert task(collect, [5, 6, 8])[-1] != mark
    assert task(collect, [5, 6, 7, 8])[-1] != mark


def test_rows_that_the_function_does_not_look_at_are_taken_all_the_same():
    assert len(task(lambda *_: [b"x"], range(20))) == 2 + 5


@pytest.mark.parametrize(
    "fn,told",
    [
        (lambda *_: 1 // 0, b"FunctionError.*batch 7: <lambda> raised ZeroDivisionError"),
        (
            lambda *given: given[-1]("seen", 1, {}),
            b"FunctionError.*emits to 'seen', which is not one",
        ),
        (lambda *_: [b"y" * 101], b"BadRecordError.*item 0 takes 101 bytes"),
    ],
)
def test_a_refusal_is_given_as_a_row_so_that_spark_does_not_try_again(fn, told):
    ((table, _, value),) = task(fn, [5])
    assert table == 1
    assert value.startswith(REFUSED)
    assert re.search(told, value)


def test_a_row_that_python_cannot_hold_is_refused_even_if_the_function_swallows_it():
    def swallow(_, rows, state, __):
        with contextlib.suppress(Exception):
            list(rows)
        return state

    for fn in (collect, swallow):
        ((table, _, value),) = task(fn, [5, '"no number"'])
        assert table == 1
        assert value.startswith(REFUSED + b'["BadRecordError"')
        assert b"instance 1 of 2, batch 7: a row has a value that Python cannot represent" in value


def test_a_key_over_the_limit_is_refused_not_quarantined():
    """A list without one of its rows would be none."""
    ((_, _, value),) = task(collect, [5], key_bytes_max=7)
    assert re.search(b"BadRecordError.*local state seen: the key takes 8 bytes, 7 are allowed", value)


def test_a_function_that_never_returns_is_ended_by_its_deadline():
    def never(*_):
        while True:
            pass

    ((_, _, value),) = task(never, deadline_s=0.2)
    assert re.search(rb"FunctionError.*instance 1 of 2, batch 7: .*never did not return within", value)


def test_every_item_is_migrated_once_while_the_state_is_rescaled():
    rows, items = Rows(), iter(range(100))

    def fill(instance, found, state, emit):
        return [b"%d" % next(items) for _ in range(3)]

    run(rows, 2, fill)
    newer = TableSchema(ITEMS.key, (Column("n", "int"),), state_version=2)
    spec = StageSpec("uuid", "attempt", (LOCAL, TABLE), (("string", "int"), ("int", "int")), 1000, 20, 100, 8)
    seen = []

    def migrate(item, version):
        seen.append((item, version))
        return {"n": int(item)}

    written = []
    for index in range(3):
        work = LocalWork(spec, 0, NAME, "split", newer, ROWS, {}, 1, (0, 0), "batch 7", 60.0, 3, 3, ITEMS)
        with Deadline(60.0) as deadline:
            calls = UdfRunner(spec, {}, OutputRows(index), deadline, lambda: None)
            written += run_instance(work, keep, rows, index, iter(()), calls, migrate)
    assert sorted(seen) == [(b"%d" % n, 1) for n in range(6)]
    new = [change.value for change in written if change.table == TABLE and change.value != b"-"]
    assert sorted(new) == [b'+{"n":%d}' % n for n in range(6)], "all of them, since the table begins again"
