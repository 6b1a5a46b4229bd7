"""A second opinion: histories of the visible version, judged by porcupine too."""

import shutil
import subprocess
from pathlib import Path

import pytest

import register
from generate_histories import NAMESPACE, Made
from mutators import MUTATORS
from tidegate.torture.history import events
from tidegate.torture.judge.check import check

FOLDER = Path(__file__).parent / "porcupine"
NO_GO = """Go builds the second checker for its test and was not found.
  Debian, Ubuntu:  sudo apt-get update && sudo apt-get install -y golang-go"""
BUILD_S, JUDGE_S = 100, 100

ABOUT_VERSIONS = {"stale", "regressed", "monotonic", "early", "hole"}
"""Rules that a checker of the register alone can see, but where a read shows which version it was of."""

BREAKS_THE_REGISTER = ["stale_after_commit", "another_client_sees_less", "hole_in_versions"]

pytestmark = [pytest.mark.xdist_group("go"), pytest.mark.timeout(BUILD_S + JUDGE_S)]


@pytest.fixture(scope="module")
def porcupine(tmp_path_factory):
    go = shutil.which("go")
    if go is None:
        pytest.fail(NO_GO)
    program = tmp_path_factory.mktemp("go") / "porcupine"
    build = [go, "build", "-o", str(program), "."]
    done = subprocess.run(build, cwd=FOLDER, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    return program


def opinions(porcupine, tmp_path, histories):
    """Of both checkers, for each history: linearizable or not."""
    ours, files = [], []
    for at, made in enumerate(histories):
        folder = made.write(tmp_path / str(at))
        found = [one for one in check(folder).findings if "a read at the newest version" not in one.what]
        ours.append(not {one.rule for one in found} & ABOUT_VERSIONS)
        file = tmp_path / f"{at}.register"
        file.write_bytes(b"".join(register.lines(register.register(folder, NAMESPACE))))
        files.append(str(file))
    done = subprocess.run(
        [str(porcupine), *files], capture_output=True, text=True, timeout=JUDGE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = {"linearizable": True, "not linearizable": False}
    return ours, [answers[line] for line in done.stdout.splitlines()]


def right(seeds):
    return [Made(seed, steps=150, kills=seed % 3 > 0) for seed in seeds]


def test_right_histories_are_linearizable(porcupine, tmp_path):
    assert opinions(porcupine, tmp_path, right(range(30))) == ([True] * 30, [True] * 30)


@pytest.mark.parametrize("name", BREAKS_THE_REGISTER)
def test_wrong_histories_are_not(porcupine, tmp_path, name):
    spoiled = [made for made in right(range(80)) if MUTATORS[name](made)][:8]
    no = [False] * len(spoiled)
    assert spoiled
    assert opinions(porcupine, tmp_path, spoiled) == (no, no)


def nudged(seed):
    """A look that saw one more or one less, which may be right or wrong."""
    made = Made(seed, steps=150, kills=seed % 3 > 0)
    primary = {client.number for client in made.clients if not client.store}
    looks = [event for _, event in made.lines if isinstance(event, events.Looked) and event.client in primary]
    if looks:
        look = made.random.choice(looks)
        look.version = max(0, look.version + made.random.choice([-1, 1]))
    return made


def both_agree(porcupine, tmp_path, seeds):
    ours, theirs = opinions(porcupine, tmp_path, [nudged(seed) for seed in seeds])
    assert [seed for seed, one, other in zip(seeds, ours, theirs, strict=True) if one != other] == []
    assert {True, False} == set(ours)


def test_both_agree_on_looks_that_are_off_by_one(porcupine, tmp_path):
    both_agree(porcupine, tmp_path, range(60))


@pytest.mark.slow
def test_both_agree_on_looks_that_are_off_by_one_many(porcupine, tmp_path):
    both_agree(porcupine, tmp_path, range(1_000, 2_000))
