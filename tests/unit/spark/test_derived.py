"""Derived tables without Spark: at every version each is the aggregation of all rows of its base.

``KeepingBarrier`` hands rows to staging tasks and parts to second tasks as a Spark job does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import decimal
import json
import random
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any, get_args

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

import tidegate
from support.cli import done, run
from support.keeping_barrier import KeepingBarrier
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.operations.restore import restore
from tidegate.committers.operations.restore_plan import plan_restore
from tidegate.committers.repair.derive import build_barrier, differences, drop_barrier
from tidegate.errors import BadRecordError, ConfigError, ConflictError, CorruptError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.spark.calls.records import Call
from tidegate.spark.staging.declared import Derived
from tidegate.spark.staging.derived_parts import packed, parts_of, unpacked
from tidegate.spark.staging.links import StateLinks
from tidegate.spark.state.apply_changes import ChangedTable, NewerTable
from tidegate.spark.state.cache import cache_place
from tidegate.spark.state.merge import PatchedTable
from tidegate.spark.state.reduce import ReducedColumn, ReduceStep
from tidegate.testing.arrow_barrier import batch
from tidegate.testing.example import LINEAGE, Example, TypedBarrier
from tidegate.wal.fold import View, fold_all
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Column, Origin, TableSchema
from tidegate.wal.staging.derived import Part, derived_table
from tidegate.wal.staging.derived_guard import bases

ORDERS = TableSchema(
    (Column("id", "int"),),
    (
        Column("customer", "string"),
        Column("day", "int"),
        Column("amount", "bigint"),
        Column("price", "decimal(10,2)"),
        Column("open", "boolean"),
        Column("seq", "bigint"),
    ),
)
DELETED = TableSchema((Column("id", "int"),), (Column("seq", "bigint"),))
DERIVED = (
    Derived(
        "customers",
        of="orders",
        key="customer",
        aggregates={"orders": "count", "total": ("sum", "amount"), "paid": ("count", "amount")},
    ),
    Derived(
        "days",
        of="orders",
        key=["day", "customer"],
        where="open",
        aggregates={"mean": ("avg", "price"), "spent": ("sum", "price"), "of": ("avg", "amount")},
    ),
    Derived("ids", of="orders", key="id", aggregates={"n": "count", "top": ("sum", "seq")}),
    Derived(
        "ranks",
        of="orders",
        key="customer",
        aggregates={
            "least": ("min", "price"),
            "most": ("max", "price"),
            "days": ("distinct", "day"),
            "first": ("first", "amount", "seq"),
            "last": ("last", "amount", "seq"),
            "best": ("top", "price", 3),
            "newest": ("top", "id", 2, "seq"),
            "n": ("count", "price"),
        },
    ),
    Derived("open", of="orders", key="day", where="open", aggregates={"who": ("top", "customer", 9)}),
)
CUSTOMERS = ["ada", "bob", "\u00e9va", 'a "quoted" one', "", None]


# -- plain Python ---------------------------------------------------------------------------------------


def average(values, scale):
    """Exact, its last digit rounded half away from zero."""
    context = decimal.Context(prec=90, rounding=decimal.ROUND_HALF_UP)
    mean = context.divide(sum(values, decimal.Decimal(0)), decimal.Decimal(len(values)))
    return mean.quantize(decimal.Decimal(1).scaleb(-scale), context=context)


def recount(definition, orders, scales):
    """The aggregation of these rows, by key as a reader gets it."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for key, stored in orders.items():
        row = {"id": key, **stored}
        values = tuple(row[name] for name in definition.key)
        if None in values or (definition.where and row[definition.where] is not True):
            continue
        groups.setdefault(values if len(values) > 1 else values[0], []).append(row)
    return {
        key: {each.name: aggregate(each, rows, scales) for each in definition.aggregates}
        for key, rows in groups.items()
    }


def aggregate(each, rows, scales):
    if not each.column:
        return len(rows)
    if each.order:
        return of_order(each, [tuple(row[name] for name in each.order) for row in rows])
    values = [row[each.column] for row in rows if row[each.column] is not None]
    if each.kind == "count":
        return len(values)
    if not values:
        return None
    if each.kind == "sum":
        return sum(values)
    return average([decimal.Decimal(value) for value in values], scales.get(each.column, 0) + 4)


def of_order(each, entries):
    """From the rows in order, nulls first; those with a null in the first column take no part."""
    entries = sorted(
        (entry for entry in entries if entry[0] is not None),
        key=lambda entry: [(value is not None, value) for value in entry],
    )
    match each.kind:
        case "distinct":
            return len(set(entries))
        case "top":
            return [entry[-1] for entry in entries[: -each.rows - 1 : -1]]
        case "min" | "first":
            return entries[0][-1] if entries else None
    return entries[-1][-1] if entries else None


# -- a namespace with derived tables ---------------------------------------------------------------------


class Shop(Example):
    """A namespace of orders. It commits batches with derived tables, and compares all versions."""

    def __init__(self, folder, definitions=DERIVED, **options):
        self.places = f"file://{folder}/wal", f"sqlite://{folder}/store"
        settings = Options(key_groups=8, keep_versions=1000, wal_retain_s=1e6, **options)
        super().__init__(*self.places, "shop", options=settings)
        self.links, self.reads = StateLinks(self.driver), []
        self.schemas = {"orders": ORDERS, "_deleted.orders": DELETED}
        self.definitions = {each.name: each.definition for each in definitions}

    def barrier(self, rows, starts=frozenset(), merges=None, **more):
        last = self.driver.folded.last_batch
        encoded = {
            name: {self._key(name, key): self._value(name, value) for key, value in of_table.items()}
            for name, of_table in rows.items()
        }
        mine = {n: d for n, d in self.definitions.items() if d.of in rows}
        return KeepingBarrier(
            self.driver.log,
            encoded,
            batch(self.lineage, last[1] + 1 if last else 0, generation=self.driver.folded.generation),
            self.driver.folded.key_groups,
            parallelism=more.pop("parallelism", 3),
            starts=frozenset(starts),
            typed=self.schemas,
            driver=self.driver,
            definitions=mine,
            merges=merges or {},
            **more,
        )

    def keep(self, rows, **more):
        """Commit one batch of orders."""
        barrier = self.barrier({"orders": rows, **more.pop("others", {})}, **more)
        if not self.driver.options.local_dir:
            return commit(self.driver, barrier).version
        barrier.cache = cache_place(self.driver.folded, self.links.at_last(), self.driver.options)
        version = commit(self.driver, barrier).version
        self.reads += barrier.reads
        return version

    def _value(self, table, value):
        return value if isinstance(value, bytes) else super()._value(table, value)

    @property
    def at(self):
        """The words of a command."""
        return "--namespace", "shop", "--store", self.places[1], "--wal", self.places[0]

    def reopen(self):
        """Continue as a new driver."""
        self.close()
        again = Shop.__new__(Shop)
        again.places, again.definitions = self.places, self.definitions
        Example.__init__(again, *self.places, "shop", options=self.driver.options)
        again.schemas = self.schemas
        return again

    def coordinator(self):
        where = Endpoints.of("shop", *self.places)
        return Coordinator(
            where, open_log(self.places[0], "shop"), open_store(self.places[1], "shop"), self.driver.options
        )

    def check(self, first=1):
        """Compare every version from ``first`` on with plain Python; return the last one."""
        last = self.driver.folded.last_version
        with tidegate.connect(self.places[1], "shop") as gate:
            for version in range(first, last + 1):
                with gate.snapshot(version=version) as snap:
                    self.check_one(snap, version)
        return last

    def check_one(self, snap, version):
        orders = dict(snap.table("orders").scan())
        for name in bases(self.driver.folded.tables):
            if name in snap.tables():
                expected = recount(self.definitions[name], orders, {"price": 2})
                assert dict(snap.table(name).scan()) == expected, (version, name)

    def findings(self):
        store, last = self.driver.store, self.driver.folded.last_version
        (entry,) = store.catalog(last, last)
        return list(differences(store, entry, store.schemas(), self.driver.folded.key_groups))


@pytest.fixture
def shop(tmp_path):
    made = []

    def make(*given, **options):
        made.append(Shop(tmp_path / str(len(made)), *given, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def order(chance, seq=0):
    return {
        "customer": chance.choice(CUSTOMERS),
        "day": chance.choice([1, 2, None]),
        "amount": chance.choice([None, 0, -5, 7, 2**59, -(2**59)]),
        "price": chance.choice([None, "-0.05", "12.30", "99999999.99", "0.01"]),
        "open": chance.choice([True, True, False, None]),
        "seq": seq + chance.randrange(5),
    }


def value(row):
    """A row as Spark writes it: decimals are numbers in JSON."""
    cells = {
        name: msgspec.Raw(cell.encode()) if name == "price" and cell else cell for name, cell in row.items()
    }
    return msgspec.json.encode(cells)


def rows_of(chance, count, seq=0):
    return {chance.randrange(12): order(chance, seq) for _ in range(count)}


def valued(rows):
    return {key: None if row is None else value(row) for key, row in rows.items()}


# -- the calls, as the staging tasks see them -----------------------------------------------------------


def upsert(chance, seq):
    return {"rows": valued(rows_of(chance, chance.choice([0, 1, 3, 20]), seq))}


def delete(chance, seq):
    return {"rows": {chance.randrange(12): None for _ in range(chance.choice([1, 4, 12]))}}


def both(chance, seq):
    return {"rows": {**upsert(chance, seq)["rows"], **delete(chance, seq)["rows"]}}


def replace(chance, seq):
    return {**upsert(chance, seq), "starts": {"orders"}}


def patch(chance, seq):
    part = {key: msgspec.json.encode({"amount": chance.choice([None, 3])}) for key in rows_of(chance, 4)}
    names = tuple(column.name for column in ORDERS.value)
    return {
        "rows": part,
        "merges": {"orders": lambda t, s: PatchedTable(t.index("orders"), "orders", s["orders"], names)},
    }


def newer_by(chance, seq):
    by = ReducedColumn("seq", "bigint", "last")
    return {
        **upsert(chance, seq),
        "merges": {"orders": lambda t, s: NewerTable(t.index("orders"), "orders", s["orders"], by, ("int",))},
    }


def apply_changes(chance, seq):
    by = (ReducedColumn("seq", "bigint", "last"),)

    def merge(tables, start):
        at = tables.index("orders"), "orders", start["orders"]
        deleted = tables.index("_deleted.orders"), start["_deleted.orders"]
        return ChangedTable(*at, *deleted, by, ("int",))

    rows = valued(rows_of(chance, 6, seq))
    return {"rows": rows, "others": {"_deleted.orders": {}}, "merges": {"orders": merge}}


def reduce(chance, seq):
    columns = (ReducedColumn("amount", "bigint", "sum"), ReducedColumn("customer", "string", "last"))
    parts = {
        key: msgspec.json.encode(
            {"amount": chance.choice([None, 2, -9]), "customer": chance.choice(CUSTOMERS)}
        )
        for key in rows_of(chance, 5)
    }
    return {
        "rows": parts,
        "merges": {
            "orders": lambda t, s: ReduceStep(t.index("orders"), "orders", s["orders"], columns, ("int",))
        },
    }


CALLS = [upsert, upsert, delete, both, replace, patch, newer_by, apply_changes, reduce]
SEEDS, FIRST_SEEDS = 50, 3
"""Of 40 versions each; `make full` runs all of them."""


@pytest.mark.parametrize(
    "seed",
    [*range(FIRST_SEEDS), *(pytest.param(n, marks=pytest.mark.slow) for n in range(FIRST_SEEDS, SEEDS))],
)
def test_every_version_is_the_aggregation_of_its_base(shop, seed):
    chance, orders = random.Random(seed), shop()
    orders.driver.options = dataclasses.replace(orders.driver.options)
    for step in range(40):
        call = upsert if step == 0 else chance.choice(CALLS)
        made = call(chance, step)
        orders.keep(made.pop("rows"), parallelism=chance.choice([1, 2, 3, 8]), **made)
    assert orders.check() == 40
    assert orders.findings() == []


@pytest.mark.parametrize("seed", range(3))
def test_the_cache_of_state_serves_the_base(shop, tmp_path, seed):
    """Its rows hold though other tasks write frames of derived tables; in the end it knows most keys."""
    chance, orders = random.Random(seed), shop(local_dir=str(tmp_path / "local"))
    for step in range(25):
        made = (upsert if step == 0 else chance.choice(CALLS))(chance, step)
        orders.keep(made.pop("rows"), parallelism=chance.choice([2, 2, 2, 3]), **made)
    assert orders.check() == 25
    assert orders.findings() == []
    known = sum(reads.hits + reads.absent for reads in orders.reads)
    assert known > sum(reads.misses for reads in orders.reads) > 0


# -- other ways into a table ----------------------------------------------------------------------------


def simple(customer, amount=5, **more):
    return value(
        {"customer": customer, "day": 1, "amount": amount, "price": "1.00", "open": True, "seq": 1, **more}
    )


def test_a_table_with_rows_gets_its_derived_table_in_a_version_of_its_own(shop):
    orders, chance = shop(()), random.Random(1)
    for seq in range(6):
        orders.keep(valued(rows_of(chance, 9, seq)))
    orders.definitions = {each.name: each.definition for each in DERIVED}
    for name, definition in orders.definitions.items():
        known = orders.driver.store.schemas()
        schemas = {n: known[at.schema_id] for n, at in orders.driver.folded.tables.items()}
        commit(orders.driver, build_barrier(orders.driver, schemas, name, definition))
    orders.keep(valued(rows_of(chance, 9, 7)))
    assert orders.check() == 12
    assert orders.findings() == []
    commit(orders.driver, drop_barrier(orders.driver, "days"))
    assert sorted(bases(orders.driver.folded.tables)) == ["customers", "ids", "open", "ranks"]


def test_the_log_has_the_definition_and_refuses_a_writer_that_forgets_it(shop):
    orders = shop()
    orders.keep({1: simple("ada")})
    orders = orders.reopen()
    names = "customers", "days", "ids", "open", "ranks"
    assert bases(orders.driver.folded.tables) == dict.fromkeys(names, "orders")
    with pytest.raises(
        ConfigError, match="orders by itself: nothing was staged; give the sink table customers"
    ):
        orders.write({"orders": {1: msgspec.to_builtins(msgspec.json.decode(simple("bob")))}})
    with pytest.raises(ConfigError, match="drops the one"):
        orders.write({}, drops=frozenset({"orders"}))
    orders.schemas = {
        **orders.schemas,
        "customers": orders.driver.store.schemas()[orders.driver.folded.tables["customers"].schema_id],
    }
    with pytest.raises(ConfigError, match="this version writes customers by itself"):
        orders.write({"customers": {"bob": {"orders": 9}}})
    assert orders.check() == 1
    orders.close()


def restored(orders, version):
    orders.close()
    coordinator = orders.coordinator()
    restore(coordinator, plan_restore(coordinator, version))
    coordinator.store.close()
    coordinator.log.close()
    return orders.reopen()


@pytest.mark.parametrize("to", [2, 4, 5])
def test_a_restore_brings_derived_tables_back_with_their_base(shop, to):
    """Those that are younger than the version are dropped, and not left without rows."""
    orders, chance = shop(()), random.Random(2)
    for seq in range(3):
        orders.keep(valued(rows_of(chance, 9, seq)))
    orders.definitions = {DERIVED[0].name: DERIVED[0].definition}
    known = orders.driver.store.schemas()
    schemas = {n: known[at.schema_id] for n, at in orders.driver.folded.tables.items()}
    commit(orders.driver, build_barrier(orders.driver, schemas, "customers", DERIVED[0].definition))
    for seq in range(4):
        orders.keep(valued(rows_of(chance, 9, seq)))
    again = restored(orders, to)
    try:
        assert again.check() == 9
        assert sorted(bases(again.driver.folded.tables)) == (["customers"] if to >= 4 else [])
        assert again.findings() == []
    finally:
        again.close()


# -- what is found before the decision ------------------------------------------------------------------


def test_outputs_of_two_runs_of_a_staging_task_are_not_mixed(shop):
    orders = shop()
    orders.keep({key: simple("ada") for key in range(8)})
    with pytest.raises(ConflictError, match="derived 1"):
        orders.keep({key: simple("bob") for key in range(8)}, runs_again=[1])
    assert orders.check() == 1


def test_a_group_that_does_not_fit_its_base_stops_the_batch(shop):
    """The base's rows say more than the group has: nothing is decided, and verify names the group."""
    orders = shop(DERIVED[:1])
    orders.keep({1: simple("ada"), 2: simple("ada")})
    schema = orders.driver.store.schemas()[orders.driver.folded.tables["customers"].schema_id]
    orders.schemas = {**orders.schemas, "customers": schema}
    wrong = orders.barrier({"customers": {"ada": {"orders": 1, "total": 5, "paid": 1, "~": [1, [1, "5"]]}}})
    wrong.derived = frozenset({"customers"})
    wrong.stage = lambda spec, base: TypedBarrier.stage(wrong, spec, base)
    commit(orders.driver, wrong)
    (finding,) = orders.findings()
    assert finding.where.endswith("table customers, key b'ada'")
    with pytest.raises(CorruptError, match="does not fit table orders"):
        orders.keep({1: None, 2: None})
    assert orders.driver.folded.last_version == 2


@pytest.mark.parametrize("digits", [0, 2, 38])
def test_totals_come_back_from_their_bytes(digits):
    """Of any sign and width, also in a part of a larger batch."""
    base = msgspec.structs.replace(ORDERS, value=(Column("amount", f"decimal(38,{digits})"),))
    given = {"n": "count", "paid": ("count", "amount"), "total": ("sum", "amount")}
    table = derived_table("d", Derived("d", of="orders", key="id", aggregates=given).definition, base)
    numbers = [0, 1, -1, 255, -256, 2**63, -(2**63), 10**57, -(10**57)]
    sums = [decimal.Decimal(number).scaleb(-digits, decimal.Context(prec=90)) for number in numbers]
    totals = pa.record_batch(
        {
            "n": pa.array([*numbers[:5], 2**62, -(2**62), 7, 8], pa.int64()),
            "c0": pa.array(range(9), pa.int64()),
            "s0": pa.array(sums, pa.decimal256(76, digits)),
        }
    )
    for rows in (totals, totals.slice(2, 5)):
        again = pa.record_batch(unpacked(table, packed(rows)))
        assert again.equals(rows)
        expected = zip(*(rows[name].to_pylist() for name in ("n", "c0")), strict=True)
        first = 0 if rows is totals else 2
        assert parts_of(table, again, {}) == [
            (n, ((count, numbers[first + place]),), ()) for place, (n, count) in enumerate(expected)
        ]


def test_only_the_end_of_a_sum_has_to_fit(shop):
    """Parts of several tasks, and what is taken and added, overflow in between."""
    orders, most = shop(DERIVED[:1]), 2**63 - 1
    orders.keep({key: simple("ada", (-1) ** key * most) for key in range(30)})
    orders.keep({key: simple("ada", (-1) ** (key + 1) * most) for key in range(30)})
    assert orders.check() == 2
    with pytest.raises(
        BadRecordError,
        match=r"sum of column amount of table orders does not fit bigint.*cast the column to dec",
    ):
        orders.keep({key: simple("ada", most) for key in range(30)})
    assert orders.check() == 2


@pytest.mark.parametrize(
    "definition, says",
    [
        (Derived("d", of="orders", key="nobody", aggregates={"n": "count"}), "has no column 'nobody'"),
        (Derived("d", of="orders", key="open", where="amount", aggregates={"n": "count"}), "boolean column"),
        (Derived("d", of="orders", key="ratio", aggregates={"n": "count"}), "ratio is double"),
        (Derived("d", of="orders", key="open", aggregates={"n": ("sum", "ratio")}), "cast\\('decimal"),
        (Derived("d", of="orders", key="open", aggregates={"n": ("sum", "customer")}), "cast\\('bigint"),
        (Derived("d", of="orders", key="open", aggregates={"n": ("count", "parts")}), "parts is array"),
        (Derived("d", of="orders", key="open", aggregates={"n": ("min", "parts")}), "parts is array"),
        (Derived("d", of="orders", key="open", aggregates={"n": ("last", "id", "parts")}), "parts is array"),
        (Derived("d", of="orders", key="open", aggregates={"n": ("last", "id", "nothing")}), "no column"),
    ],
)
def test_columns_that_do_not_fit_are_named(definition, says):
    more = Column("ratio", "double"), Column("parts", "array<int>")
    base = msgspec.structs.replace(ORDERS, value=(*ORDERS.value, *more))
    with pytest.raises(ConfigError, match=says):
        derived_table(definition.name, definition.definition, base)


@pytest.mark.parametrize(
    "given, says",
    [
        ({"aggregates": {}}, "give aggregates"),
        ({"aggregates": {"n": "max"}}, "is no aggregate"),
        ({"aggregates": {"n": ("sum",)}}, "is no aggregate"),
        ({"aggregates": {"n": "sum"}}, "is no aggregate"),
        ({"aggregates": {"n": ("sum", "")}}, "is no aggregate"),
        ({"aggregates": {"n": ("first", "a")}}, "is no aggregate"),
        ({"aggregates": {"n": ("last", "a", "")}}, "is no aggregate"),
        ({"aggregates": {"n": ("min", "a", "b")}}, "is no aggregate"),
        ({"aggregates": {"n": ("top", "a")}}, "is no aggregate"),
        ({"aggregates": {"n": ("top", "a", 0)}}, "is no aggregate"),
        ({"aggregates": {"n": ("top", "a", True)}}, "is no aggregate"),
        ({"aggregates": {"n": ("top", "a", 1001)}}, "of 1 to 1,000 rows"),
        ({"aggregates": {"n": ("top", "a", 3, 4)}}, "is no aggregate"),
        ({"aggregates": {"~": "count"}}, "rename it"),
        ({"aggregates": {"a": "count"}, "key": "a"}, "rename it"),
        ({"of": "d"}, "from itself"),
        ({"of": "_local.x"}, "reserved"),
    ],
)
def test_a_definition_is_checked_when_it_is_made(given, says):
    with pytest.raises(ConfigError, match=says):
        Derived("d", **{"of": "orders", "key": "customer", "aggregates": {"n": "count"}, **given})


# -- commands -------------------------------------------------------------------------------------------


def command(orders, *words, wal=True, namespace="shop"):
    places = ["--namespace", namespace, "--store", orders.places[1], *(["--wal", orders.places[0]] * wal)]
    return done(*words, *places)


def copied(orders, namespace):
    """The namespace that a command made, continued by a driver."""
    orders.close()
    again = Shop.__new__(Shop)
    again.places, again.definitions = orders.places, orders.definitions
    with contextlib.closing(open_log(orders.places[0], namespace)) as log:
        lineage = fold_all(View(), log.decisions()).state.lineage or LINEAGE
    options = dataclasses.replace(orders.driver.options, key_groups=None)
    Example.__init__(again, *orders.places, namespace, lineage=lineage, options=options)
    again.schemas, again.namespace = orders.schemas, namespace
    return again


def compared(again):
    """Each derived table of the copy is right, and stays so with the next batches."""
    assert sorted(bases(again.driver.folded.tables)) == ["customers", "days", "ids", "open", "ranks"]
    assert again.findings() == []
    again.lineage = again.driver.folded.lineage or LINEAGE
    last = again.driver.folded.last_version
    again.keep(valued(rows_of(random.Random(9), 9)))
    again.keep(dict.fromkeys(range(5)))
    assert again.findings() == []
    assert again.driver.folded.last_version == last + 2


def rekeyed(orders, folder):
    command(orders, "rekey", "--to", "copy", "--key-groups", "16", "--yes")
    orders.close()
    later = orders.reopen()
    later.keep(valued(rows_of(random.Random(8), 9)))
    later.close()
    told = run("rekey", "--to", "copy", "--finish", "--yes", "--force", *orders.at)
    assert told.exit_code == 0, told.output


def imported(orders, folder):
    command(orders, "export", str(folder / "export"), wal=False)
    command(orders, "import", str(folder / "export"), "--yes", namespace="copy")


def new_log(orders, folder):
    shutil.rmtree(f"{orders.places[0].removeprefix('file://')}/shop")  # the log is lost
    command(orders, "relog", "--to", "copy", "--yes", "--force")


def from_backup(orders, folder):
    command(orders, "backup", str(folder / "backup"))
    later = orders.reopen()
    later.keep(valued(rows_of(random.Random(8), 9)))
    later.close()
    command(orders, "backup", str(folder / "backup"))
    command(orders, "restore-from", str(folder / "backup"), "--yes", namespace="copy")


@pytest.mark.parametrize("copy", [imported, new_log, from_backup, rekeyed])
def test_copies_have_the_definitions_and_right_rows(shop, tmp_path, copy):
    orders, chance = shop(), random.Random(3)
    for seq in range(4):
        orders.keep(valued(rows_of(chance, 9, seq)))
    orders.close()
    copy(orders, tmp_path)
    again = copied(orders, "copy")
    try:
        compared(again)
    finally:
        again.close()


def made_up(folder):
    """Give one row of the exported totals other totals, and the file its new checksum."""
    manifest = json.loads((folder / "manifest.json").read_text())
    path = folder / "table=customers" / "part-00000.parquet"
    rows = pq.read_table(pa.BufferReader(path.read_bytes()))
    values = rows["value"].to_pylist()
    values[0] = re.sub(rb'"~":\[\d+', b'"~":[77', values[0])
    of = rows.schema.field("value")
    pq.write_table(rows.set_column(2, of, pa.array(values, of.type)), path)
    digest = xxhash.xxh3_64_hexdigest(path.read_bytes())
    manifest["tables"]["customers"]["files"][0] |= {"bytes": path.stat().st_size, "checksum": digest}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_an_import_takes_no_totals_from_outside(shop, tmp_path):
    """They were taken, and the next batch went on from them."""
    orders, chance = shop(), random.Random(3)
    for seq in range(4):
        orders.keep(valued(rows_of(chance, 9, seq)))
    orders.close()
    command(orders, "export", str(tmp_path / "export"), wal=False)
    made_up(tmp_path / "export")
    command(orders, "import", str(tmp_path / "export"), "--yes", namespace="copy")
    again = copied(orders, "copy")
    try:
        compared(again)
    finally:
        again.close()


@pytest.mark.parametrize("table", ["orders", "customers"])
def test_an_import_of_one_of_both_is_refused(shop, tmp_path, table):
    orders = shop(DERIVED[:1])
    orders.keep({1: simple("ada")})
    orders.close()
    command(orders, "export", str(tmp_path / "export"), "--table", table, wal=False)
    told = run("import", str(tmp_path / "export"), "--yes", "--force", *orders.at)
    both = (
        "writes orders by itself: nothing was staged; export and import tables orders and customers together"
    )
    why = {"orders": both, "customers": "from table orders, which the export lacks"}[table]
    assert (told.exit_code, why in told.output) == (2, True), told.output


def test_an_average_has_digits_of_its_own_so_that_a_wider_column_is_noticed(shop):
    """The totals are in units of the column's last digit."""
    mean = Derived("mean", of="orders", key="day", aggregates={"mean": ("avg", "price")})
    orders = shop([mean])

    def of_digits(digits):
        columns = (Column("day", "int"), Column("price", f"decimal({digits + 2},{digits})"))
        orders.schemas["orders"] = TableSchema(ORDERS.key, columns)
        return derived_table("mean", mean.definition, orders.schemas["orders"]).schema

    assert len({of_digits(digits).schema_id for digits in range(34)}) == 34
    for digits in range(34, 37):
        with pytest.raises(ConfigError, match="write a column with at most 33 digits after the point"):
            of_digits(digits)
    with pytest.raises(ConfigError, match="at most 33 digits"):
        orders.keep({1: b'{"day":1,"price":0.1}'})
    assert orders.driver.folded.last_version == 0


def test_a_damaged_row_of_the_base_leaves_as_the_refusal_says(shop):
    orders = shop(DERIVED[:1])
    orders.keep({key: simple("ada") for key in range(4)})
    for path in Path(orders.places[1].removeprefix("sqlite://")).rglob("*.sqlite"):
        with contextlib.closing(sqlite3.connect(path)) as file, file, contextlib.suppress(sqlite3.Error):
            damaged = 'replace(cast(value as text), \'"amount":5\', \'"amount":"x"\')'
            file.execute(f"UPDATE t_orders SET value = cast({damaged} as blob) WHERE key = X'31'")
    for rows in ({1: None}, {1: simple("bob")}):
        with pytest.raises(BadRecordError, match=r"key 1: its row is unusable.*; drop the derived tables"):
            orders.keep(rows)
    definition = orders.definitions.pop("customers")
    orders.keep({1: None}, drops=frozenset({"customers"}))
    orders.definitions["customers"] = definition
    known = orders.driver.store.schemas()
    schemas = {name: known[at.schema_id] for name, at in orders.driver.folded.tables.items()}
    commit(orders.driver, build_barrier(orders.driver, schemas, "customers", definition))
    with tidegate.connect(orders.places[1], "shop") as gate:
        assert dict(gate.table("customers").scan()) == {"ada": {"orders": 3, "total": 15, "paid": 3}}


@pytest.mark.parametrize("names", [("orders", "amount", "paid"), ("customers", "total", "sum")])
def test_a_column_is_not_renamed(shop, names):
    orders = shop(DERIVED[:1])
    orders.keep({1: simple("ada")})
    orders.close()
    told = run("schema", "rename", *names, "--force", *orders.at)
    why = f"writes {names[0]} by itself: nothing was staged; to rename a column, drop table customers"
    assert (told.exit_code, why in told.output) == (2, True), told.output


# -- every way into a table is known --------------------------------------------------------------------

CALLS_KNOWN = {
    "upsert": "kept",
    "upsert(newer_by)": "kept",
    "replace": "kept: the derived table is made again, too",
    "patch": "kept",
    "delete": "kept",
    "reduce": "kept",
    "update": "kept, and the rows that it emits",
    "apply_changes": "kept",
    "local_state": "kept: it writes tables of tidegate's own, and the rows that it emits",
}
"""Kinds of calls, and what they do to the derived tables of the table that they write."""
STORED_KNOWN = {
    "committers/operations/quarantine_drop.py": "writes the quarantine alone, which cannot be a base",
    "committers/transfer/relog.py": "kept: all rows and definitions of one version",
    "committers/rename_column.py": "refused",
    "committers/operations/restore.py": "kept: all tables of one version; younger ones are dropped",
    "committers/transfer/backup/restore_from.py": "kept: all rows and definitions of one version",
    "committers/repair/derive.py": "builds derived tables",
    "committers/exports/import_rows.py": "kept if the export has both, else refused",
    "committers/transfer/rekey/versions.py": "kept: rows and definitions of the source, version by version",
}
"""Files with versions of rows that are stored already."""
ORIGINS_KNOWN = {"batch", "load", "import", "restore"}


def test_every_way_into_a_table_is_known():
    """A new one belongs into these tables, with a test of what it does to derived tables."""
    assert {call.kind for call in get_args(Call)} == CALLS_KNOWN.keys()
    root = Path(__file__).parents[3]
    files = (
        path
        for folder in ("committers", "spark", "src/tidegate/cli")
        for path in (root / folder).rglob("*.py")
    )
    making = {str(path.relative_to(root)) for path in files if "StoredRowsBarrier(" in path.read_text()}
    assert making == STORED_KNOWN.keys()
    assert {origin.__struct_config__.tag for origin in get_args(Origin)} == ORIGINS_KNOWN


@pytest.mark.parametrize(
    "kind", ["string", "bigint", "boolean", "date", "timestamp", "timestamp_ntz", "decimal(6,2)"]
)
def test_groups_of_each_type_of_key(shop, kind):
    """The staging tasks and the recount make the same keys."""
    cells = {
        "string": ['"a\\u0000\\"b"', '"\u00e9"'],
        "bigint": ["-9223372036854775808", "7"],
        "boolean": ["true", "false"],
        "date": ['"0001-01-01"', '"2026-02-28"'],
        "timestamp": ['"2026-01-02T03:04:05.000006Z"', '"1969-12-31T23:59:59.999999Z"'],
        "timestamp_ntz": ['"2026-01-02T03:04:05.000006"', '"1969-12-31T23:59:59.999999"'],
        "decimal(6,2)": ["-1.50", "0.00"],
    }[kind]
    orders = shop([Derived("groups", of="orders", key="g", aggregates={"n": "count", "s": ("sum", "id")})])
    orders.schemas = {"orders": TableSchema((Column("id", "int"),), (Column("g", kind),))}
    rows = {key: f'{{"g":{[*cells, "null"][key % 3]}}}'.encode() for key in range(9)}
    orders.keep(rows)
    orders.keep({0: rows[1], 1: None, 2: rows[0]})
    assert orders.findings() == []
    with tidegate.connect(orders.places[1], "shop") as gate:
        assert sorted(row["n"] for _, row in gate.table("groups").scan()) == [3, 3]


ORDERED = {
    "string": ['"Z"', '"a"', '"a\\u0000\\"b"', '"\u00e9"', '"\U0001f600"'],
    "bigint": ["-9223372036854775808", "-1", "7", "10", "9223372036854775807"],
    "boolean": ["false", "true"],
    "date": ['"0001-01-01"', '"2026-02-28"', '"9999-12-31"'],
    "timestamp": ['"1969-12-31T23:59:59.999999Z"', '"2026-01-02T03:04:05.000006Z"'],
    "timestamp_ntz": ['"1969-12-31T23:59:59.999999"', '"2026-01-02T03:04:05.000006"'],
    "decimal(6,2)": ["-1.50", "0.00", "2.00", "10.10"],
    "decimal(38,0)": ["-" + "9" * 38, "-1", "9223372036854775808", "9" * 38],
    "decimal(38,38)": ["-0.00000000000000000000000000000000000001", "0E-38", "1E-38"],
    "float": ['"-Infinity"', "-0.1", "0.1", "1.0E10", '"Infinity"', '"NaN"'],
    "double": ['"-Infinity"', "-1.0E-300", "-0.0", "9.007199254740993E15", "1.0E16", '"Infinity"', '"NaN"'],
}
"""Values of each type as Spark writes them, in ascending order."""


@pytest.mark.parametrize("kind", ORDERED)
def test_values_of_each_type_are_in_order(shop, kind):
    """Rows are taken out again one by one, from either end; the values are the base's own."""
    aggregates = {
        "least": ("min", "v"),
        "most": ("max", "v"),
        "all": ("top", "v", 99),
        "n": ("distinct", "v"),
    }
    aggregates |= {"first": ("first", "id", "v"), "last": ("last", "v", "id"), "rows": ("count", "v")}
    orders = shop([Derived("ranks", of="orders", key="g", aggregates=aggregates)])
    columns = Column("g", "int"), Column("v", kind)
    orders.schemas = {"orders": TableSchema((Column("id", "int"),), columns)}
    chance, cells = random.Random(1), ORDERED[kind]
    rows = [(key, key % len(cells)) for key in range(2 * len(cells))]
    chance.shuffle(rows)
    orders.keep({key: f'{{"g":1,"v":{cells[place]}}}'.encode() for key, place in rows} | {99: b'{"g":1}'})
    for key, place in [*rows]:
        with tidegate.connect(orders.places[1], "shop") as gate, gate.snapshot() as snap:
            (group,) = dict(snap.table("ranks").scan()).values()
            of_key = {of: row["v"] for of, row in snap.table("orders").scan()}
        in_order = sorted(rows, key=lambda row: row[1])
        expected = [of_key[of] or abs(of_key[of]) if kind == "double" else of_key[of] for of, _ in in_order]
        assert repr(group["all"]) == repr(expected[::-1])  # -0.0 is 0.0, as in Spark's own order
        assert repr((group["least"], group["most"])) == repr((group["all"][-1], group["all"][0]))
        assert (group["n"], group["rows"]) == (len({at for _, at in rows}), len(rows))
        assert (group["first"], group["last"]) == (
            min(of for of, at in rows if at == in_order[0][1]),
            None,  # of row 99
        )
        rows.remove((key, place))
        orders.keep({key: None})
        assert orders.findings() == []
    with tidegate.connect(orders.places[1], "shop") as gate:
        nothing = {"least": None, "most": None, "all": [], "n": 0, "first": None, "last": None, "rows": 0}
        assert dict(gate.table("ranks").scan()) == {1: nothing}


@pytest.mark.parametrize(
    "old, new, cells",
    [
        ("int", "bigint", ["2", "10"]),
        ("int", "double", ["2", "10"]),
        ("float", "double", ["0.1", "2.0"]),
        ("decimal(6,2)", "decimal(8,4)", ["0.00", "1.50"]),
    ],
)
def test_a_column_that_widens_leaves_its_entries_right(shop, old, new, cells):
    """The number of different values, and the rows in its order, are those of the wider values."""
    aggregates = {"n": ("distinct", "v"), "last": ("last", "id", "v"), "ids": ("top", "id", 5, "v")}
    orders = shop([Derived("ranks", of="orders", key="g", aggregates=aggregates)])
    for kind in (old, new):
        columns = Column("g", "int"), Column("v", kind)
        orders.schemas = {"orders": TableSchema((Column("id", "int"),), columns)}
        first = 0 if kind == old else 2
        orders.keep({first + place: f'{{"g":1,"v":{cell}}}'.encode() for place, cell in enumerate(cells)})
        assert orders.findings() == []
    with tidegate.connect(orders.places[1], "shop") as gate:
        assert dict(gate.table("ranks").scan()) == {1: {"n": 2, "last": 3, "ids": [3, 1, 2, 0]}}
    orders.keep({0: None, 3: None})
    assert orders.findings() == []


def test_an_entry_that_is_not_there_stops_the_batch(shop):
    """The group's rows are as many as the base's, but of another value."""
    orders = shop([Derived("ranks", of="orders", key="customer", aggregates={"most": ("max", "amount")})])
    orders.keep({1: simple("ada"), 2: simple("ada", 7)})
    schema = orders.driver.store.schemas()[orders.driver.folded.tables["ranks"].schema_id]
    orders.schemas = {**orders.schemas, "ranks": schema}
    for hidden in (
        [2, [[6, 1], [7, 1]]],
        [2, [[5, 1], [7, -1]]],
        [2],
        [2, [[7]]],
        [2, [["x", 1], [7, 1]]],
        [2, [[5, 7, 2]]],
    ):
        wrong = orders.barrier({"ranks": {"ada": {"most": 7, "~": hidden}}})
        wrong.derived = frozenset({"ranks"})
        wrong.stage = lambda spec, base, wrong=wrong: TypedBarrier.stage(wrong, spec, base)
        commit(orders.driver, wrong)
        assert [finding.where.endswith("table ranks, key b'ada'") for finding in orders.findings()] == [True]
        with pytest.raises(CorruptError, match="does not fit table orders"):
            orders.keep({1: None})


def test_a_number_of_a_damaged_row_takes_no_memory():
    """It was written with all its digits, 1,000 million of them."""
    given = Derived("d", of="orders", key="id", aggregates={"most": ("max", "price")})
    table = derived_table("d", given.definition, ORDERS)
    row = b'{"most":1.00,"~":[2,[[1,1],[1E999999999,1]]]}'
    with pytest.raises(CorruptError, match="does not fit table orders"):
        table.changed(b"1", row, Part(-1, (), ({b"1": -1},)))


def test_a_group_of_too_many_values_is_named(shop):
    """Its row has them all: it is refused before the decision, and the way out is said."""
    orders = shop(
        [Derived("ranks", of="orders", key="customer", aggregates={"most": ("max", "amount")})],
        value_bytes_max=300,
    )
    orders.keep({key: simple("ada", key) for key in range(20)})
    with pytest.raises(BadRecordError) as raised:
        orders.keep({key: simple("ada", key) for key in range(50)})
    assert "table ranks, key 'ada'" in str(raised.value), raised.value
    assert "derive smaller groups or fewer values" in str(raised.value), raised.value
    assert orders.check() == 1


@pytest.mark.parametrize("table", ["orders", "customers"])
def test_tables_whose_rows_expire_are_refused(shop, table):
    orders = shop(DERIVED[:1], ttl={table: 3600})
    with pytest.raises(ConfigError, match=f"rows of table {table} expire"):
        orders.keep({1: simple("ada")})
    assert orders.driver.folded.last_version == 0


@pytest.mark.parametrize(
    "changes", [{"key": ""}, {"key": ["a", ""]}, {"where": ""}, {"aggregates": {"n": ("count", "")}}]
)
def test_a_column_with_an_empty_name_is_no_part_of_a_derived_table(changes):
    """It was taken for the count of rows, or for no condition."""
    given = {"of": "orders", "key": "customer", "aggregates": {"n": "count"}}
    with pytest.raises(ConfigError, match="derived table t: "):
        Derived("t", **given | changes)
