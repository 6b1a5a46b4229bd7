"""The public API is typed: users' code is checked as they would check it."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = [ROOT / "tests" / "typing" / name for name in ("reader.py", "writer.py")]


@pytest.fixture(scope="module")
def _links():
    links = subprocess.run([sys.executable, "tools/link_tree.py"], cwd=ROOT, check=False)
    assert links.returncode == 0


@pytest.mark.slow
@pytest.mark.usefixtures("_links")
def test_users_code_is_typed(tmp_path):
    # The project's mypy settings, but these files instead of the package.
    # What tidegate itself says of its libraries' types is for `make types`, with the newest of them.
    settings = (ROOT / "pyproject.toml").read_text()
    settings = settings.replace('packages = ["tidegate"]\n', 'follow_imports = "silent"\n')
    settings = settings.replace("$MYPY_CONFIG_FILE_DIR", str(ROOT))
    (tmp_path / "pyproject.toml").write_text(settings)
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", "cache"]
    checked = subprocess.run(
        [*command, *map(str, CODE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)  # pyright and its Node are fetched
@pytest.mark.usefixtures("_links")
def test_pyright_refuses_the_same_of_a_writers_code(tmp_path):
    """By basedpyright, pyright as a package with the Node that it needs; in pyright's standard mode."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "basedpyright>=1.30,<2"]
    subprocess.run(install, check=True, timeout=400)
    settings = {
        "include": [str(CODE[1])],
        "extraPaths": [str(ROOT / ".types")],  # links to the mapped folders
        "typeCheckingMode": "standard",
        "enableTypeIgnoreComments": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    words = ["-m", "basedpyright", "-p", tmp_path, "--pythonpath", sys.executable, "--outputjson"]
    checked = subprocess.run(
        [python, *words], cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False
    )
    found = [each["range"]["start"]["line"] + 1 for each in json.loads(checked.stdout)["generalDiagnostics"]]
    lines = enumerate(CODE[1].read_text().splitlines(), 1)
    assert found == [number for number, line in lines if line.endswith("# refused")], checked.stdout
