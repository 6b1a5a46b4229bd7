"""The weight of the house: lines of code by room, lines of each file, options and commands.

tests/repo/budget.toml has the limits. A change that needs more raises its limit in the same commit, whose
message has the reason. A line of code has a token that is no comment and no docstring; in other languages
than Python every line counts.
"""

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from tidegate.cli.core.app import COMMANDS
from tidegate.options import SinkOptions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
BUDGET = tomllib.loads((ROOT / "tests/repo/budget.toml").read_text())
LANGUAGES = {".py", ".lua", ".js", ".go", ".java", ".cql", ".css", ".html", ".sh"}
PRODUCT = ("wal", "sinks", "committers", "spark", "src", "readers", "examples", "tools", "benchmarks")
SLACK = 1.02
"""How far a limit may be above the count: a room that shrank keeps no room to grow again without a reason."""


def product_files():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PRODUCT],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    paths = [Path(name) for name in listed.decode().split("\0") if name]
    return [path for path in paths if path.suffix in LANGUAGES and (ROOT / path).exists()]


def lines_of_code(source):
    """The lines of a Python source that have code: no comment, no docstring, no blank line."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            docstrings.update(range(node.lineno, node.end_lineno + 1))
    passed = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in passed:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


def room_of(path):
    """The longest prefix of the path that has a budget."""
    rooms = [room for room in BUDGET["rooms"] if path.is_relative_to(room)]
    return max(rooms, key=len, default=None)


def counted():
    rooms = dict.fromkeys(BUDGET["rooms"], 0)
    for path in product_files():
        room = room_of(path)
        if room is not None:
            text = (ROOT / path).read_text()
            rooms[room] += lines_of_code(text) if path.suffix == ".py" else len(text.splitlines())
    return rooms


def test_docstrings_comments_and_blank_lines_are_no_code():
    assert (
        lines_of_code(
            '"""A module."""\n\n# text\nx = 1  # text\n\n\ndef f():\n    """Do."""\n    return """\n\n"""\n'
        )
        == 5
    )


def test_each_room_keeps_its_budget():
    """`rooms` of budget.toml: the most lines of code of a folder, without those that it lists apart."""
    rooms = counted()
    more = {room: lines for room, lines in rooms.items() if lines > BUDGET["rooms"][room]}
    assert not more, f"more lines than tests/repo/budget.toml allows: {more}"
    slack = {room: lines for room, lines in rooms.items() if lines * SLACK + 10 < BUDGET["rooms"][room]}
    assert not slack, f"lower the limits in tests/repo/budget.toml: {slack}"


def test_each_part_of_the_product_has_a_budget():
    assert not [path.as_posix() for path in product_files() if room_of(path) is None]


def test_no_file_is_longer_than_500_lines():
    """`files` of budget.toml lists the longer ones, with the lines that they may have: it only shrinks."""
    long = {}
    for path in product_files():
        lines = len((ROOT / path).read_text().splitlines())
        if lines > BUDGET["lines"]:
            long[path.as_posix()] = lines
    more = {path: lines for path, lines in long.items() if lines > BUDGET["files"].get(path, 0)}
    assert not more, f"longer than {BUDGET['lines']} lines: {more}"
    gone = [path for path in BUDGET["files"] if path not in long]
    assert not gone, f"no longer too long, remove from tests/repo/budget.toml: {gone}"


COUNTS = {"commands": len(COMMANDS), "options": len(SinkOptions.__annotations__)}


@pytest.mark.parametrize("what, count", COUNTS.items())
def test_commands_and_options_keep_their_budget(what, count):
    """docs/scope.md: when a new one is refused."""
    assert count == BUDGET[what]
