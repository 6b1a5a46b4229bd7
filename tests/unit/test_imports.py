"""Imports go one way. A file may import what stands to its left, never what stands to its right:

errors, failpoints, options, key_groups <- wal <- the stores <- the client <- committers <- spark

The files are read, not imported, so nothing has to be installed and nothing is hidden inside a function.
"""

import ast
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]

# The layers, left to right. The rest of src/tidegate (the command line, the shipped suites) puts the layers
# together, so none of them may import it.
LAYERS = ["base", "wal", "sinks", "client", "committers", "spark"]
IN_SRC = {
    **dict.fromkeys(
        [
            "certificate",
            "checks",
            "deadline",
            "decoders",
            "errors",
            "forks",
            "failpoints",
            "options",
            "key_columns",
            "key_groups",
            "clock",
            "names",
            "local_dir",
            "durations",
            "source_offsets",
            "observing",
            "urls",
        ],
        "base",
    ),
    **dict.fromkeys(
        [
            *(
                "client",
                "alias_gate",
                "alias_spaces",
                "aio",
                "diff",
                "reading",
                "renewal",
                "row_checks",
                "snapshot",
                "value_encoding",
                "values",
            ),
            *("logs", "metrics", "spans"),
        ],
        "client",
    ),
}

# Files that say what happens and do nothing: the fold, the table of states, and other pure arithmetic.
PURE = [
    "committers/states.py",
    "sinks/layout.py",
    "sinks/state_chain.py",
    "sinks/state_lookup.py",
    "spark/assignment.py",
    "spark/redistribution.py",
    "src/tidegate/durations.py",
    "src/tidegate/key_columns.py",
    "src/tidegate/key_groups.py",
    "src/tidegate/row_checks.py",
    "src/tidegate/source_offsets.py",
    "src/tidegate/value_encoding.py",
    "src/tidegate/values.py",
    "wal/buffer_note.py",
    "wal/buffer_policy.py",
    "wal/buffer_space.py",
    "wal/expiring.py",
    "wal/fold.py",
    "wal/manifest.py",
    "wal/own_tables.py",
    "wal/record.py",
]
# Modules that reach outside the process, or that would make a pure function answer differently twice.
OUTSIDE = {
    *(
        "asyncio",
        "http",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
    ),
    *("socket", "sqlite3", "subprocess", "tempfile", "threading", "time", "urllib"),
    *("cassandra", "confluent_kafka", "kafka", "pyspark", "redis"),
}
OUTSIDE_BUILTINS = {"open", "input", "print"}

# The only places that may import PySpark.
PYSPARK = [
    "spark/",
    "examples/",
    "tests/spark/",
    "benchmarks/",
    "src/tidegate/bench/",
    "src/tidegate/cli/demo",
    "src/tidegate/cli/torture",
]
# Each server's client, and the files that may import it (their names say so).
CLIENTS = {"confluent_kafka": "kafka", "redis": "redis", "cassandra": "cassandra"}

FOLDERS = ["wal", "sinks", "committers", "spark"]
CODE = ["src", *FOLDERS, "examples", "benchmarks", "tests", "tools"]


def python_files(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def shown(path):
    return path.relative_to(ROOT).as_posix()


def imports_of(source):
    """Every module that the source imports, wherever in the file; `from a import b` counts as a and a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(module):
    """The layer of a dotted name inside tidegate; None for any other module and for the root package."""
    parts = module.split(".")
    if parts[0] != "tidegate" or len(parts) == 1:
        return None
    if parts[1] in IN_SRC:
        return IN_SRC[parts[1]]
    return parts[1] if parts[1] in LAYERS else "above"


def own_layer(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[:2] == ("src", "tidegate"):
        return IN_SRC.get(parts[2])
    return parts[0]


def upward_imports(source, layer):
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    return [
        name for name in imports_of(source) if (found := layer_of(name)) is not None and found not in allowed
    ]


def impurities(source):
    modules = {name.split(".")[0] for name in imports_of(source)} & OUTSIDE
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OUTSIDE_BUILTINS
    }
    return sorted(modules | calls)


LAYERED = [path for path in python_files(*FOLDERS, "src") if own_layer(path)]


@pytest.mark.parametrize("path", LAYERED, ids=shown)
def test_imports_go_one_way(path):
    assert upward_imports(path.read_text(), own_layer(path)) == []


@pytest.mark.parametrize("name", PURE)
def test_pure_files_reach_nothing_outside(name):
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"{name} is not there yet")
    assert impurities(path.read_text()) == []


def test_only_the_spark_side_imports_pyspark():
    for path in python_files(*CODE):
        if not shown(path).startswith(tuple(PYSPARK)):
            roots = {name.split(".")[0] for name in imports_of(path.read_text())}
            assert "pyspark" not in roots, shown(path)


def test_a_servers_client_is_imported_only_by_files_named_after_it():
    for path in python_files("src", *FOLDERS):
        roots = {name.split(".")[0] for name in imports_of(path.read_text())}
        for module, word in CLIENTS.items():
            assert module not in roots or word in path.stem, f"{shown(path)} imports {module}"


def test_no_file_imports_a_literal_folder():
    for path in python_files(*CODE):
        roots = {name.split(".")[0] for name in imports_of(path.read_text())}
        assert not roots & {*FOLDERS, "src"}, shown(path)


def test_no_file_has_the_name_of_what_it_imports():
    names = {"cassandra", "confluent_kafka", "kafka", "redis", "sqlite3", "pyspark"} | sys.stdlib_module_names
    allowed = {"__init__", "__main__", "types"}
    for path in python_files(*FOLDERS):
        assert path.stem not in names - allowed, shown(path)


def test_pyproject_lists_every_folder_that_holds_python_files():
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)["tool"]["setuptools"]
    mapping = {ROOT / folder: name for name, folder in settings["package-dir"].items()}
    found = set()
    for top, package in mapping.items():
        for path in top.rglob("*.py"):
            inside = path.parent.relative_to(top).parts
            found.add(".".join((package, *inside)))
    assert found == set(settings["packages"])


# The checks themselves are checked: a check that cannot fail protects nothing.


@pytest.mark.parametrize(
    "source,layer",
    [
        ("import tidegate.spark.sink", "committers"),
        ("from tidegate import client", "wal"),
        ("import tidegate.cli", "spark"),
        ("from tidegate.sinks.store import Store", "wal"),
        ("def f():\n    from tidegate.committers import commit", "sinks"),
        ("from tidegate.wal.fold import fold", "base"),
    ],
)
def test_upward_imports_are_found(source, layer):
    assert upward_imports(source, layer)


def test_downward_imports_are_allowed():
    source = (
        "from tidegate.errors import ConfigError\nfrom tidegate.wal import fold\nimport tidegate.sinks.store"
    )
    assert upward_imports(source, "committers") == []


@pytest.mark.parametrize(
    "source", ["import time", "from redis.client import Redis", "def f():\n    open('x')"]
)
def test_impurities_are_found(source):
    assert impurities(source)
