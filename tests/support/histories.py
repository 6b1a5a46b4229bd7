"""A namespace whose name is continued by another history: made again, restored, older copies, another one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from support.committers.backups import Place, place_in
from tidegate.committers.operations.alias import checked_target, set_alias
from tidegate.committers.operations.drop import drop_namespace
from tidegate.options.endpoints import parse_store
from tidegate.testing.example import Example

BACKED_UP, COPIED, LAST, LATER = 3, 4, 6, 8
WAYS = ("remade", "restored", "copies", "other")
"""Dropped and made again; restored from a backup; older copies put back; another one behind the alias."""


class Histories:
    """Version ``LAST`` of namespace flights, whose alias is ``live``, as a consumer has seen it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.place: Place = place_in(root, "sqlite", keep_versions=20)
        self.write("old", BACKED_UP)
        self.place.backup()
        self.write("old", COPIED)
        self.place.example.close()
        for part in ("wal", "store"):
            shutil.copytree(root / part, root / f"{part}.copy")
        self.place.again()
        self.write("old", LAST)
        self.point("flights")

    @property
    def store(self) -> str:
        return str(self.place.store)

    def source(self, **more: Any) -> dict[str, Any]:
        """The options of a Spark source of its table."""
        options = {"namespace": "flights", "table": "aircraft", "store": self.store, "wal": self.place.wal}
        return {**options, **more}

    def write(self, prefix: str, last: int, example: Example | None = None) -> None:
        """Write versions up to ``last``, each with a row of its own."""
        writer = example or self.place.example
        while writer.driver.folded.last_version < last:
            row = {f"{prefix}{writer.driver.folded.last_version + 1}": {"carrier": "UA", "flights": 1}}
            writer.write({"aircraft": row})

    def point(self, namespace: str) -> None:
        at = parse_store(self.store)
        set_alias(at, "live", checked_target(at, "live", namespace))

    def become(self, way: str) -> str:
        """Continue with versions of another history up to ``LATER``; return the namespace's name."""
        name = "flights"
        match way:
            case "remade":
                drop_namespace(self.place.driver)
                self.place.example.close()
                self.place.again()
            case "restored":
                self.place.lose_log()
                self.place.lose_store()
                self.place.restore()
                self.place.again()
            case "copies":
                self.place.example.close()
                for part in ("wal", "store"):
                    shutil.rmtree(self.root / part)
                    shutil.copytree(self.root / f"{part}.copy", self.root / part)
                self.place.again()
            case _:
                name = "flights_2"
                other = Example(self.place.wal, self.store, name, options=self.place.options)
                self.write("new", LATER, other)
                other.close()
                self.point(name)
                return name
        self.write("new", LATER)
        self.point(name)
        return name

    def close(self) -> None:
        self.place.example.close()
