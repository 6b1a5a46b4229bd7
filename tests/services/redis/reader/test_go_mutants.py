"""The rules of the Go reader, broken one by one (tools/broken_go_rules.py): a test notices each."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from services.redis.reader.test_go_reader import FOLDER, writer  # noqa: F401 - a fixture
from services.redis.reader.test_go_reader import (
    test_a_version_that_is_retired_while_it_is_read_is_read_again_at_a_newer_one as retired_while_it_is_read,
)
from services.support.go import BUILD_S, built, go_program
from services.support.servers import ROOT
from tidegate.testing.conformance.program import Reader, ReaderRaisedError
from tidegate.testing.conformance.run import FAILED, Result, conformance

sys.path.insert(0, str(ROOT / "tools"))
from broken_go_rules import RULES

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("go"), pytest.mark.timeout(BUILD_S + 100)]


class NoticedError(Exception):
    """A check that has failed, as it has to."""


def refuse_failed(result: Result) -> None:
    if result.outcome == FAILED:
        raise NoticedError(f"{result.name}: {result.text}")


def broken(folder: Path, name: str, old: str, new: str) -> Path:
    """Copy the module and its vectors, with one edit; return the module."""
    shutil.copytree(ROOT / "conformance", folder / "conformance")
    module = folder / "readers" / "go"
    shutil.copytree(FOLDER, module)
    text = (module / name).read_text()
    assert text.count(old) == 1, "the text to change is not there any more"
    (module / name).write_text(text.replace(old, new))
    return module


@pytest.mark.parametrize("broken_rule", RULES, ids=[name for name, *_ in RULES])
def test_it_is_noticed(broken_rule, redis, writer, tmp_path):  # noqa: F811 - the fixture
    module = broken(tmp_path / "tree", *broken_rule[2:])
    program = built(module, "./cmd/conformance", tmp_path)
    tests = [go_program(), "test", "./..."]
    if subprocess.run(tests, cwd=module, capture_output=True, timeout=BUILD_S, check=False).returncode:
        return
    with pytest.raises((NoticedError, ReaderRaisedError)):  # noqa: PT012 - either of two tests
        with Reader(str(program), tmp_path / "errors") as reader:
            retired_while_it_is_read(reader, writer, redis)
        conformance(str(program), redis.url, report=refuse_failed)
