"""The wheel, installed where nothing else of the project is: one importable name, all of its parts."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tidegate.testing.example import write_flights

# One worker builds and the others do not build again.
pytestmark = pytest.mark.xdist_group("packaging")

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["src", "wal", "committers", "sinks", "spark", "examples", "deploy", "docs", "conformance"]
FILES = [
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
NOT_PYTHON = {".css", ".js", ".json", ".lua", ".cql", ".sql", ".gz", ".html", ".txt", ".typed"}
NOT_ALONE = ["wal", "committers", "sinks", "spark", "tests", "src", "demo", "flights", "examples", "tools"]


def run(*command, cwd):
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build from a copy: setuptools leaves folders beside the sources, and takes old ones in."""
    tree = tmp_path_factory.mktemp("tree")
    for name in FOLDERS:
        unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, tree / name, ignore=unwanted)
    for name in FILES:
        shutil.copy(ROOT / name, tree)
    # Through the sdist: what is missing there is missing for everyone who builds from it.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tree / "dist", cwd=tree)
    (built,) = (tree / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory):
    """A new environment that holds the wheel and nothing else. Gives its Python and its site-packages."""
    env = tmp_path_factory.mktemp("env")
    run(sys.executable, "-m", "venv", "--without-pip", env, cwd=env)
    python = env / "bin/python"
    uv = shutil.which("uv")
    if uv:
        run(uv, "pip", "install", "--offline", "--no-deps", "--python", python, wheel, cwd=env)
    else:
        pip = [sys.executable, "-m", "pip", "--python", python]
        run(*pip, "install", "--no-index", "--no-deps", "--disable-pip-version-check", wheel, cwd=env)
    site = sysconfig.get_path("purelib", vars={"base": str(env), "platbase": str(env)})
    return python, Path(site)


def ask(python, code, *, cwd):
    """Run code in the environment, away from the sources and from the caller's settings; JSON comes back."""
    return json.loads(run(python, "-I", "-c", f"import json, sys\n{code}", cwd=cwd))


def test_the_wheel_has_one_top_level_name_and_one_that_spark_looks_for(names):
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tidegate", "pyspark_tidegate"}


def test_every_file_of_the_mapped_folders_is_in_it(names):
    homes = {
        "src/tidegate": "tidegate",
        "examples/flights": "tidegate/demo",
        **{folder: f"tidegate/{folder}" for folder in ("wal", "committers", "sinks", "spark")},
    }
    for folder, place in homes.items():
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", *NOT_PYTHON} and "__pycache__" not in path.parts:
                assert f"{place}/{path.relative_to(ROOT / folder).as_posix()}" in names
    assert {
        "tidegate/ui/page.html",
        "tidegate/sinks/redis/lua/read.lua",
        "tidegate/sinks/cassandra/cql/rows.cql",
    } <= names


def test_the_sdist_has_the_pages_and_what_is_deployed_and_no_half_of_the_tests(wheel):
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"LICENSE", "CHANGELOG.md", "docs/operations.md", "deploy/prometheus/alerts.yml"}
    wanted |= {"conformance/README.md", "conformance/vectors/values.json"}
    assert {*wanted, "deploy/grafana/dashboards/tidegate.json", "examples/flights/PROVENANCE.txt"} <= inside
    assert not [name for name in inside if name.startswith("tests")]


def test_it_says_that_it_is_typed_and_under_which_licence(names):
    assert "tidegate/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_data_of_the_demo_comes_with_its_provenance(names):
    assert {"tidegate/demo/flights-2013-01.csv.gz", "tidegate/demo/PROVENANCE.txt"} <= names


def test_only_tidegate_is_importable(clean):
    python, site = clean
    code = f"import importlib.util as u\nprint(json.dumps([n for n in {NOT_ALONE} if u.find_spec(n)]))"
    assert ask(python, code, cwd=site) == []
    assert ask(
        python, "import importlib.util as u\nprint(json.dumps(u.find_spec('tidegate').origin))", cwd=site
    ) == str(site / "tidegate/__init__.py")


def test_importing_it_needs_no_spark_and_no_servers_client(clean):
    python, site = clean
    # The dependencies are borrowed from the environment that runs the tests. Its own editable tidegate stays
    # out: .pth files of a folder that is merely on sys.path are not read.
    code = f"""
sys.path.append({sysconfig.get_path("purelib")!r})
import tidegate
print(json.dumps([tidegate.__file__, sorted({{name.split(".")[0] for name in sys.modules}})]))
"""
    origin, modules = ask(python, code, cwd=site)
    assert origin == str(site / "tidegate/__init__.py")
    assert not {"pyspark", "confluent_kafka", "redis", "cassandra", "pandas"} & set(modules)


def test_a_store_whose_client_is_not_installed_says_what_to_install(clean):
    python, site = clean
    code = f"""
sys.path.append({sysconfig.get_path("purelib")!r})
from tidegate.errors import ConfigError
from tidegate.sinks.open_store import open_store
told = {{}}
for client, url in (("redis", "redis://u:secret@h"), ("cassandra", "cassandra://u:secret@h/k")):
    sys.modules[client] = None
    sys.modules.pop(f"tidegate.sinks.{{client}}.store", None)
    try:
        open_store(url, "n")
    except ConfigError as error:
        told[client] = str(error)
print(json.dumps(told))
"""
    told = ask(python, code, cwd=site)
    assert "pip install 'tidegate[redis]'" in told["redis"]
    assert "pip install 'tidegate[cassandra]'" in told["cassandra"]
    assert "secret" not in str(told)


def test_the_statements_of_cassandra_come_with_it(clean):
    python, site = clean
    code = f"""
sys.path.append({sysconfig.get_path("purelib")!r})
from tidegate.sinks.cassandra.client.statements import statements, tables
print(json.dumps([sorted(tables()), "flip" in statements()]))
"""
    tables, flips = ask(python, code, cwd=site)
    assert "tidegate_rows" in tables
    assert flips


def test_the_command_is_installed(clean):
    python, _ = clean
    assert (python.parent / "tidegate").exists()


# -- a reader's install -------------------------------------------------------------------------------------

READER_MB, IMPORT_MS = 40, 60


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory):
    """A folder with what the wheel requires without an extra, copied from the environment of the tests."""
    folder = tmp_path_factory.mktemp("core")
    with zipfile.ZipFile(wheel) as archive:
        (about,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(about).decode().splitlines()
    required = [Requirement(line.partition(": ")[2]) for line in lines if line.startswith("Requires-Dist: ")]
    for one in required:
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            for file in importlib.metadata.files(one.name) or ():
                if ".." not in file.parts and "__pycache__" not in file.parts:
                    (folder / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file.locate(), folder / file)
    return folder


def test_a_reader_installs_few_megabytes(clean, core):
    _, site = clean
    size = sum(file.stat().st_size for place in (site, core) for file in place.rglob("*") if file.is_file())
    assert {path.name for path in core.iterdir() if "." not in path.name} >= {"msgspec", "xxhash"}
    assert size < READER_MB * 1_000_000


def test_a_reader_imports_fast_and_reads(clean, core, tmp_path):
    python, site = clean
    store = f"sqlite://{tmp_path}/store"
    write_flights(f"file://{tmp_path}/wal", store)
    code = f"""
import time
sys.path.append({str(core)!r})
before = time.process_time()
import tidegate
spent_s = time.process_time() - before
with tidegate.connect({store!r}, "flights") as gate, gate.snapshot() as snapshot:
    aircraft = snapshot.table("aircraft")
    rows = [aircraft.get("N14228"), aircraft.get_many(["N14228"]), list(aircraft.scan())]
print(json.dumps([spent_s, rows, sorted(name.partition(".")[0] for name in sys.modules)]))
"""
    runs = [ask(python, code, cwd=site) for _ in range(3)]
    row = {"carrier": "UA", "flights": 2}
    assert runs[0][1] == [row, {"N14228": row}, [["N14228", row]]]
    assert not {"pyarrow", "numpy", "typer", "rich"} & set(runs[0][2])
    assert min(spent_s for spent_s, _, _ in runs) * 1_000 < IMPORT_MS


def test_the_command_without_its_libraries_names_their_extra(clean, core):
    python, site = clean
    code = f"import sys; sys.path.append({str(core)!r}); from tidegate.__main__ import main; main()"
    done = subprocess.run([python, "-I", "-c", code], cwd=site, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tidegate: the command line needs typer: pip install 'tidegate[cli]'\n"


# -- with its dependencies, from a registry ---------------------------------------------------------------


@pytest.fixture
def installed(wheel, tmp_path):
    """``installed(extras)``: the environment's folder of commands, made with what the wheel declares only."""

    def make(name, extras=""):
        env = tmp_path / name
        run(sys.executable, "-m", "venv", "--without-pip", env, cwd=tmp_path)
        pip = [sys.executable, "-m", "pip", "--python", env / "bin/python", "--disable-pip-version-check"]
        run(*pip, "install", "--quiet", f"{wheel}{extras}", cwd=tmp_path)
        return env / "bin"

    return make


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_readmes_example_and_the_commands_run_in_an_empty_folder(installed, tmp_path):
    """The writer has tidegate[spark], the reader the commands; neither sees the project."""
    empty, tide = tmp_path / "empty", tmp_path / "tide"
    empty.mkdir()
    ours = re.compile("PYTHON|PYSPARK|SPARK_|TIDEGATE|VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if not ours.match(name)}
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"

    def in_it(bin_folder, *command):
        path = f"{bin_folder}{os.pathsep}{environment['PATH']}"  # as after `. env/bin/activate`
        done = subprocess.run(
            [str(bin_folder / command[0]), *command[1:]],
            cwd=empty, env={**environment, "PATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr[-4000:]}"
        return done.stdout

    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    (empty / "pasted.py").write_text(code.replace("/tmp/tide", str(tide)))
    version, _, count = re.fullmatch(
        r"(\d+) (\{.*\}) (\d+)\n", in_it(installed("writer", "[spark]"), "python", "pasted.py")[-200:]
    ).groups()
    assert (int(version) >= 1, count) == (True, "10")

    reader = installed("reader", "[cli,arrow]")
    where = ["--store", f"sqlite://{tide}/store", "--namespace", "numbers"]
    log = ["--wal", f"file://{tide}/wal"]
    assert "Commands:" in in_it(reader, "tidegate", "--help")
    assert in_it(reader, "tidegate", "--version").strip()
    assert json.loads(in_it(reader, "tidegate", "status", *where, *log, "--json"))["visible"] >= int(version)
    assert "value\t" in in_it(reader, "tidegate", "get", "latest", "7", *where)
    assert len(in_it(reader, "tidegate", "scan", "latest", "--json", *where).splitlines()) == 10
    in_it(reader, "tidegate", "verify", *where, *log)
    modules = ask(
        reader / "python",
        "import importlib.util as u\nprint(json.dumps(bool(u.find_spec('pyspark'))))",
        cwd=empty,
    )
    assert modules is False
