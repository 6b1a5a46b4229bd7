"""Break the protocol on purpose, one rule at a time, and see that a test notices.

    make mutants            all of them, and docs/mutants.md written from what happened
    tools/run python tools/mutants.py --only flip-before-seal,no-claim      these, and their lines in it

Each mutant is one edit in a copy of the tree; its tests run there until the first failure. A
mutant that no test notices survives, and this command fails.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from broken_command_rules import RULES as COMMAND_RULES
from broken_pipeline_rules import RULES as PIPELINE_RULES
from broken_reader_rules import RULES as READER_RULES
from broken_redis_rules import RULES as REDIS_RULES
from broken_rekey_rules import RULES as REKEY_RULES
from broken_rules import RULES
from broken_schema_rules import RULES as SCHEMA_RULES
from broken_spark_rules import RULES as SPARK_RULES
from broken_state_rules import RULES as STATE_RULES
from broken_verify_rules import RULES as VERIFY_RULES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "mutants.md"
FOLDERS = ("src", "wal", "committers", "sinks", "spark", "examples", "tests", "tools", "docs")
PACKAGES = {
    "wal": "wal",
    "committers": "committers",
    "sinks": "sinks",
    "spark": "spark",
    "demo": "examples/flights",
}


class Mutant(NamedTuple):
    """One rule broken: where, how, and the tests that should notice."""

    name: str
    rule: str
    file: str
    old: str
    new: str
    tests: str


MUTANTS = [
    Mutant(*rule)
    for rule in (
        *RULES,
        *REDIS_RULES,
        *STATE_RULES,
        *SPARK_RULES,
        *PIPELINE_RULES,
        *VERIFY_RULES,
        *SCHEMA_RULES,
        *REKEY_RULES,
        *COMMAND_RULES,
    )
]

MARKS = {"tests/services/cassandra/faults/test_lost_replies.py": "not spark"}
"""Where only half of the tests are in the ordinary run."""


def tree(folder: Path) -> None:
    """A copy of the tree in which ``tidegate`` is one plain package, mutable without harm."""
    for name in FOLDERS:
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis")
        )
    for name in ("pyproject.toml", "README.md", "docker-compose.yml", "Makefile", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder / name)


def join(folder: Path) -> None:
    """Lay the mapped folders into the package, by links: an edit of ``wal/fold.py`` is seen."""
    for name, source in PACKAGES.items():
        (folder / "src" / "tidegate" / name).symlink_to(folder / source, target_is_directory=True)


def run(mutant: Mutant, recorded: str) -> tuple[Mutant, str, float]:
    """Return the test that notices a mutant ('' when none does), and the seconds it took.

    The test that noticed it last runs first, alone. If it does not notice, all of the mutant's tests run.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidegate-mutant-") as name:
        folder = Path(name)
        tree(folder)
        if (ROOT / ".services").is_dir():
            (folder / ".services").symlink_to(ROOT / ".services")  # the servers' jars, once fetched
        join(folder)
        path = folder / mutant.file
        text = path.read_text()
        if text.count(mutant.old) < 1:
            return mutant, "STALE: the text to change is not there any more", 0.0
        path.write_text(text.replace(mutant.old, mutant.new))
        for tests in filter(None, ([recorded] if recorded else [], mutant.tests.split())):
            done = pytest(folder, MARKS.get(mutant.tests, "not slow or notices"), tests)
            failed = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", done.stdout, re.MULTILINE)
            if done.returncode == 1 and failed:
                return mutant, failed[1], time.monotonic() - started
    if done.returncode == 0:
        return mutant, "", time.monotonic() - started
    return mutant, f"STALE: pytest ended with {done.returncode}: {done.stdout[-500:]}", 0.0


def pytest(folder: Path, marks: str, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests in the copy until the first failure."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(folder / part) for part in ("src", "tests", "tests/spark")),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CI": "1",
    }
    if not any(test.startswith("tests/spark") for test in tests) and "spark" not in marks:
        marks = f"({marks}) and not spark"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", marks]
    return subprocess.run(
        [*command, *tests],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def recorded() -> dict[str, str]:
    """Read from the page the test that noticed each mutant."""
    return dict(re.findall(r"^\| (\S+) \|.*\| `([^`]+)` \|$", PAGE.read_text(), re.MULTILINE))


def page(noticed: Mapping[str, str]) -> str:
    """The table for the docs: a line for each mutant that was run, those that were not by their names."""
    left = [mutant.name for mutant in MUTANTS if mutant.name not in noticed]
    lines = [
        "# Mutants",
        "",
        "A mutant is the code with one rule of the protocol broken on purpose. The table has the first test",
        "that fails with each. `make mutants` runs all of them, and",
        "`tools/run python tools/mutants.py --only NAME,NAME` some. The simulation and the model break",
        "further rules themselves (`tests/simulation/test_seeded_mutations.py`, `tests/model`), and",
        "[torture](reliability.md#torture) breaks seventeen more.",
        "",
        f"A test fails with {len(MUTANTS) - len(left)} of {len(MUTANTS)} mutants.",
        *([f"Not run since they were written: {', '.join(left)}."] if left else []),
        "",
        "| mutant | rule | file | failing test |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {m.name} | {m.rule} | `{m.file}` | `{noticed[m.name]}` |" for m in MUTANTS if m.name in noticed
    ]
    return "\n".join([*lines, *readers()]) + "\n"


def readers() -> list[str]:
    """The part of the page about readers: their test fails unless the check of each line notices it."""
    return [
        "",
        "## Readers",
        "",
        "These rules of the reader in Python are broken in a copy. The conformance program, whose own code",
        f"is whole, drives it against Redis, and notices {len(READER_RULES)} of {len(READER_RULES)}:",
        "`tools/run python -m pytest -m slow tests/services/redis/reader/test_reader_mutants.py`. The",
        "readers in Go and Java have such lists, too (`tools/broken_go_rules.py`,",
        "`tools/broken_java_rules.py`).",
        "",
        "| mutant | rule | file | check that fails |",
        "|---|---|---|---|",
        *(f"| {name} | {rule} | `{file}` | `{check}` |" for name, rule, file, *_, check in READER_RULES),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="NAMES", help="these mutants, by their names, with commas")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep-page", action="store_true", help="leave docs/mutants.md as it is")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else [m.name for m in MUTANTS]
    chosen = [m for m in MUTANTS if m.name in names]
    last = recorded()
    noticed = last if arguments.only else {}
    results = []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for mutant, by, seconds in pool.map(lambda mutant: run(mutant, last.get(mutant.name, "")), chosen):
            print(f"{mutant.name:30} {by or 'SURVIVED'}   ({seconds:.0f} s)", flush=True)
            results.append((mutant, by, seconds))
    bad = [m.name for m, by, _ in results if not by or by.startswith("STALE")]
    noticed = noticed | {mutant.name: by for mutant, by, _ in results}
    if not bad and not arguments.keep_page:
        PAGE.write_text(page(noticed))
    surviving = f"; not: {', '.join(bad)}" if bad else ""
    print(f"{len(results) - len(bad)} of {len(results)} mutants were noticed{surviving}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
