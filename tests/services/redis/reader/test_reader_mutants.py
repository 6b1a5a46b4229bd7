"""The Python reader's rules, broken one by one (tools/broken_reader_rules.py): its check notices each."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.support.servers import ROOT
from tidegate.testing.conformance.run import FAILED, PASSED, conformance

sys.path.insert(0, str(ROOT / "tools"))
from broken_reader_rules import RULES
from mutants import join, tree

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("reader-mutants"), pytest.mark.timeout(300)]
MODULE = "tidegate.testing.conformance.reader"


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Path:
    """A copy of the tree, compiled: the reader runs there, and the conformance program here."""
    folder = tmp_path_factory.mktemp("tree")
    tree(folder)
    join(folder)
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(folder / "src")], check=False)
    return folder


def program(folder: Path) -> str:
    paths = os.pathsep.join(str(folder / part) for part in ("src", "tests"))
    return shlex.join(
        ["env", f"PYTHONPATH={paths}", "PYTHONDONTWRITEBYTECODE=1", sys.executable, "-m", MODULE]
    )


@contextlib.contextmanager
def broken(path: Path, old: str, new: str) -> Iterator[None]:
    """Change a file of the copy; after the block it is as it was, also for compiled code."""
    text, times = path.read_text(), path.stat()
    assert text.count(old) == 1, "the text to change is not there, or there twice"
    path.write_text(text.replace(old, new))
    try:
        yield
    finally:
        path.write_text(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.fixture(scope="module")
def passed() -> set[str]:
    """The checks that the whole reader has passed."""
    return set()


@pytest.mark.parametrize("rule", RULES, ids=[name for name, *_ in RULES])
def test_its_check_notices(rule, redis, copied, passed):
    _, _, file, old, new, check = rule
    if check not in passed:
        (whole,) = conformance(program(copied), redis.url, only=[check])
        assert whole.outcome == PASSED, whole.text
        passed.add(check)
    with broken(copied / file, old, new):
        (result,) = conformance(program(copied), redis.url, only=[check])
    assert result.outcome == FAILED
    assert "Traceback" not in result.text
    print(f"{rule[0]}: {result.text[:200]}")
