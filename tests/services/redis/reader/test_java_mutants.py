"""Each rule of the Java reader, broken (``tools/broken_java_rules.py``), is noticed by a test."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from services.support.jars import java
from services.support.java_reader import CLASSES, FOLDER, built
from services.support.servers import ROOT

RULES = runpy.run_path(str(ROOT / "tools" / "broken_java_rules.py"))["RULES"]
SOURCES = FOLDER / "src" / "main" / "java" / "dev" / "tidegate" / "reader"
TESTS = Path(__file__).with_name("test_java_reader.py")
TEST_S = 300

pytestmark = [pytest.mark.xdist_group("java"), pytest.mark.timeout(900)]


@pytest.mark.parametrize("rule", RULES, ids=[rule[0] for rule in RULES])
def test_the_text_is_there_once(rule):
    _, _, file, old, new, _ = rule
    assert (SOURCES / file).read_text().count(old) == 1
    assert old != new


def noticed(classes, tests):
    """Run these tests with other classes of the reader; return pytest's exit code and what it printed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-m",
        "",
        "-k",
        tests,
    ]
    done = subprocess.run(
        [*command, str(TESTS)],
        cwd=ROOT,
        env=os.environ | {CLASSES: str(classes)},
        capture_output=True,
        text=True,
        timeout=TEST_S,
        check=False,
    )
    return done.returncode, done.stdout[-3_000:] + done.stderr[-1_000:]


@pytest.fixture(scope="module")
def classes():
    """The reader's classes as they are."""
    built()
    return FOLDER / "target" / "classes"


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=[rule[0] for rule in RULES])
def test_a_broken_rule_is_noticed(classes, rule, tmp_path):
    _, _, file, old, new, tests = rule
    broken, source, jars = tmp_path / "classes", tmp_path / file, FOLDER / "target" / "lib" / "*"
    shutil.copytree(classes, broken)
    source.write_text((SOURCES / file).read_text().replace(old, new))
    compiler = [
        java("javac"),
        "-nowarn",
        "-d",
        str(broken),
        "-cp",
        f"{classes}{os.pathsep}{jars}",
        str(source),
    ]
    subprocess.run(compiler, check=True, capture_output=True, text=True)
    code, printed = noticed(broken, tests)
    assert code == 1, printed
    assert "failed" in printed
