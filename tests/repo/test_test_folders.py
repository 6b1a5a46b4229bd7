"""Tests write into folders of their own: a fixed path under /tmp may be another process's."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
# The folder of the README's example, which the tests replace by one of their own.
OF_PAGES = {"/tmp/tide"}
SHARED = "/tmp"


def in_the_shared_folder(source):
    """The strings of Python code that name a path under /tmp, docstrings left out."""
    tree = ast.parse(source)
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in bare)
    return [
        s.value
        for s in strings
        if isinstance(s.value, str) and f"{SHARED}/" in s.value and s.value not in OF_PAGES
    ]


@pytest.mark.parametrize(
    "code", ['open("/tmp/x")', 'run(f"--wal=file:///tmp/{name}")', '{"a": "sqlite:///tmp/x"}']
)
def test_a_path_in_the_shared_folder_is_noticed(code):
    assert in_the_shared_folder(code)


def test_no_test_names_a_path_in_the_shared_folder():
    named = {
        str(file.relative_to(TESTS)): found
        for file in sorted(TESTS.rglob("*.py"))
        if file != Path(__file__) and (found := in_the_shared_folder(file.read_text()))
    }
    assert not named, f"use tmp_path: {named}"
