"""docs/reading-the-code.md names files, functions and rooms that exist."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reading-the-code.md").read_text()
FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|lua))`")
AFTER_A_FILE = re.compile(FILE.pattern + r": ((?:`[\w.]+`(?:, (?:then )?| and )?)+)")
LUA = re.compile(r"^(?:reads|writes)\.(\w+) =|^local function (\w+)", re.MULTILINE)


def layers():
    spec = importlib.util.spec_from_file_location(
        "imports_of_rooms", Path(__file__).parent / "test_imports.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.LAYERS


def defined_in(path):
    """The names of functions, methods, classes and constants of a file."""
    text = path.read_text()
    if path.suffix == ".lua":
        return {name for pair in LUA.findall(text) for name in pair if name}
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            if isinstance(node, ast.ClassDef):
                names |= {
                    f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)
                }
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("name", sorted(set(FILE.findall(PAGE))))
def test_each_file_exists(name):
    assert (ROOT / name).is_file()


def named():
    flat = re.sub(r"\s*\n\s+", " ", PAGE)
    for found in AFTER_A_FILE.finditer(flat):
        for name in re.findall(r"`([\w.]+)`", found[2]):
            yield found[1], name


@pytest.mark.parametrize("file,name", sorted(set(named())))
def test_each_name_is_defined_in_the_file_before_it(file, name):
    assert name in defined_in(ROOT / file)


def test_the_map_has_every_room_in_the_order_of_the_imports():
    table = PAGE.partition("## The map")[2].partition("Inside a room")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == layers()


@pytest.mark.parametrize(
    "folder", sorted(set(re.findall(r"`((?:wal|sinks|committers|spark|tests)/[\w/]*/?)`", PAGE)))
)
def test_each_folder_exists(folder):
    assert (ROOT / folder).is_dir()


def test_names_are_found():
    assert len(set(named())) > 50
