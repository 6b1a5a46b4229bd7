"""Arguments of a wrong type and of any size: every call of a transaction raises a typed, short error."""

import inspect

import pytest

from support.cli import done
from support.odd_values import VALUES, faults
from tidegate.spark.calls.collected import CollectedCalls
from tidegate.spark.transaction import Transaction

CALLS = (
    "upsert",
    "replace",
    "delete",
    "reduce",
    "update",
    "patch",
    "apply_changes",
    "local_state",
    "drop_table",
)
NEEDED = {
    "table": "t",
    "key": "k",
    "reducers": {"n": "sum"},
    "sequence_by": "n",
    "schema": "n bigint",
    "fn": lambda *_: None,
}


def arguments(name):
    return {
        parameter.name: parameter
        for parameter in inspect.signature(getattr(Transaction, name)).parameters.values()
        if parameter.name != "self"
    }


def needed(name, rows):
    own = {"name": "step", "schema": "n bigint"} if name == "local_state" else {}
    given = {**NEEDED, **own, "rows": rows}
    return {
        argument: given[argument]
        for argument, parameter in arguments(name).items()
        if parameter.default is parameter.empty or argument == "schema"
    }


def can_be_hashed(odd):
    try:
        hash(odd)
    except TypeError:
        return False
    return True


@pytest.mark.spark
@pytest.mark.parametrize(
    "name, argument", [(name, argument) for name in CALLS for argument in arguments(name)]
)
def test_an_argument_of_a_call(spark, name, argument):
    rows = spark.createDataFrame([("a", 1, "d")], "k string, n bigint, op string")

    def call(odd):
        transaction = Transaction(0, 0, CollectedCalls(0, {}))
        getattr(transaction, name)(**needed(name, rows) | {argument: odd})

    if name != "drop_table":
        getattr(Transaction(0, 0, CollectedCalls(0, {})), name)(**needed(name, rows))
    assert faults(call) == []


@pytest.mark.spark
@pytest.mark.parametrize(
    "argument", ["tables", "table of tables", "rows of tables", "token", "key", "keys", "replace"]
)
def test_an_argument_of_a_load(spark, tmp_path, argument):
    from tidegate.spark import VersionedSink

    rows = spark.createDataFrame([("a", 1)], "k string, n bigint")
    sink = VersionedSink(namespace="n", wal=f"file://{tmp_path}/wal", store=f"sqlite://{tmp_path}/store")

    def call(odd):
        given = {"tables": {"t": rows}, "token": "once", "key": "k", "replace": False}
        if argument == "table of tables":
            given["tables"] = {odd if can_be_hashed(odd) else "t": rows}
        elif argument == "rows of tables":
            given["tables"] = {"t": odd}
        elif argument == "keys":
            given["key"] = {"t": odd}
        else:
            given[argument] = odd
        sink.load(given.pop("tables"), **given)

    assert faults(call) == []


@pytest.fixture
def state(spark, tmp_path):
    """A sink with two versions: the rows of a table, and those of a state; its export is in ``export``."""
    from tidegate.spark import VersionedSink

    url = f"sqlite://{tmp_path}/store"
    sink = VersionedSink(namespace="n", wal=f"file://{tmp_path}/wal", store=url, key_groups=2)
    rows = spark.createDataFrame([("a", 1)], "k string, n bigint")
    sink.load({"t": rows}, token="once", key="k")
    done("export", tmp_path / "export", "--namespace=n", f"--store={url}")
    yield sink
    sink.close()


SINGLE = {
    "import_folder": ("spark", "folder", "token", "bytes_max"),
    "rename_column": ("table", "old", "new"),
    "migrate_state": ("table", "migrate", "state_version", "schema"),
    "drain": ("timeout_s",),
    "recover": ("force",),
}


@pytest.mark.spark
@pytest.mark.parametrize(
    "name, argument", [(name, each) for name, of_name in SINGLE.items() for each in of_name]
)
def test_an_argument_of_a_version_that_is_no_batch(spark, state, tmp_path, name, argument):
    given = {
        "import_folder": {"spark": spark, "folder": str(tmp_path / "export"), "token": "another"},
        "rename_column": {"table": "t", "old": "n", "new": "m"},
        "migrate_state": {"table": "t", "migrate": lambda state, _: state, "state_version": 2},
        "drain": {"timeout_s": 1.0},
        "recover": {},
    }[name]
    assert faults(lambda odd: getattr(state, name)(**given | {argument: odd})) == []


@pytest.mark.spark
@pytest.mark.parametrize("argument", ["writer", "checkpoint", "write"])
def test_an_argument_of_start(spark, state, argument):
    """The sink has no table, so that no query starts with a right argument."""
    writer = spark.readStream.format("rate").load().writeStream
    write = None if argument == "checkpoint" else lambda *_: None
    given = {"writer": writer, "checkpoint": "checkpoint", "write": write}
    odd = [value for value in VALUES if argument != "write" or not callable(value)]
    assert faults(lambda value: state.start(**given | {argument: value}), odd) == []
    assert not spark.streams.active
