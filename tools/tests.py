"""Run a selection of the tests: tests/selection.toml says which.

    tools/run python tools/tests.py promise                  what `make test` runs
    tools/run python tools/tests.py oldest                   and what it runs with the oldest libraries
    tools/run python tools/tests.py room wal                 all tests of a room, the slow ones too
    tools/run python tools/tests.py all                      all rooms, one after the other
    tools/run python tools/tests.py changed COMMIT --minutes 8
                                     the rooms that changed since a commit, without slow tests, in that time

Words after ``--`` go to pytest. The exit code is that of the first pytest that failed.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
SELECTION = tomllib.loads((ROOT / "tests" / "selection.toml").read_text())
MUTANTS = ROOT / "docs" / "mutants.md"
TOO_NEW = (3, 13)
"""The Python for which the oldest numpy has no wheel."""
NONE_RAN = 5
"""pytest's exit code when a selection has no test, such as one of a room without Spark's."""


def noticing() -> list[str]:
    """List the tests that notice a mutant, each once, from the page."""
    return list(
        dict.fromkeys(re.findall(r"^\| \S+ \|.*\| `(tests/[^`]+)` \|$", MUTANTS.read_text(), re.MULTILINE))
    )


def promise() -> list[str]:
    """List the tests of ``make test``, as words for pytest."""
    named = [
        f"{of_class}::{test}" if of_class else test
        for part in SELECTION["promise"]
        for of_class in part.get("classes", [""])
        for test in part["tests"]
    ]
    whole = {test for test in named if "[" not in test}
    return [
        *named,
        *(test for test in noticing() if not whole & {test, test.partition("[")[0], test.partition("::")[0]}),
    ]


def changed_rooms(base: str) -> list[dict[str, object]]:
    """List the rooms with a file that differs from the commit, those with the most such lines first."""
    stat = subprocess.run(
        ["git", "diff", "--numstat", base, "--"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    lines = dict.fromkeys(range(len(SELECTION["room"])), 0)
    for line in stat.splitlines():
        added, _, path = line.split("\t", 2)
        for index, room in enumerate(SELECTION["room"]):
            if any(
                path == folder or path.startswith(f"{folder}/") for folder in (*room["code"], *room["tests"])
            ):
                lines[index] += int(added) + 1 if added.isdigit() else 1
    return [
        SELECTION["room"][index] for index in sorted(lines, key=lambda index: -lines[index]) if lines[index]
    ]


def pytest(*words: str, run: Sequence[str] = (sys.executable, "-m", "pytest")) -> int:
    """Run pytest on two workers; tests that share a server or a JVM run on one of them.

    It ends with this process, and its servers with it.
    """
    jobs = os.environ.get("JOBS", "2")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print("+ pytest", *(words if len(words) < 20 else (*words[:20], f"... ({len(words)} words)")), flush=True)
    return subprocess.run([*run, "-n", jobs, *words], cwd=ROOT, check=False).returncode


def run_oldest(more: list[str]) -> int:
    """Run the selection with the oldest libraries, in an environment of their own."""
    if sys.version_info >= TOO_NEW:
        print(f"left out: the oldest libraries do not run on Python {sys.version.split()[0]}")
        return 0
    env, run = ROOT / ".venv-oldest", [str(ROOT / "tools" / "run"), "pytest"]
    subprocess.run([sys.executable, ROOT / "tools" / "oldest.py", env], cwd=ROOT, check=True)
    os.environ["TIDEGATE_VENV"] = str(env)
    code = pytest("--dist", "loadfile", "-m", "not slow", *SELECTION["oldest"]["tests"], *more, run=run)
    return 0 if code == NONE_RAN else code


def run_room(room: dict[str, list[str]], more: list[str], *, slow: bool) -> int:
    """Run a room's tests: those without Spark, then those with, whose JVMs take memory."""
    without = "" if slow else " and not slow"
    for marks, dist in ((f"not spark{without}", "loadgroup"), (f"spark{without}", "loadfile")):
        code = pytest("--dist", dist, "-m", marks, *room["tests"], *more)
        if code not in (0, NONE_RAN):
            return code
    if room["name"] == "spark":
        code = pytest(
            "--dist", "loadfile", "-m", f"on_kafka{without}", "tests/spark", "--log", "kafka", *more
        )
    return 0 if code == NONE_RAN else code


def main() -> int:
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("promise", "oldest", "room", "all", "changed"))
    parser.add_argument("name", nargs="?", help="of a room, or a commit")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="changed: start no room that may take longer"
    )
    arguments, more = parser.parse_args(words[:cut]), words[cut + 1 :]
    if arguments.what == "promise":
        return pytest(
            "--dist", "loadgroup", "--no-loadscope-reorder", "-m", "not slow or notices", *promise(), *more
        )
    if arguments.what == "oldest":
        return run_oldest(more)
    rooms = SELECTION["room"]
    if arguments.what == "room":
        rooms = [room for room in rooms if room["name"] == arguments.name]
        if not rooms:
            parser.error(
                f"no room {arguments.name!r}: {', '.join(room['name'] for room in SELECTION['room'])}"
            )
    if arguments.what == "changed":
        rooms = changed_rooms(arguments.name)
    end = time.monotonic() + 60 * arguments.minutes
    for room in rooms:
        if arguments.what == "changed" and time.monotonic() + 60 * room["minutes"] > end:
            print(f"room {room['name']}: left out, it may take {room['minutes']} minutes")
            continue
        print(f"room {room['name']}", flush=True)
        if code := run_room(room, more, slow=arguments.what != "changed"):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
