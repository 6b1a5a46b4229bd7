"""A namespace on real servers with random versions, for comparing readers."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

from tidegate.options import Options
from tidegate.testing.example import Example

KEY_GROUPS = 4


def writer_on(url: str, folder: Path, **options: Any) -> Example:
    """A writer with a log in ``folder``; its namespace is flights-<random>."""
    given = Options(key_groups=KEY_GROUPS, keep_versions=8, **options)
    return Example(f"file://{folder}/wal", url, f"flights-{uuid.uuid4().hex[:8]}", options=given)


def random_version(writer: Example, seed: int) -> int:
    """Changes of several tables: upserts, deletes, at times a replaced table; the version."""
    chance = random.Random(seed)
    rows: dict[str, dict[Any, Any]] = {"aircraft": {}, "airports": {}, "legs": {}, "notes": {}}
    for _ in range(chance.randrange(1, 60)):
        key = chance.randrange(40)
        gone = chance.random() < 0.25
        match chance.choice(sorted(rows)):
            case "aircraft":
                rows["aircraft"][f"N{key}"] = None if gone else {"carrier": "UA", "flights": seed}
            case "airports":
                rows["airports"][f"A{key}"] = None if gone else {"departures": seed, "delay": key / 4}
            case "legs":
                rows["legs"]["EWR", key] = None if gone else {"dest": f"to-{seed}"}
            case _:
                rows["notes"][b"%d" % key] = None if gone else b"%d" % seed
    changed = {name: of_table for name, of_table in rows.items() if of_table}
    emptied = [name for name in changed if chance.random() < 0.15]
    return writer.write(changed, frozenset(emptied))
