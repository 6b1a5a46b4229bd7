"""Local state through Spark: lists per instance, atomic with the batch, dealt out anew on rescale."""

from __future__ import annotations

import datetime
import re
import sys

import pytest
from pyspark import cloudpickle
from pyspark.sql import types

from tidegate.base import failpoints
from tidegate.committers.apply.apply import read_manifest
from tidegate.errors import ConfigError, FunctionError
from tidegate.wal.fold import View, fold_all

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests

pytestmark = pytest.mark.spark

SCHEMA = "k string, n bigint"
UTC = datetime.timezone.utc


def numbers(start, end):
    return [{"k": f"k{n % 7}", "n": n} for n in range(start, end)]


def collect(instance, rows, state, emit):
    """Everything ever seen."""
    return [*state, *(b"%d" % row["n"] for row in rows)]


def writes(fn=collect, *, name="seen", **options):
    def each(txn, rows):
        txn.upsert("newest", rows, key="k", order_by="n")
        txn.local_state(name, rows, fn, **options)

    return each


def lists(flights, name="seen", version=None):
    """The state at a version as a reader finds it: one list per instance, each of the parallelism told."""
    told = {key[1]: value for key, value in flights.rows("_local", version).items() if key[0] == name}
    items = flights.rows(f"_local.{name}", version)
    found = []
    for index in range(len(told)):
        assert told[index]["parallelism"] == len(told)
        found.append([items.pop((index, place)) for place in range(told[index]["items"])])
    assert not items, "rows that belong to no list"
    return found


def flat(found):
    return sorted(int(item) for state in found for item in state)


def largest(instance, rows, state, emit):
    """The three largest numbers that this instance was ever given, the largest first."""
    given = [*(int(item) for item in state), *(row["n"] for row in rows)]
    return [b"%d" % number for number in sorted(given, reverse=True)[:3]]


def keep_largest(states):
    return [
        b"%d" % number for number in sorted((int(i) for state in states for i in state), reverse=True)[:3]
    ]


@pytest.mark.timeout(300)  # five batches with two steps of local state
def test_one_state_has_its_own_parallelism_and_its_own_rescale_i1(stream):
    """From 3 to 1 and back, while the batch's tasks and another local state stay at 2."""
    flights = stream(SCHEMA)
    own = [3, 1, 4, 1, None]
    for step, parallelism in enumerate(own):

        def each(txn, rows, parallelism=parallelism):
            txn.local_state("seen", rows, collect)
            txn.local_state(
                "top", rows, largest, by="n", parallelism=parallelism, redistribute=(None, keep_largest)
            )

        flights.commit(
            flights.sink(parallelism=2, key_groups=5).each(each), numbers(10 * step, 10 * step + 10)
        )
    for version, parallelism in enumerate(own, 1):
        assert [len(lists(flights, "seen", version)), len(lists(flights, "top", version))] == [
            2,
            parallelism or 2,
        ]
        assert flat(lists(flights, "seen", version)) == list(range(10 * version))
    for version in (2, 4):  # one instance: the three largest of all rows
        assert lists(flights, "top", version) == [[b"%d" % (10 * version - n) for n in (1, 2, 3)]]
    with flights.log.opened("flights") as log:
        decided = fold_all(View(), log.decisions()).state.recent
        manifests = [read_manifest(log, each) for each in decided]
    for manifest, parallelism in zip(manifests, own, strict=True):
        parts = {name: part.parallelism for name, part in manifest.topology["flights"].items()}
        assert parts == {"sink": 2, "local.seen": 2, "local.top": parallelism or 2}
        assert [(step.name, step.parallelism) for step in manifest.steps] == [
            ("local_state.seen", 2),
            ("local_state.top", parallelism or 2),
        ]


def test_what_instances_emit_is_in_the_same_version(stream):
    """The last one wins by instance, then by the order of emits; None deletes."""
    flights = stream(SCHEMA)

    def number_rows(instance, rows, state, emit):
        """Ids without gaps per instance, that no two instances share."""
        following = int(state[0]) if state else instance.index
        for row in rows:
            emit("ids", row["n"], {"id": following})
            following += instance.parallelism
        emit("last", "instance", {"index": instance.index})
        if instance.index == 0:
            emit("last", "first", None)
        return [b"%d" % following]

    outputs = {"ids": ("n bigint", "id bigint"), "last": ("what string", "index int")}
    sink = flights.sink(parallelism=3)
    each = writes(number_rows, outputs=outputs)
    flights.commit(sink.each(each), numbers(0, 10), numbers(10, 20))
    ids = flights.rows("ids")
    assert sorted(ids) == list(range(20))
    assert len({value["id"] for value in ids.values()}) == 20
    assert sorted(int(state[0]) % 3 for state in lists(flights)) == [0, 1, 2]
    assert flights.rows("last") == {"instance": {"index": 2}}
    assert sorted(flights.rows("ids", 1)) == list(range(10))


def test_a_replay_gives_every_instance_the_same_rows_in_the_same_order_t14_i2(stream, tmp_path):
    """The first try fails before its decision; the second's input is partitioned otherwise."""
    flights = stream(SCHEMA)
    seen, partitions = tmp_path / "seen", [1]
    seen.mkdir()
    where = str(seen)

    def note(instance, rows, state, emit):
        from pathlib import Path

        mine = [f"{row['k']}{row['n']}" for row in rows]
        tries = len(list(Path(where).glob(f"{instance.index}-*")))
        (Path(where) / f"{instance.index}-{tries}").write_text(" ".join(mine))
        return [*state, b"once"]

    def each(txn, rows):
        txn.local_state("seen", rows.repartition(partitions[0]), note, by="k", order_by="n")

    flights.add(numbers(0, 60))
    sink = flights.sink(parallelism=3)
    failpoints.arm("decide.before_append=raise")
    assert isinstance(flights.run(sink.each(each)).error, failpoints.FailpointError)
    failpoints.arm(None)
    assert flights.decided() == 0
    partitions[0] = 5
    flights.commit(sink.each(each))
    assert lists(flights) == [[b"once"]] * 3
    rows = []
    for index in range(3):
        first, again = ((seen / f"{index}-{attempt}").read_text() for attempt in (0, 1))
        assert first == again
        mine = first.split()
        rows += mine
        assert mine == sorted(mine, key=lambda row: int(row[2:])), "by order_by"
    assert sorted(rows) == sorted(f"{row['k']}{row['n']}" for row in numbers(0, 60))
    homes = {row[:2]: {i for i in range(3) if row in (seen / f"{i}-0").read_text().split()} for row in rows}
    assert all(len(found) == 1 for found in homes.values()), "rows of one k are one instance's"


@pytest.mark.parametrize(
    "place",
    [
        "decide.after_append",
        *(
            pytest.param(place, marks=pytest.mark.slow)
            for place in ("manifest.after_write", "apply.after_chunk")
        ),
    ],
)
def test_a_rescale_in_the_middle_of_a_batch_that_failed_i2_i4(stream, place):
    """What was decided is recovered at its own parallelism; then, or else, the new one takes over."""
    flights = stream(SCHEMA)
    flights.commit(flights.sink(parallelism=2).each(writes()), numbers(0, 10))
    flights.add(numbers(10, 20))
    failpoints.arm(f"{place}=raise")
    ran = flights.run(flights.sink(parallelism=2).each(writes()))
    assert isinstance(ran.error, failpoints.FailpointError)
    failpoints.arm(None)
    assert flat(lists(flights)) == list(range(10))
    sink = flights.sink(parallelism=5)
    flights.commit(sink.each(writes()), numbers(20, 30))
    decided = place != "manifest.after_write"
    assert sink.recovered == ([2] if decided else [])
    assert [len(lists(flights, version=version)) for version in (1, 2, 3)] == [2, 2 if decided else 5, 5]
    for version in (1, 2, 3):
        assert flat(lists(flights, version=version)) == list(range(10 * version))


def test_a_function_that_raises_names_state_instance_and_batch_and_nothing_is_decided_i5(stream):
    flights = stream(SCHEMA)
    sink = flights.sink(parallelism=2)
    flights.commit(sink.each(writes()), numbers(0, 4))

    def fails(instance, rows, state, emit):
        if instance.index == 1:
            raise KeyError("tail")
        return state

    flights.add(numbers(4, 8))
    ran = flights.run(sink.each(writes(fails)))
    assert isinstance(ran.error, FunctionError)
    told = (
        "local state seen, instance 1 of 2, batch 1: .*fails raised KeyError: 'tail' .*; nothing was decided"
    )
    assert re.match(told, str(ran.error))
    assert (flights.version(), flights.decided()) == (1, 1)
    flights.commit(sink.each(writes()))
    assert flat(lists(flights)) == list(range(8))


def test_items_of_a_schema_are_dicts_and_a_batch_without_rows_runs_every_instance_t7(stream):
    """A sum per instance, that two functions of the user's own share out and add up again."""
    flights = stream("k string, n bigint, at timestamp")
    noon = datetime.datetime(2013, 1, 1, 12, tzinfo=UTC)

    def add(instance, rows, state, emit):
        total = state[0] if state else {"batches": 0, "n": 0, "newest": None}
        for row in rows:
            total["n"] += row["n"]
            total["newest"] = max(filter(None, (total["newest"], row["at"])))
        total["batches"] += 1
        return [total]

    def share(state, n):
        return [state, *([] for _ in range(n - 1))]

    def sum_up(states):
        found = [total for state in states for total in state]
        newest = max(filter(None, (total["newest"] for total in found)), default=None)
        return [{"batches": found[0]["batches"], "n": sum(total["n"] for total in found), "newest": newest}]

    each = writes(add, schema="batches int, n bigint, newest timestamp", redistribute=(share, sum_up))
    rows = [{"k": f"k{n}", "n": n, "at": noon + datetime.timedelta(hours=n)} for n in range(10)]
    for step, (parallelism, batch) in enumerate([(2, rows), (4, []), (1, []), (1, [])]):
        sink = flights.sink(parallelism=parallelism)
        flights.commit(sink.each(each), batch)
        found = [total for state in lists(flights) for total in state]
        assert len(found) == parallelism
        assert sum(total["n"] for total in found) == 45, step
    assert found == [{"batches": 4, "n": 45, "newest": noon + datetime.timedelta(hours=9)}]


WRONG = {
    "a name that is none": ({"name": "a b"}, "local state name 'a b' is not allowed"),
    "a name too long for its table": ({"name": "n" * 60}, "and 64 are the most"),
    "no function": (
        {"fn": "collect"},
        "fn is 'collect'; local_state needs a function, fn(instance, rows, state, emit)",
    ),
    "another function": ({"fn": lambda state: state}, "cannot be called as"),
    "a redistribution that is none": (
        {"redistribute": "round"},
        "redistribute='round'; it is 'split', 'union'",
    ),
    "no instance": ({"parallelism": 0}, "parallelism=0; it is the number of instances, 1 to 32,768"),
    "half an instance": ({"parallelism": 1.5}, "parallelism=1.5; it is the number of instances"),
    "one function": ({"redistribute": (collect,)}, "two functions"),
    "a column that is not there": ({"by": "m"}, "column 'm' is missing; there are k, n"),
    "a column without order": ({"order_by": ["n", "tags"]}, "column 'tags' is a map"),
    "a schema that cannot be read": ({"schema": "n integer of sorts"}, "does not name the value's columns"),
    "a schema with a column of the key": ({"schema": "item int"}, "item is a key column, leave it out"),
    "a type that readers cannot read": ({"schema": "v variant"}, "variant is not a type"),
    "another schema than before": (
        {"name": "seen", "schema": "n int"},
        "table _local.seen, the values: bytes values of (value binary) here, this call writes json",
    ),
    "an output of its own": (
        {"outputs": {"_local": ("k string", "n int")}},
        "names that start with an underscore",
    ),
    "twice": ({"name": "again"}, "local_state and local_state of one table do not mix in one transaction"),
}


def test_calls_that_do_not_fit_are_refused_before_anything_is_written(stream):
    flights = stream(SCHEMA)
    sink = flights.sink(parallelism=2)
    flights.commit(sink.each(writes()), numbers(0, 4))

    def check(txn, rows):
        txn.local_state("again", rows, collect)
        with_map = rows.selectExpr("*", "map(k, n) tags")
        for case, (options, told) in WRONG.items():
            if "variant" in str(options) and not hasattr(types, "VariantType"):
                continue  # Spark 3.5 has none
            name, fn = options.get("name", "other"), options.get("fn", collect)
            given = {key: value for key, value in options.items() if key not in ("name", "fn")}
            with pytest.raises(ConfigError) as refused:
                txn.local_state(name, with_map, fn, **given)
            assert told in str(refused.value), case
        with pytest.raises(ConfigError, match="rows must be a DataFrame, not list"):
            txn.local_state("other", [], collect)
        with pytest.raises(ConfigError, match="names that start with an underscore are reserved"):
            txn.upsert("_local.seen", rows, key="k")
        raise LookupError("all were refused")

    flights.add(numbers(4, 8))
    ran = flights.run(sink.each(check))
    assert isinstance(ran.error, LookupError), ran.error
    assert flights.decided() == 1
