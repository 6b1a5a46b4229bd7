"""The public API is typed: users' code is checked as they would check it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["reader"])
def test_users_code_is_typed(name, tmp_path):
    links = subprocess.run([sys.executable, "tools/link_tree.py"], cwd=ROOT, check=False)
    assert links.returncode == 0
    # The project's mypy settings, but one file instead of the package.
    # What tidegate itself says of its libraries' types is for `make types`, with the newest of them.
    settings = (ROOT / "pyproject.toml").read_text()
    settings = settings.replace('packages = ["tidegate"]\n', 'follow_imports = "silent"\n')
    settings = settings.replace("$MYPY_CONFIG_FILE_DIR", str(ROOT))
    (tmp_path / "pyproject.toml").write_text(settings)
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", "cache"]
    checked = subprocess.run(
        [*command, str(ROOT / "tests" / "typing" / f"{name}.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
