"""The examples on README.md and the pages of docs/: they compile, and name what there is.

A block behind ``<!-- runs in tests/repo/test_pages.py -->`` is run here, on SQLite. Others run elsewhere:
README's first in tests/spark/test_readme.py, docs/state.md's in tests/spark/test_state_page.py.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime
import importlib
import inspect
import json
import logging
import re
import textwrap
from pathlib import Path

import pytest
import yaml

import tidegate
from tidegate import aio
from tidegate.cli.core.app import COMMANDS, command
from tidegate.options import Options
from tidegate.reader import table
from tidegate.testing.example import BATCHES, Example
from tidegate.torture.history.files import Recorder

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
RUNS = "<!-- runs in tests/repo/test_pages.py -->"


def blocks():
    for page in PAGES:
        for found in re.finditer(r"([^\n]*)\n *```python\n(.*?)\n *```", page.read_text(), re.DOTALL):
            yield page, found[1].strip() == RUNS, textwrap.dedent(found[2])


BLOCKS = [pytest.param(code, id=f"{page.name}-{n}") for n, (page, _, code) in enumerate(blocks())]


# -- they name what there is -----------------------------------------------------------------------------


def kinds(code):
    """What the names stand for that the pages use everywhere."""
    spark = importlib.import_module("tidegate.spark")
    readers = {
        "gate": tidegate.Gate,
        "snap": tidegate.Snapshot,
        "table()": tidegate.Table,
        "scan()": table.Scan,
    }
    if "aio" in code:
        readers = {"gate": aio.Gate, "snap": aio.Snapshot, "table()": aio.Table, "scan()": aio.Scan}
    return {**readers, "txn": spark.Transaction, "sink": spark.VersionedSink, "recorder": Recorder}


def owner_of(node, known):
    """The class that a method is called on; None: not one of ours."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and owner_of(node.func.value, known)
    ):
        return known.get(f"{node.func.attr}()")
    return None


def wrong_in(code):
    """What the block calls or imports that is not there, or not so."""
    tree = compile(code, "page", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    known, imported = kinds(code), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):  # a module within a package
                    importlib.import_module(f"{node.module}.{alias.name}")
                imported[alias.name] = getattr(module, alias.name)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called, bound = None, False
        if isinstance(node.func, ast.Name):
            called = imported.get(node.func.id)
        elif isinstance(node.func, ast.Attribute) and (owner := owner_of(node.func.value, known)):
            called = getattr(owner, node.func.attr, None)
            bound = not isinstance(inspect.getattr_static(owner, node.func.attr, None), staticmethod)
            if called is None:
                yield f"{owner.__name__} has no {node.func.attr}"
        if called is not None and getattr(called, "__module__", "").startswith("tidegate"):
            yield from unfit(called, node, bound=bound)


def unfit(called, node, *, bound):
    names = {keyword.arg: None for keyword in node.keywords if keyword.arg}
    signature = inspect.signature(called)
    if called.__name__ == "VersionedSink":  # its **options are fields of Options
        there = {*signature.parameters, *(field.name for field in dataclasses.fields(Options))}
        yield from (f"VersionedSink has no {name}" for name in names.keys() - there)
    try:
        signature.bind_partial(*[None] * (len(node.args) + bound), **names)
    except TypeError as error:
        yield f"{called.__name__}: {error}"


@pytest.mark.parametrize("code", BLOCKS)
def test_each_example_compiles_and_names_what_there_is(code):
    assert list(wrong_in(code)) == []


@pytest.mark.parametrize(
    "code,told",
    [
        ("gate.tabel('t')", "Gate has no tabel"),
        ("gate.wait_for(versions=3)", "unexpected keyword"),
        ("gate.table('t').got(1)", "Table has no got"),
        (
            "from tidegate.spark import VersionedSink\nVersionedSink(namespace='n', keepversions=3)",
            "keepversions",
        ),
    ],
)
def test_a_wrong_name_is_found(code, told):
    assert told in "".join(wrong_in(code))


# -- the reference has them all ----------------------------------------------------------------------------

REFERENCE = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "reference").glob("*.md")))


@pytest.mark.parametrize("module", ["tidegate", "tidegate.aio", "tidegate.spark"])
def test_each_public_name_stands_in_the_reference(module):
    public = importlib.import_module(module)
    for name in set(public.__all__) - {"__version__", "errors"}:
        found = getattr(public, name)
        assert found.__doc__, name
        places = (f"{found.__module__}.{name}", found.__module__)  # errors: the whole module
        assert any(re.search(rf"^::: {re.escape(place)}$", REFERENCE, re.MULTILINE) for place in places), name


MENU = yaml.safe_load((ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2].partition("\n")[2])


def in_menu(entries):
    for entry in entries:
        for place in entry.values():
            yield from in_menu(place) if isinstance(place, list) else [place]


def linked_pages(page):
    for link in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text()):
        target = (page.parent / link).resolve()
        if target.is_relative_to(ROOT / "docs"):
            yield target


def test_the_menu_is_short():
    assert len(MENU) <= 12


@pytest.mark.parametrize(
    "page, lines", [("README.md", 70), ("SECURITY.md", 40), ("docs/scope.md", 60), ("docs/design.md", 250)]
)
def test_what_a_stranger_reads_first_is_short(page, lines):
    assert len((ROOT / page).read_text().splitlines()) <= lines


def test_each_page_is_in_the_menu_or_reachable_from_it():
    reached, waiting = set(), [ROOT / "docs" / place for place in in_menu(MENU)]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += linked_pages(page)
    assert reached == set((ROOT / "docs").rglob("*.md"))


def test_no_page_has_a_place_that_was_to_be_filled_in():
    """Prose only: in code such words may be names."""
    empty = re.compile(r"(?<![`/-])\b(RESULTS?|CASES|SHORT|FIGURES?|TODO|FIXME|TBD|XXX)\b(?!`)")
    found = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "readers").glob("*/*.md")]
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if empty.search(line)
    ]
    assert found == []


# -- commands --------------------------------------------------------------------------------------------


def commands():
    for page in PAGES:
        text = page.read_text()
        fenced = "\n".join(re.findall(r"```(?:sh)?\n(.*?)```", text, re.DOTALL))
        found = re.findall(r"`tidegate ([^`]+)`", text)
        found += re.findall(r"^ *(?:tools/run )?tidegate (.+)$", fenced, re.MULTILINE)
        for line in found:
            yield page.name, " ".join(line.split())


def of_tree(words):
    """The command that these words call, and those behind it. KeyError: there is none."""
    found, rest = command(words[0]), words[1:]
    below = getattr(found, "commands", None)
    return (below[rest[0]], rest[1:]) if below and rest else (found, rest)


@pytest.mark.parametrize("page,line", sorted(set(commands())))
def test_each_command_on_a_page_has_the_options_that_stand_there(page, line):
    first = line.split()[0]
    if first not in COMMANDS:
        assert first.isupper() or first.startswith(("-", "...")) or "|" in line, line
        return
    found, rest = of_tree(re.split(r"[\s|]+", line.split(" | ")[0].split(" > ")[0]))
    options = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.partition("=")[0].rstrip(",;:)") for word in rest if word.startswith("--") and word != "--"}
    assert given <= {*options, "--help"}, line


def taking(option):
    """The commands, those of groups too, and whether each takes the option."""
    for name in COMMANDS:
        found = command(name)
        below = getattr(found, "commands", None) or {"": found}
        for inner, leaf in below.items():
            yield f"{name} {inner}".strip(), any(option in parameter.opts for parameter in leaf.params)


CLI = (ROOT / "docs" / "cli.md").read_text()
EXEMPT = re.search(r"^All commands but (.*) take these options where", CLI, re.MULTILINE)[1]


@pytest.mark.parametrize("option", ["--allow-unsafe", "--wal", "--namespace", "--json"])
def test_the_table_of_options_names_the_commands_that_take_it_or_do_not(option):
    row = re.search(rf"^\| `{option}(?: \w+)?` \|[^|]*\| (.*) \|$", CLI, re.MULTILINE)[1]
    takes = dict(taking(option))
    if option == "--allow-unsafe":
        told = set(re.findall(r"`([a-z -]+)`", row.partition(":")[0]))
        assert told == {name for name, there in takes.items() if there}
        return
    negative = next((part for part in row.split("; ") if "not take it" in part), "")
    told = set(re.findall(r"`([a-z -]+)`", negative))
    without = {name for name, there in takes.items() if not there and f"`{name}`" not in EXEMPT}
    assert {one for name in told for one in takes if one == name or one.startswith(f"{name} ")} == without


def test_the_commands_that_refuse_beside_a_writer_are_all_named():
    told = re.search(r"^(`recover`.*?) fence the writer", CLI, re.MULTILINE | re.DOTALL)[1]
    forcing = {name for name, there in taking("--force") if there}
    forcing -= {"drop", "alias set", "rebuild-checkpoint"}
    assert set(re.findall(r"`([a-z -]+)`", told)) == forcing


# -- they run --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A namespace with 42 versions, the last with offsets of Kafka."""
    tmp_path = tmp_path_factory.mktemp("served")
    example = Example(
        f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=Options(keep_versions=100)
    )
    for number in range(41):
        example.write(BATCHES[number % len(BATCHES)])
    example.write(BATCHES[0], source_offsets=json.dumps({"orders": {"0": 42}}))
    yield f"sqlite://{tmp_path}/store"
    example.close()


RUNNING = [pytest.param(code, id=f"{page.name}-{n}") for n, (page, runs, code) in enumerate(blocks()) if runs]


@pytest.mark.parametrize("code", RUNNING)
def test_what_is_marked_so_runs(code, served):
    logger = logging.getLogger("tidegate")
    before = logger.level, list(logger.handlers)
    pasted = {"some_aware_datetime": datetime.datetime.now(datetime.timezone.utc)}
    wal = served.replace("sqlite:", "file:").removesuffix("store") + "wal"
    here = code.replace("sqlite:///data/store", served).replace("file:///data/wal", wal)
    try:
        exec(compile(here, "page", "exec"), pasted)
        if "gate" in pasted:
            pasted["gate"].close()
    finally:
        logger.level, logger.handlers = before


@pytest.mark.parametrize(
    "page, source",
    [("docs/index.md", "README.md"), ("docs/tutorial.md", "examples/tutorial/departures.py")],
)
def test_a_program_that_two_places_show_is_the_same(page, source):
    text = (ROOT / source).read_text()
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1] if source.endswith(".md") else text
    assert f"```python\n{program}```" in (ROOT / page).read_text()


def test_some_are_marked():
    assert len(RUNNING) >= 2
