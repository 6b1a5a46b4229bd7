"""A snippet of each page that has some does what the page says, pasted as it stands but for names of servers.

Those of readers.md and monitoring.md run in tests/repo/test_pages.py, state.md's in test_state_page.py,
README.md's and index.md's in test_readme.py, those of torture.md and histories.md in
tests/torture/test_torture_page.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.functions import col, from_json

import tidegate
from support.wait import wait_until
from tidegate.spark import VersionedSink, register

pytestmark = [pytest.mark.spark, pytest.mark.only_log("file")]

ROOT = Path(__file__).parents[2]
CHANGE = "id bigint, name string, lsn bigint, op string"


def snippets(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


@pytest.fixture
def run(tmp_path, spark):
    """Runs one snippet with these names, its servers as folders; what it defined."""
    register(spark)  # Spark finds an installed package by its name, and not one of a checkout

    def execute(code, **names):
        for server, folder in (
            (r"kafka://[\w:]+", f"file://{tmp_path}/wal"),
            (r"redis://[\w:@]+(/0)?", f"sqlite://{tmp_path}/store"),
            (r"/data", f"{tmp_path}"),
        ):
            code = re.sub(server, folder, code)
        defined = {"__name__": "__main__", "VersionedSink": VersionedSink, "spark": spark, **names}
        exec(code, defined)
        return defined

    return execute


@pytest.fixture
def source(tmp_path, spark):
    """A stream of these rows, as a file of JSON each."""

    def make(schema, *rows):
        folder = tmp_path / "input"
        folder.mkdir()
        (folder / "1.json").write_text("\n".join(map(json.dumps, rows)))
        return spark.readStream.schema(schema).json(str(folder))

    return make


def ended(query):
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def rows_of(folder, namespace, table, store="store"):
    with tidegate.connect(f"sqlite://{folder}/{store}", namespace=namespace) as gate:
        return dict(gate.table(table).scan())


def test_writing_and_spark(run, source, tmp_path):
    """Orders of the one page, read by the other."""
    orders = source(
        "order_id bigint, customer string, amount bigint, updated_at bigint",
        {"order_id": 1, "customer": "ada", "amount": 40, "updated_at": 1},
        {"order_id": 2, "customer": "ada", "amount": 2, "updated_at": 2},
    )
    defined = run(snippets("writing.md")[1], orders=orders)
    ended(defined["query"])
    assert rows_of(tmp_path, "shop", "last_orders")["ada"]["order_id"] == 2
    code = snippets("spark.md")[0].replace("flights", "shop").replace("aircraft", "orders")
    defined = run(code.replace("carrier", "customer"))
    assert {row.order_id: row.amount for row in defined["orders"].collect()} == {1: 40, 2: 2}


def test_coming_from_elsewhere(run, source, tmp_path):
    users = source(
        "user bigint, name string, updated_at bigint",
        {"user": 17, "name": "ann", "updated_at": 1},
        {"user": 17, "name": "anna", "updated_at": 2},
    )
    ended(run(snippets("coming-from-elsewhere.md")[1], users=users)["query"])
    assert rows_of(tmp_path, "shop", "users") == {17: {"name": "anna", "updated_at": 2}}


def test_cdc(run, source, tmp_path):
    changes = [
        {"id": 17, "name": "ann", "lsn": 5, "op": "c"},
        {"id": 17, "name": "anna", "lsn": 7, "op": "u"},
        {"id": 18, "name": "bob", "lsn": 6, "op": "c"},
        {"id": 18, "name": "bob", "lsn": 8, "op": "d"},
    ]
    kafka_df = source("value string", *({"value": json.dumps(change)} for change in changes))
    sink = VersionedSink(namespace="crm", wal=f"file://{tmp_path}/wal", store=f"sqlite://{tmp_path}/store")
    names = {"col": col, "from_json": from_json, "CHANGE": CHANGE, "path": f"{tmp_path}/checkpoint"}
    ended(run(snippets("cdc.md")[0], kafka_df=kafka_df, sink=sink, **names)["query"])
    assert {key: row["name"] for key, row in rows_of(tmp_path, "crm", "customers").items()} == {17: "anna"}


def test_schema_changes(stream, run):
    """State of version 1, migrated by the function that the page has."""
    flights = stream("user string, seconds int")

    def seconds(key, rows, state, emit):
        return {"seconds": (state["seconds"] if state else 0) + sum(row["seconds"] for row in rows)}

    def visits(key, rows, state, emit):
        return state

    def first(txn, rows):
        txn.update("visits", rows, key="user", fn=seconds, schema="seconds int")

    flights.commit(flights.sink().each(first), [{"user": "ada", "seconds": 40}])
    defined = run(snippets("schema-changes.md")[1], visits=visits)
    flights.commit(flights.sink().each(defined["write"]), [{"user": "ada", "seconds": 2}])
    assert flights.rows("visits")["ada"]["visit"] == {"seconds": 40, "page": None}
    run(snippets("schema-changes.md")[-1].replace("redis://cache:6379/0", flights.store), sink=flights.sink())
    assert flights.rows("views") == {"ada": {"visit": {"seconds": 40, "page": None}, "seconds@1": None}}


def test_several_stores(run, source, tmp_path):
    """Both stores have the rows."""
    code = snippets("several-stores.md")[0].replace(
        '"copy=redis://cache:6379/0"', '"copy=sqlite:///data/copy"'
    )
    sink = run(code.replace('store_options={"copy": {"password": ...}}, ', ""))["sink"]
    rows = source("tailnum string, origin string", {"tailnum": "N14228", "origin": "EWR"})
    query = rows.writeStream.foreachBatch(sink).option("checkpointLocation", f"{tmp_path}/checkpoint")
    ended(query.start())

    def has_row(store):
        try:
            return rows_of(tmp_path, "flights", "aircraft", store) == {"N14228": {"origin": "EWR"}}
        except tidegate.ConfigError:
            return False  # the second store is made and filled after the batch

    for store in ("store", "copy"):
        wait_until(lambda store=store: has_row(store), f"the row is in {store}", 120)
    sink.close()


def test_operations(run, stream):
    """The query ends by itself once a restart has mended it."""
    flights = stream("k string, n bigint")
    flights.add([{"k": "a", "n": 1}])
    starts = []

    def start():
        sink = flights.sink(table="t", key="k")

        def each(rows, batch_id):
            starts.append(batch_id)
            if len(starts) == 1:
                raise tidegate.StoreUnavailableError("the store is away")
            sink(rows, batch_id)

        return flights.start(each)[0]

    run(snippets("operations.md")[0])["supervise"](start, pause_s=0)
    assert starts == [0, 0]
    assert flights.rows("t") == {"a": {"n": 1}}


def test_tutorial(tmp_path):
    """Its program, on files: one day."""
    program = tmp_path / "departures.py"
    program.write_text(snippets("tutorial.md")[0])
    place = {"TIDEGATE_WAL": f"file://{tmp_path}/wal", "TIDEGATE_STORE": f"sqlite://{tmp_path}/store"}
    done = subprocess.run(
        [sys.executable, str(program), "1"],
        cwd=tmp_path,
        env={**os.environ, **place, "TIDEGATE_NAMESPACE": "flights"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert rows_of(tmp_path, "flights", "airports").keys() == {"EWR", "JFK", "LGA"}
