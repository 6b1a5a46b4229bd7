"""tools/requirements.lock names all that pyproject.toml asks for, in versions that fit, by their hashes."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
LOCKED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\]+)", re.MULTILINE)


def _asked_for() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    every = [*project["dependencies"], *(one for extra in extras.values() for one in extra)]
    return [one for one in map(Requirement, every) if one.name != "tidegate"]


@pytest.fixture(scope="module")
def locked() -> dict[str, set[Version]]:
    found: dict[str, set[Version]] = {}
    for name, version in LOCKED.findall((ROOT / "tools" / "requirements.lock").read_text()):
        found.setdefault(canonicalize_name(name), set()).add(Version(version))
    return found


@pytest.mark.parametrize("asked", _asked_for(), ids=str)
def test_what_is_asked_for_is_locked_in_versions_that_fit(asked, locked):
    versions = locked.get(canonicalize_name(asked.name), set())
    assert versions, "`make lock` writes the file anew"
    assert all(asked.specifier.contains(version) for version in versions)


def test_everything_has_hashes_and_no_place_it_comes_from():
    text = (ROOT / "tools" / "requirements.lock").read_text()
    entries = re.split(r"\n(?=[A-Za-z0-9])", text.partition("\n")[2].strip())
    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text


def test_the_part_for_the_demo_has_what_spark_and_the_commands_ask_for_and_no_more():
    text = (ROOT / "tools" / "requirements.lock").read_text()
    _, *parts = re.split(r"^# part (\w+).*\n", text, flags=re.MULTILINE)
    names = {
        part: {canonicalize_name(name) for name, _ in LOCKED.findall(lines)}
        for part, lines in zip(parts[::2], parts[1::2], strict=True)
    }
    assert list(names) == ["installers", "demo", "dev"]  # tools/setup asks for them by these names
    assert names["installers"] == {"setuptools", "uv"}
    assert {"pyspark", "pyarrow", "pandas", "numpy", "typer", "rich", "msgspec", "xxhash"} <= names["demo"]
    servers = {"redis", "cassandra-driver", "confluent-kafka"}
    assert servers | {"pip", "pytest", "mypy", "ruff", "prometheus-client"} <= names["dev"]
    assert not names["demo"] & names["dev"]


def _wheel(folder: Path, name: str, version: str, *more: str) -> str:
    """Write a wheel without code; a line of a lock file for it."""
    file = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as wheel:
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *more]
        wheel.writestr(f"{about}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}\n"


@pytest.mark.slow
def test_the_lock_is_installed_though_the_index_has_newer_versions(tmp_path):
    # pip resolved "base[toml]" apart from "base": it took the newest, which has another hash.
    lines = [
        _wheel(tmp_path, "tgbase", "1.0", "Provides-Extra: toml"),
        _wheel(tmp_path, "tgplugin", "1.0", "Requires-Dist: tgbase[toml]>=1"),
    ]
    _wheel(tmp_path, "tgbase", "2.0", "Provides-Extra: toml")
    lock = tmp_path / "requirements.lock"
    lock.write_text("".join(lines))
    given = re.search(r"install (--require-hashes .*?) -r ", (ROOT / "tools" / "setup").read_text())
    assert given
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True, timeout=60)
    uv = ["uv", "pip", "install", "-q", "--python", str(env / "bin" / "python")]
    offline = ["--no-index", "--find-links", str(tmp_path)]
    asked = [*uv, *offline, *given[1].split(), "-r", str(lock)]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
