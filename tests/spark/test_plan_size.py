"""The size of every call's plan is linear in the columns."""

from __future__ import annotations

import pytest
from py4j.clientserver import JavaClient
from py4j.protocol import MEMORY_COMMAND_NAME

from tidegate.spark.calls.collected import CollectedCalls
from tidegate.spark.calls.local_state import _sent_to_instances
from tidegate.spark.transaction import Transaction

pytestmark = pytest.mark.spark

NUMBERS = ["bigint", "tinyint", "decimal(38,10)", "decimal(10,2)", "decimal(38,38)", "double"]
ORDERED = [*NUMBERS, "string", "binary", "timestamp", "date"]
KINDS = [
    *("bigint", "decimal(38,10)", "double", "string", "timestamp", "timestamp_ntz"),
    *("map<timestamp,string>", "struct<a:date,m:map<date,int>>", "array<map<timestamp,string>>"),
    "struct<a:string,b:struct<c:timestamp,d:string>>",
]
SIZES = (10, 20, 40)
QUESTIONS = {"apply_changes of a long sequence": 64}
QUESTIONS_OTHERS = 16
"""To the JVM, for each column of a batch: it is named in a few selects, and the rows' schema is read."""


def no_function(*_):
    """Not run here."""


CALLS = {
    "upsert": (KINDS, lambda txn, rows, _: txn.upsert("t", rows, "id")),
    "upsert of long keys": (["bigint", "timestamp"], lambda txn, rows, names: txn.upsert("t", rows, names)),
    "upsert in an order": (ORDERED, lambda txn, rows, names: txn.upsert("t", rows, "id", order_by=names)),
    "upsert that deletes": (KINDS, lambda txn, rows, _: txn.upsert("t", rows, "id", delete_when="op = 'd'")),
    "upsert of newer rows": (KINDS, lambda txn, rows, _: txn.upsert("t", rows, "id", newer_by="seq")),
    "replace": (KINDS, lambda txn, rows, _: txn.replace("t", rows, "id")),
    "patch": (KINDS, lambda txn, rows, _: txn.patch("t", rows, "id")),
    "patch of columns that are not null": (
        KINDS,
        lambda txn, rows, _: txn.patch("t", rows, "id", ignore_nulls=True),
    ),
    "delete": (["bigint", "string"], lambda txn, rows, names: txn.delete("t", rows, names)),
    "update": (KINDS, lambda txn, rows, _: txn.update("t", rows, "id", no_function, schema="n int")),
    "local_state": (KINDS, lambda txn, rows, _: txn.local_state("t", rows, no_function)),
    "apply_changes": (
        KINDS,
        lambda txn, rows, _: txn.apply_changes("t", rows, "id", sequence_by="seq", op_column="op"),
    ),
    "apply_changes of columns that are not null": (
        KINDS,
        lambda txn, rows, _: txn.apply_changes(
            "t", rows, "id", sequence_by="seq", op_column="op", ignore_nulls=True
        ),
    ),
    "apply_changes of a long sequence": (
        ["bigint", "string"],
        lambda txn, rows, names: txn.apply_changes("t", rows, "id", sequence_by=names, op_column="op"),
    ),
    **{
        f"reduce by {reducer}": (
            NUMBERS if reducer == "sum" else ORDERED,
            lambda txn, rows, names, reducer=reducer: txn.reduce(
                "t", rows, "id", dict.fromkeys(names, reducer)
            ),
        )
        for reducer in ("sum", "count", "min", "max", "first", "last")
    },
}
"""Each call with the types of its columns."""


@pytest.mark.parametrize("dates", ["CORRECTED", "LEGACY"])
@pytest.mark.parametrize("name", CALLS)
def test_a_plan_grows_by_the_same_for_each_column(spark, conf, tmp_path, name, dates):
    conf("spark.sql.debug.maxToStringFields", 1_000_000)
    conf("spark.sql.maxPlanStringLength", 1_000_000_000)
    conf("spark.sql.legacy.timeParserPolicy", dates)
    kinds, call = CALLS[name]
    if dates == "LEGACY" and not any("date" in kind for kind in kinds):
        pytest.skip("no dates")
    of_size = [plan_sizes(spark, tmp_path, kinds, call, size) for size in SIZES]
    for small, medium, large in zip(*of_size, strict=True):
        assert medium > small
        assert large - medium <= 2.2 * (medium - small), (small, medium, large)
        assert (large - medium) / (SIZES[2] - SIZES[1]) < 8_000, "characters for each column more"


def plan_sizes(spark, folder, kinds, call, size):
    """The characters of the analysed and of the optimized plan of a call of this many columns."""
    names = [f"c{place}" for place in range(size)]
    columns = (f"{name} {kinds[place % len(kinds)]}" for place, name in enumerate(names))
    ddl = ", ".join(["id bigint, op string, seq bigint", *columns])
    collected = CollectedCalls(0, {})
    call(Transaction(0, 0, collected), spark.read.schema(ddl).parquet(str(folder)), names)
    (made,) = collected._calls  # of the transaction; closing it needs the tables' schemas
    if made.kind == "local_state":
        rows = _sent_to_instances(made, 2, marked=False)
    else:
        order = (column.alias(f"o{place}") for place, column in enumerate(made.order))
        rows = made.rows.select(made.key.alias("k"), *order, made.value.alias("v"))
    plans = rows._jdf.queryExecution()
    return len(plans.analyzed().toString()), len(plans.optimizedPlan().toString())


@pytest.mark.parametrize("name", CALLS)
def test_a_later_batch_asks_the_jvm_little_for_each_column(spark, tmp_path, monkeypatch, name):
    """Columns are made once: 200 of them cost 68,000 questions a batch where each was made again."""
    asked, kinds, call = [], *CALLS[name]
    send = JavaClient.send_command

    def counted(client, command, *words, **more):
        if not command.startswith(MEMORY_COMMAND_NAME):  # what is collected as garbage, at any time
            asked.append(command)
        return send(client, command, *words, **more)

    monkeypatch.setattr(JavaClient, "send_command", counted)

    def questions(size):
        counts = []
        for _ in range(3):
            asked.clear()
            plan_sizes(spark, tmp_path, kinds, call, size)
            counts.append(len(asked))
        return counts[-1]

    small, large = map(questions, SIZES[1:])
    assert (large - small) / (SIZES[2] - SIZES[1]) <= QUESTIONS.get(name, QUESTIONS_OTHERS)
