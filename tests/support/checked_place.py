"""A namespace in files that a test damages and verifies."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from tidegate.committers.apply import apply
from tidegate.committers.operations.verify import Progress, Report, verify
from tidegate.committers.steps.retire import retire_up_to
from tidegate.options import Options
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import BATCHES, Example, Rows
from tidegate.wal.open_log import open_log

OPTIONS = Options(key_groups=4, keep_versions=2, frame_bytes=60)


class Place:
    """A namespace in files: how it is written, damaged and checked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wal, self.store = f"file://{root}/wal", f"sqlite://{root}/store"
        self.folder = root / "store" / "flights"
        self.decisions = root / "wal" / "flights" / "decisions.log"

    def write(self, batches: Sequence[Rows] = BATCHES, *, retire: bool = False) -> Place:
        example = Example(self.wal, self.store, options=OPTIONS)
        for rows in batches:
            example.write(rows)
        driver = example.driver
        if retire:
            retire_up_to(driver.log, driver.store, driver.folded, OPTIONS, lambda: False)
        self.facts = driver.folded.recent
        self.manifests = {fact.version: apply.read_manifest(driver.log, fact) for fact in self.facts}
        example.close()
        return self

    def verify(self, progress: Callable[[Progress], None] = lambda _: None) -> Report:
        log, store = open_log(self.wal, "flights"), open_store(self.store, "flights")
        try:
            return verify(log, store, progress)
        finally:
            store.close()
            log.close()

    def found(self) -> str:
        return "\n".join(f"{one.where}: {one.expected}, found {one.found}" for one in self.verify().findings)

    def content(self) -> dict[str, str]:
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and not path.name.endswith(("-shm", "-wal"))
        }

    def segment(self, address: str) -> tuple[Path, int, int]:
        name, offset, length = address.split(":")
        return self.root / "wal" / "flights" / "changelog" / f"{name}.seg", int(offset), int(length)

    def flip_in_segment(self, address: str) -> None:
        path, offset, length = self.segment(address)
        content = bytearray(path.read_bytes())
        content[offset + 16 + length // 2] ^= 1
        path.write_bytes(content)

    def sql(self, name: str, *statements: str) -> int:
        with contextlib.closing(sqlite3.connect(self.folder / name)) as connection:
            changed = sum(connection.execute(statement).rowcount for statement in statements)
            connection.commit()
        return changed

    def in_shards(self, *statements: str) -> int:
        """Run in each shard that has the table; how many rows it changed."""
        changed = 0
        for path in sorted(self.folder.glob("shard-*.sqlite")):
            with contextlib.suppress(sqlite3.OperationalError):
                changed += self.sql(path.name, *statements)
        assert changed > 0
        return changed
