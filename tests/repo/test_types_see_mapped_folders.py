"""The type check sees the mapped folders: a mistake in any of them makes it fail.

A checker that silently skips half of the code says "Success" too. So a copy of the empty skeleton, with the
project's own settings and link tree, gets one mistake per package, and each has to be found.
"""

import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
MISTAKE = 'broken: int = "text"\n'


@pytest.fixture(scope="module")
def packages():
    """Where each package of pyproject.toml lives, relative to the root."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)["tool"]["setuptools"]
    mapping = settings["package-dir"]
    folders = {}
    for name in settings["packages"]:
        top = max((known for known in mapping if name == known or name.startswith(known + ".")), key=len)
        folders[name] = Path(mapping[top], *name.removeprefix(top).split("."))
    return folders


@pytest.fixture
def skeleton(tmp_path, packages):
    for name in ("pyproject.toml", "tools/link_tree.py"):
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        place.write_text((ROOT / name).read_text())
    tests = [Path("tests", name) for name in ("crash", "model", "simulation", "support", "tampering")]
    for folder in (*packages.values(), *tests):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "__init__.py").touch()
    return tmp_path


def check_types(root):
    subprocess.run([sys.executable, "tools/link_tree.py"], cwd=root, check=True)
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(root / "cache")]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_a_mistake_in_every_folder_is_found(skeleton, packages):
    for folder in packages.values():
        (skeleton / folder / "mistake.py").write_text(MISTAKE)
    checked = check_types(skeleton)
    assert checked.returncode == 1, checked.stdout + checked.stderr
    for name in packages:
        where = Path(".types", *name.split("."), "mistake.py")
        assert f"{where}:1: error: Incompatible types" in checked.stdout, name

    # Without the mistakes the same tree passes: nothing else made it fail. Links of deleted files are gone.
    for folder in packages.values():
        (skeleton / folder / "mistake.py").unlink()
    checked = check_types(skeleton)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "mistake" not in checked.stdout
