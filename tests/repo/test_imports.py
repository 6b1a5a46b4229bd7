"""Imports go one way, and never in a circle: between rooms, folders and modules.

The files are read, not imported, so nothing has to be installed and nothing is hidden inside a function.
Imports for type checkers alone count, too.
"""

import ast
import subprocess
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]

# Every room of the package, from the bottom up. A room may import the rooms before it in this list.
LAYERS = [
    "errors",
    "base",
    "keys",
    "options",
    "observe",
    "wal",
    "sinks",
    "values",
    "reader",
    "aio",
    "committers",
    "spark",
    "status",
    "ui",
    "testing",
    "torture",
    "bench",
    "cli",
    "__main__",
    "demo",
]

# Who needs what: a writer or a reader needs the library alone. Modules that no prefix names are the library.
ZONES = {
    "tools": [
        "tidegate.cli",
        "tidegate.status",
        "tidegate.ui",
        "tidegate.committers.operations",
        "tidegate.committers.transfer",
        "tidegate.__main__",
    ],
    "proofs": [
        "tidegate.testing",
        "tidegate.torture",
        "tidegate.bench",
        "tidegate.demo",
        "tidegate.cli.trials",  # the commands that start them
    ],
}
MAY_IMPORT = {"library": {"library"}, "tools": {"library", "tools"}, "proofs": {"library", "tools", "proofs"}}

ENTRIES_MAX = 14
"""How many entries a folder of the package has at most, ``__init__.py`` not counted."""
UNCOUNTED = {"__init__.py", "__main__.py", "__pycache__", "py.typed"}

# Files that say what happens and do nothing: the fold, the table of states, and other pure arithmetic.
PURE = [
    "committers/states.py",
    "sinks/cache/buffer/allocator.py",
    "sinks/cache/buffer/note.py",
    "sinks/cache/buffer/policy.py",
    "sinks/cache/links.py",
    "sinks/cache/lookup.py",
    "sinks/records.py",
    "sinks/rules/layout.py",
    "sinks/rules/seals.py",
    "sinks/rules/visible.py",
    "spark/placement/assignment.py",
    "spark/state/redistribution.py",
    "src/tidegate/options/durations.py",
    "src/tidegate/base/source_offsets.py",
    "src/tidegate/keys/columns.py",
    "src/tidegate/keys/groups.py",
    "src/tidegate/values/decode.py",
    "src/tidegate/values/encode.py",
    "src/tidegate/values/evolve.py",
    "src/tidegate/values/kinds.py",
    "src/tidegate/values/row_checks.py",
    "wal/fold.py",
    "wal/manifest.py",
    "wal/record.py",
    "wal/staging/acks.py",
    "wal/staging/expiry.py",
    "wal/staging/own_tables.py",
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
    "tests/typing/writer.py",  # a writer's code
    "tests/support/spark_driver.py",  # the session of drivers in tests/spark, imported in a function
    "benchmarks/",
    "src/tidegate/bench/",
    "src/tidegate/cli/trials/",
    "src/tidegate/torture/spark_app/",
]
# Each server's client, and a part of the path of each file that may import it.
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


def modules():
    """The path of every module, by its dotted name."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        mapping = tomllib.load(file)["tool"]["setuptools"]["package-dir"]
    found = {}
    for package, folder in mapping.items():
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT / folder).with_suffix("").parts
            parts = (package, *(inside[:-1] if inside[-1] == "__init__" else inside))
            found[".".join(parts)] = path
    return found


def room_of(module):
    """The room of a dotted name inside tidegate; None for any other module and for the root package."""
    parts = module.split(".")
    return parts[1] if parts[0] == "tidegate" and len(parts) > 1 and parts[1] in LAYERS else None


def zone_of(module):
    """The zone of a dotted name inside tidegate: that of the longest prefix that names it."""
    prefixes = [
        (len(prefix), zone)
        for zone, names in ZONES.items()
        for prefix in names
        if f"{module}.".startswith(f"{prefix}.")
    ]
    return max(prefixes)[1] if prefixes else "library"


def through_walls(module, source):
    allowed = MAY_IMPORT[zone_of(module)]
    return [
        name for name in imports_of(source) if name.startswith("tidegate.") and not {zone_of(name)} <= allowed
    ]


def upward_imports(source, room):
    allowed = LAYERS[: LAYERS.index(room) + 1]
    return [
        name for name in imports_of(source) if (other := room_of(name)) is not None and other not in allowed
    ]


def graph(sources):
    """Which modules each module imports, from the text of each: {name: {name, ...}}."""
    edges = defaultdict(set)
    for name, source in sources.items():
        for imported in imports_of(source):
            target = imported if imported in sources else imported.rpartition(".")[0]
            if target in sources and target != name:
                edges[name].add(target)
    return edges


def circle(edges):
    """One circle, as a list of names; None: there is none."""
    try:
        tuple(TopologicalSorter(edges).static_order())
    except CycleError as error:
        return error.args[1]
    return None


def between(edges, folder):
    """The same between the entries of one folder: what one of them holds imports what another holds."""
    depth = folder.count(".") + 2
    up = defaultdict(set)
    for name, targets in edges.items():
        for target in targets:
            if name.startswith(f"{folder}.") and target.startswith(f"{folder}."):
                one, other = (".".join(each.split(".")[:depth]) for each in (name, target))
                if one != other:
                    up[one].add(other)
    return up


def impurities(source):
    modules = {name.split(".")[0] for name in imports_of(source)} & OUTSIDE
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OUTSIDE_BUILTINS
    }
    return sorted(modules | calls)


MODULES = modules()
EDGES = graph({name: path.read_text() for name, path in MODULES.items()})
PACKAGES = sorted(name for name, path in MODULES.items() if path.name == "__init__.py")


def test_imports_go_one_way():
    upward = {
        name: upward_imports(path.read_text(), name.split(".")[1])
        for name, path in MODULES.items()
        if name.startswith("tidegate.")
    }
    assert {name: imported for name, imported in upward.items() if imported} == {}


def test_the_library_imports_neither_tools_nor_proofs():
    """Nor do the tools import the proofs: each zone works where those above it are not installed."""
    through = {name: through_walls(name, path.read_text()) for name, path in MODULES.items()}
    assert {name: imported for name, imported in through.items() if imported} == {}


@pytest.mark.parametrize("zone, names", ZONES.items())
def test_each_prefix_of_a_zone_names_a_module(zone, names):
    assert [name for name in names if name not in MODULES] == []


def test_no_module_imports_itself_through_others():
    assert circle(EDGES) is None


@pytest.mark.parametrize("package", PACKAGES)
def test_the_entries_of_a_folder_form_no_circle(package):
    assert circle(between(EDGES, package)) is None


@pytest.mark.parametrize("package", PACKAGES)
def test_a_folder_can_be_taken_in_at_a_look(package):
    folder = MODULES[package].parent
    assert len({path.name for path in folder.iterdir()} - UNCOUNTED) <= ENTRIES_MAX
    lines = ast.get_docstring(ast.parse(MODULES[package].read_text()))
    assert lines, f"{package} does not say what is in it"


@pytest.mark.parametrize("name", PURE)
def test_pure_files_reach_nothing_outside(name):
    assert impurities((ROOT / name).read_text()) == []


def test_only_the_spark_side_imports_pyspark():
    for path in python_files(*CODE):
        if not shown(path).startswith(tuple(PYSPARK)):
            roots = {name.split(".")[0] for name in imports_of(path.read_text())}
            assert "pyspark" not in roots, shown(path)


def test_a_servers_client_is_imported_only_by_paths_named_after_it():
    for path in python_files("src", *FOLDERS):
        roots = {name.split(".")[0] for name in imports_of(path.read_text())}
        for module, word in CLIENTS.items():
            assert module not in roots or word in shown(path), f"{shown(path)} imports {module}"


def test_no_file_imports_a_literal_folder():
    for path in python_files(*CODE):
        roots = {name.split(".")[0] for name in imports_of(path.read_text())}
        assert not roots & {*FOLDERS, "src"}, shown(path)


def test_unit_tests_are_in_folders_named_after_the_code():
    homes = [ROOT / "src" / "tidegate", ROOT]
    for folder in (path for path in (ROOT / "tests" / "unit").rglob("*") if any(path.glob("test_*.py"))):
        inside = folder.relative_to(ROOT / "tests" / "unit")
        assert any((home / inside).is_dir() for home in homes), f"{inside}: there is no code of that name"


def test_pyproject_lists_every_folder_that_holds_python_files():
    subprocess.run([sys.executable, "tools/packages.py", "--check"], cwd=ROOT, check=True)


# The checks themselves are checked: a check that cannot fail protects nothing.


@pytest.mark.parametrize(
    "source,room",
    [
        ("import tidegate.spark.sink", "committers"),
        ("from tidegate import reader", "wal"),
        ("import tidegate.cli", "spark"),
        ("from tidegate.sinks.store import Store", "wal"),
        ("def f():\n    from tidegate.committers import commit", "sinks"),
        ("from tidegate.wal.fold import fold", "base"),
    ],
)
def test_upward_imports_are_found(source, room):
    assert upward_imports(source, room)


@pytest.mark.parametrize(
    "module, source, is_through",
    [
        ("tidegate.spark.sink", "from tidegate.committers.operations import drop", True),
        ("tidegate.committers.commit", "def f():\n    import tidegate.torture.run", True),
        ("tidegate.cli.inspect.status", "from tidegate.testing import process", True),
        ("tidegate.cli.trials.torture", "import tidegate.torture.run", False),
        ("tidegate.cli.operate.drop", "from tidegate.committers.operations import drop", False),
        ("tidegate.torture.run", "import tidegate.status.look", False),
    ],
)
def test_imports_through_walls_are_found(module, source, is_through):
    assert bool(through_walls(module, source)) == is_through


def test_downward_imports_are_allowed():
    source = (
        "from tidegate.errors import ConfigError\nfrom tidegate.wal import fold\nimport tidegate.sinks.store"
    )
    assert upward_imports(source, "committers") == []


def test_circles_are_found():
    sources = {"t.a.x": "import t.b.y", "t.b.y": "", "t.b.z": "from t.a import w", "t.a.w": ""}
    edges = graph(sources)
    assert circle(edges) is None
    assert set(circle(between(edges, "t"))) == {"t.a", "t.b"}
    assert circle(graph({**sources, "t.b.y": "from t.a.x import f"}))


@pytest.mark.parametrize(
    "source", ["import time", "from redis.client import Redis", "def f():\n    open('x')"]
)
def test_impurities_are_found(source):
    assert impurities(source)
