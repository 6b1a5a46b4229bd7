"""Break the protocol on purpose, one rule at a time, and see that a test notices.

    make mutants            all of them, and docs/mutants.md written from what happened
    tools/run python tools/mutants.py --only flip-before-seal

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
from pathlib import Path
from typing import NamedTuple

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


SIMULATION = "tests/simulation/test_simulation.py::test_schedules_keep_every_invariant"

MUTANTS = [
    Mutant(
        "flip-before-seal",
        "I1: nothing is visible before every key group is sealed",
        "committers/apply.py",
        "        store.apply(work.stamp, chunk)\n",
        "        pass\n",
        SIMULATION,
    ),
    Mutant(
        "ack-before-durable",
        "I3: a task acks after the log has everything",
        "wal/file_log.py",
        "            os.fsync(fd)\n            sync_folder(path.parent)\n",
        "            pass\n",
        "tests/unit/test_file_log.py",
    ),
    Mutant(
        "ignore-epoch-in-fold",
        "I6: a record of an older epoch is void",
        "wal/fold.py",
        "case _ if record.epoch != state.epoch or record.writer != state.writer:",
        "case _ if False:",
        "tests/unit/test_fold.py",
    ),
    Mutant(
        "ignore-epoch-in-store",
        "I6: the store refuses a flip of a lower epoch",
        "sinks/sqlite_store.py",
        "    WHERE visible = :version - 1 AND epoch <= :epoch",
        "    WHERE visible = :version - 1",
        "tests/conformance/test_stores.py",
    ),
    Mutant(
        "flip-from-anywhere",
        "I7: only the exact predecessor gives way to a version",
        "sinks/sqlite_store.py",
        "    WHERE visible = :version - 1 AND epoch <= :epoch",
        "    WHERE visible < :version AND epoch <= :epoch",
        "tests/conformance/test_stores.py",
    ),
    Mutant(
        "dedupe-without-fingerprint",
        "T5: a replanned batch of the same id is refused",
        "wal/fold.py",
        "fact.origin.fingerprint != origin.fingerprint",
        "False",
        "tests/unit/test_fold.py",
    ),
    Mutant(
        "every-batch-is-new",
        "I2: a batch is decided once",
        "wal/fold.py",
        "if state.last_batch is not None and (generation, batch_id) <= state.last_batch:",
        "if False:",
        "tests/unit/test_fold.py",
    ),
    Mutant(
        "own-record-instead-of-winner",
        "append rule 3: ask which attempt won",
        "committers/states.py",
        "        return (Event.WON if fact.attempt == record.attempt else Event.OTHER_WON), fact\n",
        "        return (Event.WON, fact) if fact.attempt == record.attempt else (Event.NOT_THERE, None)\n",
        "tests/model",
    ),
    Mutant(
        "absence-is-proof",
        "append rule 5: not being there proves nothing",
        "committers/states.py",
        "        Event.DEADLINE: State.FENCING,\n",
        "        Event.DEADLINE: State.UNDECIDED,\n",
        "tests/unit/test_states.py tests/simulation",
    ),
    Mutant(
        "skip-the-read-back",
        "publish rule 2: a flip that was not confirmed is read back",
        "committers/states.py",
        "    State.SEALED: {Event.FLIPPED: State.VISIBLE, Event.NOT_FLIPPED: State.READING_BACK},\n",
        "    State.SEALED: {Event.FLIPPED: State.VISIBLE, Event.NOT_FLIPPED: State.VISIBLE},\n",
        "tests/unit/test_states.py tests/simulation",
    ),
    Mutant(
        "state-before-own-open",
        "append rule 1: state is the fold through the own Open",
        "committers/open.py",
        "        if _owned(driver, appended):\n            break\n",
        "        driver.epoch = driver.tried_epoch\n        break\n",
        "tests/simulation tests/unit/test_commit_races.py",
    ),
    Mutant(
        "no-claim",
        "I6: the epoch is claimed in the store at open",
        "committers/open.py",
        "    claim_epoch(driver)\n",
        "",
        SIMULATION,
    ),
    Mutant(
        "no-recovery",
        "I4: an opening driver makes visible what was decided",
        "committers/open.py",
        "    return recover(driver)\n",
        "    return []\n",
        "tests/crash",
    ),
    Mutant(
        "first-change-wins",
        "of a key's changes the last one counts",
        "wal/changelog.py",
        "        here, following = rows.slice(0, end), rows.slice(1)\n",
        "        here, following = rows.slice(0, end), rows.slice(1)\n        here = here.slice(0)\n"
        "        following = following if end % 7 else here\n",
        "tests/unit/test_changelog.py",
    ),
    Mutant(
        "trust-any-frame",
        "I10: a frame is the one that was acked, or an error",
        "wal/frame.py",
        "    if stamp.hex() != expected.checksum or checksum(memoryview(content)[HEADER_AT:]) != stamp:\n",
        "    if False:\n",
        "tests/unit/test_frame.py",
    ),
    Mutant(
        "seal-without-counting",
        "a seal finds what the manifest promises, or refuses",
        "sinks/sqlite_rows.py",
        "                    if _without_zeros(found) == _without_zeros(counts[group]):\n",
        "                    if True:\n",
        "tests/conformance/test_stores.py",
    ),
    Mutant(
        "read-without-floor",
        "T28: who fetched a version before it was retired is refused, never answered from a mix",
        "sinks/sqlite_rows.py",
        "            if group in groups:\n",
        "            if False:\n",
        "tests/unit/test_sqlite_store.py",
    ),
    Mutant(
        "missing-ack",
        "every task acks, once",
        "committers/acks.py",
        "    if tasks != list(range(parallelism)):\n",
        "    if False:\n",
        "tests/unit/test_acks.py",
    ),
    Mutant(
        "refuse-after-append",
        "I10: another checkpoint is refused before anything is appended",
        "committers/open.py",
        "        _refuse_other_lineage(driver, state, taken)\n",
        "",
        "tests/unit tests/crash",
    ),
    Mutant(
        "write-the-log-in-place",
        "a decision log is there whole or not at all",
        "wal/file_log.py",
        '        fresh = self._decisions.with_suffix(".new")\n',
        "        fresh = self._decisions\n",
        "tests/crash/test_sweep.py",
    ),
    Mutant(
        "retire-once",
        "I11: what a crash left of a retirement is dropped by the next one",
        "committers/retire.py",
        "        if fact.version > dropped and not _drop(log, store, fact, stopped):\n",
        "        if fact.version < dropped and not _drop(log, store, fact, stopped):\n",
        "tests/crash/test_sweep.py",
    ),
    Mutant(
        "cut-without-sparing",
        "trimming keeps what the versions from the horizon on need",
        "committers/trim.py",
        "[fact for fact in state.recent if fact.version >= pointer.horizon]",
        "[fact for fact in state.recent if fact.version > pointer.horizon + 1]",
        "tests/crash/test_sweep.py",
    ),
]


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


def run(mutant: Mutant) -> tuple[Mutant, str, float]:
    """What noticed the mutant ('' when nothing did), and in how many seconds."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidegate-mutant-") as name:
        folder = Path(name)
        tree(folder)
        join(folder)
        path = folder / mutant.file
        text = path.read_text()
        if text.count(mutant.old) < 1:
            return mutant, "STALE: the text to change is not there any more", 0.0
        path.write_text(text.replace(mutant.old, mutant.new))
        environment = {
            **os.environ,
            "PYTHONPATH": str(folder / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CI": "1",
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow and not spark",
        ]
        done = subprocess.run(
            [*command, *mutant.tests.split()],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode == 1 and failed:
        return mutant, failed[1], time.monotonic() - started
    if done.returncode == 0:
        return mutant, "", time.monotonic() - started
    return mutant, f"STALE: pytest ended with {done.returncode}: {done.stdout[-500:]}", 0.0


def page(results: list[tuple[Mutant, str, float]]) -> str:
    """The table for the docs."""
    lines = [
        "# Mutants",
        "",
        "The protocol broken on purpose, one rule at a time, and the test that noticed first. Made by",
        "`make mutants`; the simulation and the model break further rules by themselves",
        "(`tests/simulation/test_seeded_mutations.py`, `tests/model`).",
        "",
        "| mutant | rule | in | noticed by |",
        "|---|---|---|---|",
    ]
    lines += [f"| {m.name} | {m.rule} | `{m.file}` | `{by or 'NOTHING'}` |" for m, by, _ in results]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", help="one mutant, by its name")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    chosen = [m for m in MUTANTS if arguments.only in (None, m.name)]
    results = []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for mutant, by, seconds in pool.map(run, chosen):
            print(f"{mutant.name:30} {by or 'SURVIVED'}   ({seconds:.0f} s)", flush=True)
            results.append((mutant, by, seconds))
    bad = [m.name for m, by, _ in results if not by or by.startswith("STALE")]
    if arguments.only is None and not bad:
        PAGE.write_text(page(results))
    surviving = f"; not: {', '.join(bad)}" if bad else ""
    print(f"{len(results) - len(bad)} of {len(results)} mutants were noticed{surviving}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
