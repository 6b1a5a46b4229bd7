"""A share of each suite in some ten minutes, and one page of what was tried: `make prove`.

    tools/run python tools/prove.py                  the page is build/proof.md, and printed
    tools/run python tools/prove.py --seed 7         these schedules, words and cells; by default new ones
    tools/run python tools/prove.py --only mutants   one part of tests/selection.toml

The exit code is 1 where a part failed or a broken rule was not noticed. Parts run one after the other, and
start the servers that they need.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from mutants import MUTANTS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "build" / "proof.md"
PART_MAX_S, END_S = 900, 60
BROKEN = 3
"""The rules that are broken in each run."""


class Part(NamedTuple):
    """One share of ``tests/selection.toml``: ``counts`` finds in the output what was tried."""

    name: str
    question: str
    command: str
    counts: str
    whole: str
    not_shown: str


SELECTION = ROOT / "tests" / "selection.toml"
PARTS = [Part(**part) for part in tomllib.loads(SELECTION.read_text())["proof"]]


def words_of(part: Part, seed: int, folder: str) -> list[str]:
    """Return the command with its places filled in."""
    plain = [each.name for each in MUTANTS if each.tests.startswith("tests/unit")]
    rules = ",".join(random.Random(seed).sample(plain, BROKEN))
    return shlex.split(part.command.format(seed=seed, folder=folder, rules=rules))


def run(part: Part, seed: int) -> tuple[bool, str, float]:
    """Run one part; return whether it held, what it counted, and its seconds."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidegate-proof-") as folder:
        words = words_of(part, seed, folder)
        print(f"{part.name}: {shlex.join(words)}", flush=True)
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=PART_MAX_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its servers
            output, _ = process.communicate(timeout=END_S)
        code = process.returncode
    counted = re.findall(part.counts, output)
    told = counted[-1].strip() if counted else "it counted nothing"
    if part.name == "mutants":
        told += "".join(f"<br>{line}" for line in re.findall(r"^(\S+ +tests/\S+)", output, re.MULTILINE))
    if code or not counted:
        print(output[-3000:], flush=True)
        told = f"**FAILED**, exit code {code}: {told}"
    return not code and bool(counted), told, time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", choices=[part.name for part in PARTS], action="append")
    given = parser.parse_args()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    rows, held = [], True
    for part in PARTS:
        if not given.only or part.name in given.only:
            good, told, seconds = run(part, given.seed)
            held = held and good
            whole = f"`{part.whole}`"
            rows.append(f"| {part.question} | {told} | {seconds:.0f} s | {part.not_shown} | {whole} |")
    verdict = "Each part held." if held else "**A part failed.**"
    page = [
        "# What was tried in this run",
        "",
        f"{verdict} Commit {commit or 'unknown'}, seed {given.seed}, {time.strftime('%Y-%m-%d %H:%M')}.",
        f"The same again: `tools/run python tools/prove.py --seed {given.seed}`. All that was ever tried:",
        "docs/evidence.md. The limits of all of it: docs/reliability.md, Not shown.",
        "",
        "| question | tried, and result | time | not shown | the whole suite |",
        "|---|---|---|---|---|",
        *rows,
    ]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join(page) + "\n")
    print("\n".join(page))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
