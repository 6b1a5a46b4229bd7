"""A share of each suite in some ten minutes, and one page of what was tried: `make prove`.

    tools/run python tools/prove.py                  the page is build/proof.md, and printed
    tools/run python tools/prove.py --seed 7         other schedules, words and cells; a random seed by default
    tools/run python tools/prove.py --only mutants   one part

The exit code is 1 where a part failed or a broken rule was not noticed. Parts run one after the other, so that
their times add up. Servers are started for them and ended after them.
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

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "build" / "proof.md"
PART_MAX_S = 900
BROKEN = 3
"""The rules that are broken in each run."""
TORTURE = "tidegate torture --seed {seed} --jobs 2"
CELLS = r"((?:Every promise held: )?[\d,]+ cells.*?)\.\s"
READER = "'python -m tidegate.testing.conformance.reader'"


class Part(NamedTuple):
    """One share: the question, its command, what its output counts, the whole, and what it does not show."""

    name: str
    question: str
    command: str
    counts: str
    whole: str
    not_shown: str


PARTS = (
    Part(
        "model", "Does any order of steps break an invariant, in small scopes, completely?",
        "pytest -q -m 'not slow' tests/model/test_exploration.py tests/model/test_rebuild_exploration.py",
        r"(\d+ passed)", "pytest tests/model", "larger scopes",
    ),
    Part(
        "commands", "Does a command break what another one left?",
        "python -m model.commands --random 300 --steps 50 --seed {seed}",
        r"(\d+ words, .*?refusals, \d+ findings)", "python -m model.commands --scopes", "servers: logs and stores are in memory",
    ),
    Part(
        "simulation", "Does any schedule of drivers, readers and faults?",
        "python -m simulation.run --schedules 1000 --workers 2 --seed {seed}",
        r"([\d,]+ schedules, [\d,]+ calls, [\d,]+ versions)", "make simulate", "threads: one runs all, in virtual time",
    ),
    Part(
        "sweep", "Does a driver that is killed at an I/O leave a wrong state?",
        "python -m crash.sweep.run --jobs 2 --every 23",
        r"(\d+ crashes, \d+ finished, \d+ wrong)", "make sweep", "bytes that the kernel loses",
    ),
    Part(
        "power cuts", "Does a power cut?",
        "python -m crash.power.run --jobs 2 --every 211 --seed {seed}",
        r"(\d+ power cuts, \d+ finished, \d+ wrong)", "make power-cuts", "disks that lie: they are a model of POSIX",
    ),
    Part(
        "files", "Do readers see only whole versions beside faults, on files?",
        TORTURE + " --cells 16 --wal file://{folder}/wal --store sqlite://{folder}/store",
        CELLS, "make torture", "several hosts",
    ),
    Part(
        "servers", "On Kafka and Redis?",
        "python tests/services/run.py kafka redis -- " + TORTURE + " --cells 12 --allow-unsafe --wal {{kafka}} --store {{redis}}",
        CELLS, "make torture WAL=kafka STORE=redis", "replicated servers",
    ),
    Part(
        "spark", "With Spark's tasks, on Kafka and Redis?",
        "python tests/services/run.py kafka redis -- " + TORTURE
        + " --cells 2 --spark local[2] --allow-unsafe --wal {{kafka}} --store {{redis}}",
        CELLS, "make torture TORTURE_ARGS='--spark local[2] --all'", "clusters of several machines",
    ),
    Part(
        "tenants", "Can a tenant with a reader's or a writer's rights harm another one, on Redis?",
        "pytest -q -m 'not slow' tests/services/redis/rights/test_hostile_tenants.py",
        r"(\d+ passed)", "pytest tests/services/redis/rights tests/services/kafka/rights", "a server without logins",
    ),
    Part(
        "reader", "Does the reader answer as the format's page says?",
        "python tests/services/run.py redis -- tidegate conformance " + READER + " --store {{redis}}",
        r"(\d+ passed, \d+ skipped, \d+ failed)", "make full ROOM=redis", "the readers in Go and Java: make full ROOM=redis",
    ),
    Part(
        "mutants", "Can the tests fail? These rules were broken on purpose.",
        "python tools/mutants.py --keep-page --only {rules}",
        r"(\d+ of \d+ mutants were noticed)", "make mutants", "rules that nobody thought of breaking",
    ),
)  # fmt: skip


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
        try:
            done = subprocess.run(
                words, cwd=ROOT, env={**os.environ, "COLUMNS": "200"}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=PART_MAX_S, check=False,
            )  # fmt: skip
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired:
            code, output = 1, f"not done in {PART_MAX_S} s"
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
        "docs/evidence.md. What nothing here shows: docs/reliability.md, Not shown.",
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
