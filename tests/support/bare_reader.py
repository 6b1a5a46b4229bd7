"""A reader in a process with the libraries of `pip install tidegate` alone, and a server's client.

As a program it reads every table of a namespace in each way, and prints the rows as JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

BARRED = ("pyarrow", "numpy", "pandas", "pyspark", "typer", "click", "rich")


def read_without_extras(url: str, namespace: str) -> Any:
    """The rows of each table by each way of reading, and the refusals of what needs Arrow."""
    done = subprocess.run(
        [sys.executable, __file__, url, namespace], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def in_threads(url: str, namespace: str) -> tuple[dict[str, Any], dict[str, str]]:
    import tidegate

    ways: dict[str, Any] = {"get": {}, "get_many": {}, "scan": {}, "snapshot": {}}
    with tidegate.connect(url, namespace) as gate, gate.snapshot() as snapshot:
        assert gate.wait_for(1, timeout=5) == gate.history()[-1].version == snapshot.version
        for name in gate.tables():
            table = gate.table(name)
            rows = sorted(table.scan(), key=repr)
            keys = [key for key, _ in rows]
            ways["scan"][name] = rows
            ways["get"][name] = [(key, table.get(key)) for key in keys]
            ways["get_many"][name] = sorted(table.get_many(keys).items(), key=repr)
            ways["snapshot"][name] = sorted(snapshot.table(name).scan(), key=repr)
        refused: dict[str, str] = {}
        calls: dict[str, Callable[[], Any]] = {
            "to_arrow": lambda: gate.table(gate.tables()[0]).scan().to_arrow(),
            "diff": lambda: list(gate.diff(0)),
        }
        for what, call in calls.items():
            try:
                call()
            except tidegate.ConfigError as error:
                refused[what] = str(error)
    return ways, refused


async def on_a_loop(url: str, namespace: str) -> dict[str, Any]:
    from tidegate import aio

    async with await aio.connect(url, namespace) as gate:
        tables: dict[str, Any] = {}
        for name in await gate.tables():
            tables[name] = sorted([row async for row in gate.table(name).scan()], key=repr)
            keys = [key for key, _ in tables[name]]
            assert sorted((await gate.table(name).get_many(keys)).items(), key=repr) == tables[name]
            assert await gate.table(name).get(keys[0]) == tables[name][0][1]
        return tables


def main(url: str, namespace: str) -> None:
    barred: dict[str, Any] = dict.fromkeys(BARRED)
    sys.modules.update(barred)
    ways, refused = in_threads(url, namespace)
    ways["aio"] = asyncio.run(on_a_loop(url, namespace))
    print(json.dumps({"ways": ways, "refused": refused}, default=repr))


if __name__ == "__main__":
    main(*sys.argv[1:])
