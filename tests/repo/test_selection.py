"""tests/selection.toml names tests that exist, and every test belongs to a room."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _tool("tests")
SELECTED = [*TOOL.promise(), *TOOL.SELECTION["oldest"]["tests"]]
SUITES = "".join(path.read_text() for path in (ROOT / "src/tidegate/testing").glob("*/*.py"))
INVARIANTS = re.findall(r"^\| (I\d+) ", (ROOT / "docs/protocol.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("test", SELECTED)
def test_what_is_selected_exists(test):
    path, _, rest = test.partition("::")
    if not rest:
        assert (ROOT / path).exists()
        return
    text = (ROOT / path).read_text()
    of_class, _, name = rest.partition("[")[0].rpartition("::")
    if of_class:
        assert f"class {of_class}(" in text
    assert f"def {name}(" in (text + SUITES if of_class else text) or name == "runTest"


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_a_test_of_each_invariant_was_seen_red(invariant):
    """A mutant that breaks it, and the test that notices, which belongs to the selection."""
    rows = (ROOT / "docs/mutants.md").read_text()
    assert re.search(rf"^\| \S+ \| {invariant}: .*\| `tests/", rows, re.MULTILINE)


def test_each_test_file_belongs_to_a_room():
    rooms = [ROOT / path for room in TOOL.SELECTION["room"] for path in room["tests"]]
    assert [str(path) for path in rooms if not path.exists()] == []
    files = (ROOT / "tests").rglob("test_*.py")
    left = [str(file) for file in files if not any(room == file or room in file.parents for room in rooms)]
    assert left == []


def test_no_test_belongs_to_two_rooms():
    paths = [Path(path) for room in TOOL.SELECTION["room"] for path in room["tests"]]
    assert [
        str(path) for path in paths if paths.count(path) > 1 or any(of in path.parents for of in paths)
    ] == []


def test_each_folder_of_code_belongs_to_a_room():
    code = {folder for room in TOOL.SELECTION["room"] for folder in room["code"]}
    assert [folder for folder in code if not (ROOT / folder).exists()] == []
    folders = [
        "wal",
        "sinks",
        "committers",
        "spark",
        *(
            f"src/tidegate/{p.name}"
            for p in (ROOT / "src/tidegate").iterdir()
            if p.is_dir() and p.name != "__pycache__"
        ),
    ]
    assert [folder for folder in folders if folder not in code] == []


PROVE = _tool("prove")


@pytest.mark.parametrize("part", PROVE.PARTS, ids=lambda part: part.name)
def test_a_part_of_the_proof_names_what_there_is(part):
    targets = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text())
    words = [*PROVE.words_of(part, 1, "/nowhere"), *part.whole.split()]
    assert not [word for word in words if "{" in word and word not in ("{kafka}", "{redis}")]
    assert all((ROOT / word).exists() for word in words if word.startswith(("tests/", "tools/")))
    assert all(target in targets for target in re.findall(r"make ([a-z-]+)", part.whole))
    assert re.compile(part.counts).groups == 1


def test_a_part_that_counts_nothing_or_fails_is_no_proof():
    """A part holds only if its command succeeds and its output has the count."""
    part = PROVE.PARTS[0]._replace(counts="([0-9]+ passed)")
    for command, held in (
        ("echo 3 passed", True),
        ("echo none", False),
        ("sh -c 'echo 3 passed; exit 1'", False),
    ):
        assert PROVE.run(part._replace(command=command), 1)[0] is held
