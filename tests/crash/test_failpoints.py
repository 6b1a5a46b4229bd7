"""SIGKILL and SIGSTOP at every named place of the protocol, then three ways to finish.

Each case is real: a process of its own, a log in files, a store in SQLite. Whatever was
killed where, an independent reader finds at every version exactly the batches up to it (I1),
each batch in one version (I2), and nothing that was decided lost (I4).
"""

import ast
from pathlib import Path

import pytest

from crash.sweep.place import (
    BATCHES,
    DEADLINE_S,
    FINISHES,
    REACHED,
    Place,
    kill_at,
    stops,
    wakes_fenced,
)
from tidegate.base import failpoints

ROOT = Path(__file__).resolve().parents[2]
CODE = ("committers", "sinks", "spark", "src", "wal")

STOPPED_AT = (
    "stage.before_ack",
    "decide.before_append",
    "decide.after_append",
    "apply.after_chunk",
    "publish.before",
    "publish.after",
    "retire.after_announce",
    "retire.after_group",
)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


# -- SIGKILL --------------------------------------------------------------------------------------


HITS = [(name, hit) for name in REACHED for hit in ("first", "later")]


def killed(*, by_turns: bool):
    """Each place with one way to finish, by turns; or with all others."""
    return [
        pytest.param(name, hit, finish, id=f"{name}-{hit}-{finish.__name__}")
        for turn, (name, hit) in enumerate(HITS)
        for way, finish in enumerate(FINISHES)
        if (way == turn % len(FINISHES)) == by_turns
    ]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name, hit, finish", killed(by_turns=True))
def test_killed_at(place, name, hit, finish):
    kill_at(place, name, hit)
    finish(place)


@pytest.mark.slow
@pytest.mark.parametrize("name, hit, finish", killed(by_turns=False))
def test_killed_at_and_finished_in_every_other_way(place, name, hit, finish):
    kill_at(place, name, hit)
    finish(place)


@pytest.mark.slow
def test_killed_again_and_again(place):
    """Every process dies a step further; together they get there."""
    for name in REACHED:
        process = place.start("--keep-versions", "1", armed=f"{name}=kill")
        process.communicate(timeout=DEADLINE_S)
        place.check()
    place.run()
    assert place.check() == (BATCHES, BATCHES)


# -- SIGSTOP ----------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", STOPPED_AT)
def test_a_zombie_wakes_after_another_driver_finished(place, name):
    """T1: it is fenced, and changes nothing, wherever it slept."""
    more = ["--keep-versions", "1"] if name.startswith("retire.") else []
    zombie = place.start(*more, armed=f"{name}=stop")
    try:
        assert stops(zombie)
        place.run(*more)
        before = place.check()
        wakes_fenced(zombie)
    finally:
        zombie.kill()
    assert before == place.check() == (BATCHES, BATCHES)
    assert place.decided().epoch == 2


# -- the list -----------------------------------------------------------------------------------------


def _call_sites():
    """Every name that the code hits, with the files that do."""
    sites = {}
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "failpoints.hit":
                    (argument,) = node.args
                    assert isinstance(argument, ast.Constant), f"{path}: a failpoint's name is a literal"
                    sites.setdefault(argument.value, []).append(path)
    return sites


def test_every_name_has_a_call_site():
    assert {*failpoints.NAMES, *failpoints.OF_COMMANDS} <= set(_call_sites())


def test_every_call_site_has_a_name_of_the_list():
    assert set(_call_sites()) <= {*failpoints.NAMES, *failpoints.OF_COMMANDS}
