"""Each command that a message proposes runs as it is printed: it has its arguments."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.cli.core.app import COMMANDS, command

ROOT = Path(__file__).parents[2]
FOLDERS = ("committers", "sinks", "wal", "spark", "src/tidegate")
NAMED_ONLY = {
    "committers/coordinator.py": "store remove",  # the writer of a note
    "committers/transfer/backup/chain.py": "backup",  # the maker of a folder
    "committers/exports/export_format.py": "export",
    "spark/source/exported.py": "export",
    "src/tidegate/cli/core/parquet.py": "quarantine export",
}
"""Commands that a message names, and does not propose."""
EITHER = {"adopt": ("--lineage", "--checkpoint")}
"""Commands that need one of several options."""


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Yield the texts outside docstrings, with 1 in place of each interpolation."""
    parents = [each for each in ast.walk(tree) if isinstance(getattr(each, "body", None), list)]
    docstrings = {id(each.value) for parent in parents for each in parent.body if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "1" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def advised() -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for text in texts_of(ast.parse(path.read_text())):
                for line in re.findall(r"`tidegate ([^`]+)`", text):
                    yield path.relative_to(ROOT).as_posix(), line


command_of = functools.cache(command)


def lacks(line: str) -> str:
    """Find the first part that a command lacks; '': it has all."""
    name, *words = line.split()
    if name not in COMMANDS:
        return "a command of this name"
    called = command_of(name)
    if commands := getattr(called, "commands", None):
        called = commands[words.pop(0)]
    options = {name: each for each in called.params for name in (*each.opts, *each.secondary_opts)}
    arguments, used = 0, set()
    while words:
        word, *words = words
        if not word.startswith("-"):
            arguments += 1
            continue
        if word not in options:
            return f"an option {word}"
        used.add(options[word].name)
        if not options[word].is_flag and not words:
            return f"the value of {word}"
        words = words[0 if options[word].is_flag else 1 :]
    required = [each for each in called.params if each.required and not each.envvar]  # these are set once
    missing = [each.name for each in required if each.param_type_name == "argument"][arguments:]
    missing += [each.name for each in required if each.param_type_name == "option" and each.name not in used]
    if missing:
        return missing[0]
    either = EITHER.get(name, ())
    return "" if not either or any(option in line for option in either) else " or ".join(either)


def test_each_command_of_a_message_has_what_it_needs() -> None:
    lacking = [
        f"{path}: `tidegate {line}` lacks {part}"
        for path, line in sorted(set(advised()))
        if not line.startswith(NAMED_ONLY.get(path, "-")) and (part := lacks(line))
    ]
    assert not lacking, "\n".join(lacking)


@pytest.mark.parametrize(
    "line,part",
    [
        ("adopt", "--lineage or --checkpoint"),
        ("store add", "new"),
        ("repair --from", "the value of --from"),
        ("import", "folder"),
        ("restore", "to"),
        ("recover --never", "an option --never"),
        ("nothing", "a command of this name"),
    ],
)
def test_a_command_without_what_it_needs_is_found(line: str, part: str) -> None:
    assert lacks(line) == part


ASKED_ONLY = ("sinks/rules/reads.py", "sinks/redis/upkeep/usage.py", "sinks/cassandra/node_checks.py")
"""Files that name a drop, and propose none."""


def test_a_drop_that_is_proposed_names_its_namespace() -> None:
    """Red before: a command with two namespaces gave its source to the drop of its target."""
    unnamed = {
        f"{path}: {line}"
        for path, line in advised()
        if line.split()[0] == "drop" and not re.search("--namespace|--only-stores", line)
        if path.partition("/")[0] in ("committers", "wal", "sinks", "spark") and path not in ASKED_ONLY
    }
    assert not unnamed


def of_servers(text: str) -> list[str]:
    """Find the commands of Redis and Kafka that do not name their server."""
    lines = re.findall(
        r"`(redis-cli --cluster [^`]+|kafka-(?:acls|configs|reassign-partitions) [^`]+)`", text
    )
    return [line for line in lines if not re.search(r"HOST:PORT|--bootstrap-server|\d:\d", line)]


def test_each_command_for_servers_names_one() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.yml")]
    texts = [(path, path.read_text()) for path in pages]
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            texts += [(path, text) for text in texts_of(ast.parse(path.read_text()))]
    lacking = [f"{path.relative_to(ROOT)}: `{line}`" for path, text in texts for line in of_servers(text)]
    assert not lacking, "\n".join(lacking)


def test_a_command_without_a_server_is_found() -> None:
    text = (
        "`redis-cli --cluster fix`, `redis-cli --cluster fix HOST:PORT`, `kafka-acls --add --operation Read`"
    )
    assert of_servers(text) == ["redis-cli --cluster fix", "kafka-acls --add --operation Read"]
