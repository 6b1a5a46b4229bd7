"""The page of defects, tests/defects.md, made from tests/defects.toml.

tools/run python tools/defects.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TESTS = Path(__file__).resolve().parent.parent / "tests"
SOURCE, PAGE = TESTS / "defects.toml", TESTS / "defects.md"

AREAS = {
    "Log": ("wal",),
    "Commit and recovery": ("committers",),
    "Redis": ("sinks/redis",),
    "Cassandra": ("sinks/cassandra",),
    "SQLite": ("sinks/sqlite",),
    "All stores and the state cache": ("sinks",),
    "Spark": ("spark",),
    "Readers": (
        "readers",
        "src/tidegate/reader",
        "src/tidegate/aio",
        "src/tidegate/values",
        "src/tidegate/base",
    ),
    "Torture, tests and benchmarks": (
        "src/tidegate/torture",
        "src/tidegate/testing",
        "src/tidegate/cli/trials",
        "tests",
        "tools",
        "benchmarks",
    ),
    "Command line, page and options": ("src/tidegate",),
    "Documentation": ("docs",),
}
"""The sections of the page. A defect is in the first one that has its first file."""


class Defect(NamedTuple):
    """One entry of tests/defects.toml."""

    where: list[str]
    what: str
    found_by: str
    test: list[str]
    note: str = ""
    date: date | None = None

    @property
    def area(self) -> str:
        """The section of its first file."""
        return next(area for area, roots in AREAS.items() if _is_below(self.where[0], roots))

    @property
    def row(self) -> str:
        """Its row of the page's table."""
        test = "<br>".join([*(f"`{name}`" for name in self.test), *([self.note] if self.note else [])])
        where = "<br>".join(f"`{path}`" for path in self.where)
        return f"| {self.date or ''} | {self.what} | {where} | {self.found_by} | {test} |"


def defects() -> list[Defect]:
    """Read all entries, in the order of the file."""
    return [Defect(**entry) for entry in tomllib.loads(SOURCE.read_text())["defect"]]


def page(entries: Iterable[Defect]) -> str:
    """Render the whole page."""
    by_area: dict[str, list[Defect]] = {area: [] for area in AREAS}
    for entry in entries:
        by_area[entry.area].append(entry)
    total = sum(map(len, by_area.values()))
    lines = [
        "# Defects found",
        "",
        f"{total} defects of merged code, all fixed. Each row names the wrong behaviour, the files,",
        "the method that found it, and the test that fails if it returns.",
        "[Reliability](../docs/reliability.md) describes the methods.",
        "",
        "`tools/run python tools/defects.py` makes this page from `tests/defects.toml`.",
        "",
        "| area | defects |",
        "|---|---|",
        *(f"| [{area}](#{_anchor(area)}) | {len(rows)} |" for area, rows in by_area.items() if rows),
    ]
    for area, rows in by_area.items():
        if rows:
            lines += ["", f"## {area}", ""]
            lines += ["| found | what was wrong | where | found by | test |", "|---|---|---|---|---|"]
            lines += [entry.row for entry in rows]
    return "\n".join(lines) + "\n"


def _is_below(path: str, roots: Iterable[str]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def _anchor(heading: str) -> str:
    return heading.lower().replace(",", "").replace(" ", "-")


if __name__ == "__main__":
    text = page(defects())
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == text else f"{PAGE} is not made of {SOURCE.name}: run this tool")
    PAGE.write_text(text)
