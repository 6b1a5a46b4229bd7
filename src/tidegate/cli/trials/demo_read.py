"""``tidegate demo --read``: a small store that moves, for a first reader. It needs neither Spark nor Java."""

from __future__ import annotations

import random
import shlex
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tidegate.errors import ConfigError
from tidegate.testing.example import Example
from tidegate.wal.record import Column, TableSchema

NAMESPACE = "shop"
TABLES = {
    "orders": TableSchema(
        (Column("order_id", "int"),), (Column("customer", "string"), Column("amount", "int"))
    ),
    "customers": TableSchema(
        (Column("customer", "string"),), (Column("orders", "int"), Column("amount", "int"))
    ),
}
NAMES = "ada", "ben", "cleo", "dan"
ORDERS_MAX = 1_000
"""An order of a later batch replaces an older one, so that the tables stay small."""
EVERY_S = 1.0
VERSIONS_MAX = 600
"""The writer ends by itself: a forgotten one would write for good."""
PROGRAM = """\
import tidegate

with tidegate.connect("{store}", "{namespace}") as gate, gate.snapshot() as snap:
    customers = dict(snap.table("customers").scan())  # both tables, at one version
    orders = [order for _, order in snap.table("orders").scan()]
for name, total in customers.items():
    amounts = [order["amount"] for order in orders if order["customer"] == name]
    assert total == {{"orders": len(amounts), "amount": sum(amounts)}}, f"{{name}} is torn"
print("version", snap.version, "has", len(orders), "orders;", customers)
"""

Batch = Mapping[str, Mapping[Any, Mapping[str, Any]]]


def move_store(folder: Path | None, every_s: float = EVERY_S, versions: int = VERSIONS_MAX) -> None:
    """Make a store with two tables that have to fit, print how to read it, then add a version each second.

    It ends after that number of ``versions``, or by KeyboardInterrupt. The folder stays. Raises: ConfigError:
    the folder is not empty; nothing was written.
    """
    if folder is not None and folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder: give a new one")
    place = Path(folder or tempfile.mkdtemp(prefix="tidegate-read-")).resolve()
    store, batches, stop = f"sqlite://{place}/store", _batches(random.Random(1)), threading.Event()
    example = Example(f"file://{place}/wal", store, NAMESPACE)
    example.schemas = TABLES
    try:
        example.write(next(batches))
        program = PROGRAM.format(store=store, namespace=NAMESPACE)
        (place / "read.py").write_text(program)
        print(_told(place, program), flush=True)
        for _ in range(versions - 1):
            stop.wait(every_s)
            example.write(next(batches))
    finally:
        example.close()
    print(f"{versions} versions are written; the folder stays: rm -r {shlex.quote(str(place))}")


def _told(place: Path, program: str) -> str:
    shown = "".join(f"    {line}".rstrip() + "\n" for line in program.splitlines())
    return (
        f"A store with two tables, and a version more every second until Ctrl-C. In another terminal:\n\n"
        f"    python {shlex.quote(str(place / 'read.py'))}\n\n"
        f"It needs `pip install tidegate` alone, and has these lines:\n\n{shown}\n"
        f"Or: tidegate history --namespace {NAMESPACE} --store sqlite://{place}/store"
    )


def _batches(chance: random.Random) -> Iterator[Batch]:
    """Yield orders, new ones and changed ones, each time with the totals of all orders by customer."""
    stored: dict[int, tuple[str, int]] = {}
    while True:
        changed = {
            chance.randrange(ORDERS_MAX): (chance.choice(NAMES), chance.randrange(1, 100)) for _ in range(20)
        }
        stored |= changed
        by_name = {name: [amount for of, amount in stored.values() if of == name] for name in NAMES}
        yield {
            "orders": {key: {"customer": of, "amount": amount} for key, (of, amount) in changed.items()},
            "customers": {
                name: {"orders": len(amounts), "amount": sum(amounts)}
                for name, amounts in by_name.items()
                if amounts
            },
        }
