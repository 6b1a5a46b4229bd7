"""Tables with fewer key groups than their namespace, through Spark: every call, state, rescaling, readers."""

from __future__ import annotations

import sys

import pytest
from pyspark import cloudpickle

import tidegate
from tidegate.errors import ConfigError
from tidegate.spark import register
from tidegate.wal.fold import View, fold_all

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests

pytestmark = pytest.mark.spark

SCHEMA = "k string, n bigint"
KEY_GROUPS = 12
PLAIN = "plain_"
OF_TABLES = {"newest": 3, "sums": 2, "counts": 4, "seen": 6, "source": 1, "parts": 3}


def counting(seen):
    def count(key, rows, state, emit):
        number = sum(1 for _ in rows)
        emit(seen, key, {"n": number})
        return {"n": (state or {"n": 0})["n"] + number}

    return count


def every_call(txn, rows):
    """Each call twice: for a table of ``OF_TABLES``, and for a plain one."""
    changes = rows.selectExpr("k", "n", "n as at", "if(n % 5 = 0, 'd', 'u') as op")
    for lead in ("", PLAIN):
        seen = f"{lead}seen"
        txn.upsert(f"{lead}newest", rows, "k", order_by="n")
        txn.reduce(f"{lead}sums", rows, "k", {"n": "sum"})
        outputs = {seen: ("k string", "n bigint")}
        txn.update(f"{lead}counts", rows, "k", counting(seen), schema="n bigint", outputs=outputs)
        txn.patch(f"{lead}parts", rows, "k", order_by="n")
        txn.apply_changes(f"{lead}source", changes, "k", sequence_by="at", op_column="op")


def without_functions(txn, rows):
    for lead in ("", PLAIN):
        txn.upsert(f"{lead}newest", rows, "k", order_by="n")
        txn.reduce(f"{lead}sums", rows, "k", {"n": "sum"})
        txn.delete(f"{lead}newest", rows.where("n % 7 = 0"), "k")


def batch(step):
    return [{"k": f"k{number * (step + 1) % 40}", "n": 100 * step + number} for number in range(60)]


def groups_in(stream, version):
    """The key groups of each table's rows in the frames of a version."""
    found = {}
    with tidegate.connect(stream.store, "flights", **stream.log.keywords) as gate:
        for table in gate.snapshot().tables():
            if not table.startswith("_local"):
                written = gate.changes(version, table)
                found[table] = {row.key_group for row in written}
    return found


def compared(flow):
    """Compare each table with its plain one, by a scan and by keys."""
    with tidegate.connect(flow.store, "flights") as gate, gate.snapshot() as snap:
        for table in OF_TABLES.keys() & set(snap.tables()):
            rows = dict(snap.table(table).scan())
            assert rows == dict(snap.table(PLAIN + table).scan()), table
            assert snap.table(table).get_many(rows) == rows, table
            assert snap.table(table).get(min(rows)) == rows[min(rows)], table


@pytest.mark.timeout(300)  # three batches with two functions
@pytest.mark.slow  # five calls for each of two sets of tables
def test_every_call_writes_the_rows_of_plain_tables_at_any_parallelism(stream):
    flow = stream(SCHEMA)
    for step, parallelism in enumerate([2, 3, 1]):
        sink = flow.sink(parallelism=parallelism, key_groups=KEY_GROUPS, table_key_groups=OF_TABLES)
        flow.commit(sink.each(every_call), batch(step))
        compared(flow)
    deletes = {lead: flow.rows(f"_deleted.{lead}source") for lead in ("", PLAIN)}
    assert deletes[""] == deletes[PLAIN] != {}
    for table, groups in groups_in(flow, 1).items():
        of_table = OF_TABLES.get(table.removeprefix("_deleted."), KEY_GROUPS)
        assert groups <= set(range(0, KEY_GROUPS, KEY_GROUPS // of_table)), table


@pytest.mark.both_ways
def test_the_driver_and_the_job_stage_into_the_same_key_groups(stream):
    flow = stream(SCHEMA)
    for step in range(2):
        sink = flow.sink(parallelism=2, key_groups=KEY_GROUPS, table_key_groups=OF_TABLES)
        flow.commit(sink.each(without_functions), batch(step))
    compared(flow)
    found = groups_in(flow, 1)
    assert (found["newest"], found["sums"]) == ({0, 4, 8}, {0, 6})
    register(flow.spark)
    read = flow.spark.read.format("tidegate").options(store=flow.store, namespace="flights", table="newest")
    rows, there = read.load(), flow.rows("newest")
    assert {row.k: {"n": row.n} for row in rows.collect()} == there
    assert [row.n for row in rows.where(f"k = '{min(there)}'").collect()] == [there[min(there)]["n"]]


def test_another_number_than_the_tables_is_refused_and_nothing_is_staged(stream):
    flow = stream(SCHEMA)
    flow.commit(flow.sink(table="t", key="k", key_groups=KEY_GROUPS, table_key_groups={"t": 3}), batch(0))
    flow.add(batch(1))
    ran = flow.run(flow.sink(table="t", key="k", table_key_groups={"t": 4}))
    assert isinstance(ran.error, ConfigError)
    assert "table t has 3 key groups, and table_key_groups names 4" in str(ran.error)
    with flow.log.opened("flights") as log:
        assert fold_all(View(), log.decisions()).state.last_version == 1
