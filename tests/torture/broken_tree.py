"""Torture with the code of a copied tree, in which a rule was broken by an edit."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 600.0
WRONG_ROWS = {"atomic", "lost", "resurrected", "doubled"}
"""What rows that are not there, or are too old, are called: it depends on who read which of them when."""


def _mutants():
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools" / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(folder):
    """A copy of the tree in a folder, as one plain package."""
    mutants = _mutants()
    mutants.tree(folder)
    mutants.join(folder)
    return folder


def tortured(folder, source, *more, store=""):
    """The exit code and the report of a run with the code of a tree; on files, but for the store given."""
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", "from tidegate.cli import main; main()", "torture", "--seed", "1", *more]
    store = store or f"sqlite://{folder}/store"
    command += ["--wal", f"file://{folder}/wal", "--store", store, "--report"]
    done = subprocess.run(
        [*command, str(folder / "r")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    report = folder / "r" / "report.json"
    assert report.exists(), (done.returncode, done.stdout, done.stderr)
    return done.returncode, json.loads(report.read_bytes())


@contextlib.contextmanager
def edited(tree, edit):
    before = {}
    try:
        for name, old, new in zip(edit[::3], edit[1::3], edit[2::3], strict=True):
            path = tree / name
            before[path] = path.read_text()
            assert old in before[path]
            path.write_text(before[path].replace(old, new))
        yield
    finally:
        for path, text in before.items():
            path.write_text(text)
