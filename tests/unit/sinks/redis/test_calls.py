"""The tables at the heads of the Lua files, compared with the functions, the page and the readers."""

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tidegate.sinks.redis.client.functions import FILES, names, readers

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "storage-format.md").read_text().partition("### Functions\n")[2]
OF_READERS = {*readers()} & {"pointer", "catalog", "schemas", "leases", "read", "scan", "present"}
WRITTEN_BY_READERS = {"lease", "release"}
REPEATED = re.compile(r"\([^()]*(?:\([^()]*\)\.\.\.[^()]*)?\)\.\.\.|\w+\.\.\.")


class Row(NamedTuple):
    """A function in the table of its file."""

    file: str
    arguments: str
    reply: str

    @property
    def parameters(self) -> list[str]:
        """The names of a Lua function's parameters; ``...`` are all that are repeated."""
        flat = REPEATED.sub("...", self.arguments.replace("[", "").replace("]", ""))
        return flat.split(", ") if flat else []


def text_of(file):
    return (ROOT / "sinks" / "redis" / "lua" / file).read_text()


def tables():
    """Yield each name with its row. An entry continues on lines that are indented further."""
    for file in FILES:
        head = re.match(r"(?:--.*\n)+", text_of(file))[0]
        for name, entry in re.findall(r"^--   (\w+): (.*(?:\n--     .*)*)", head, re.MULTILINE):
            arguments, arrow, reply = " ".join(re.split(r"\s*\n--\s*", entry)).partition("-> ")
            if arrow:
                yield name, Row(file, arguments.strip(), reply)


ROWS = dict(tables())


def test_each_function_has_one_row_in_its_file():
    assert sorted(name for name, _ in tables()) == sorted(names())
    for name, row in ROWS.items():
        assert re.search(rf"^(?:reads|writes)\.{name} = ", text_of(row.file), re.MULTILINE)


@pytest.mark.parametrize("name", names())
def test_a_function_takes_the_arguments_of_its_row(name):
    """A function without a guard gets ``args``, and unpacks the first ones."""
    row = ROWS[name]
    defined = re.search(rf"(?ms)^(?:reads|writes)\.{name} = (.*?)^end", text_of(row.file))[1]
    if guarded := re.match(r"\w+\(function\((?:key(?:, )?)?(.*)\)\n", defined):
        taken = guarded[1].split(", ") if guarded[1] else []
        assert len(taken) == len(row.parameters) or name == "header"  # its guard alone uses them
    else:
        assert defined.startswith("function(keys, args)\n")
        unpacked = r"local (?:key, )?(.*) = (?:unpack\(args, 1, \d\)|.*table\.remove\(args, 1\))"
        taken = re.search(unpacked, defined)[1].split(", ")
    assert taken == row.parameters[: len(taken)]


def limits():
    table = re.search(r"^local ARGS_MAX_OF = \{(.*?)\}", text_of("calls.lua"), re.MULTILINE | re.DOTALL)[1]
    return {name: int(most) for name, most in re.findall(r"(\w+) = (\d+)", table)}


def test_the_page_has_the_rows_of_readers():
    rows = re.findall(r"^\| `(\w+)` \| (?:`meta`|header|none) \| (.*?) ?\| (.*) \|$", PAGE, re.MULTILINE)
    shown = {name: (arguments.strip("`"), reply.replace("`", "")) for name, arguments, reply in rows}
    of_lua = {name: (ROWS[name].arguments, ROWS[name].reply.replace("`", "")) for name in shown}
    assert shown == of_lua
    assert set(shown) == OF_READERS | WRITTEN_BY_READERS


def test_the_page_has_the_limits():
    by_limit = {}
    for name, most in limits().items():
        by_limit.setdefault(most, set()).add(name)
    sentence = re.search(r"A function takes at most .*?\n\n", PAGE, re.DOTALL)[0]
    for most, of in by_limit.items():
        assert f"{most:,}" in sentence
        assert all(f"`{name}`" in sentence for name in of)
    keys = limits()["read"] - len(ROWS["read"].parameters) + 1
    assert f"{keys} keys at most" in ROWS["read"].reply


CALLED = {
    "Go": ("readers/go/*.go", r'\bn\.(?:call|rows)\((?:of, each\.group, |read\.of, read\.group, )?"(\w+)"'),
    "Java": ("readers/java/src/main/**/Redis*.java", r'\bof(?:Meta|Group)\("(\w+)"'),
}
WRITES = {
    "Go": ("readers/go/redis_calls.go", r'call\.function == "(\w+)" \|\| call\.function == "(\w+)"'),
    "Java": (
        "readers/java/src/main/java/dev/tidegate/reader/RedisStore.java",
        r'writes = function\.name\.equals\("(\w+)"\) \|\| function\.name\.equals\("(\w+)"\)',
    ),
}


@pytest.mark.parametrize("language", CALLED)
def test_another_reader_calls_functions_of_readers(language):
    files, pattern = CALLED[language]
    called = {name for path in ROOT.glob(files) for name in re.findall(pattern, path.read_text())}
    assert called == {"pointer", "catalog", "schemas", "read", "scan"} | WRITTEN_BY_READERS
    assert called <= OF_READERS | WRITTEN_BY_READERS


@pytest.mark.parametrize("language", WRITES)
def test_another_reader_knows_which_functions_write(language):
    file, pattern = WRITES[language]
    assert set(re.search(pattern, (ROOT / file).read_text()).groups()) == WRITTEN_BY_READERS


def test_the_vectors_name_functions_of_readers():
    vectors = json.loads((ROOT / "conformance" / "vectors" / "refusals.json").read_text())
    assert {each["call"] for each in vectors} <= OF_READERS | WRITTEN_BY_READERS
