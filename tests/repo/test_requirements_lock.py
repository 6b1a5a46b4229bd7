"""requirements.lock names everything that pyproject.toml asks for, in versions that fit, by their hashes."""

from __future__ import annotations

import re
import sys
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
    for name, version in LOCKED.findall((ROOT / "requirements.lock").read_text()):
        found.setdefault(canonicalize_name(name), set()).add(Version(version))
    return found


@pytest.mark.parametrize("asked", _asked_for(), ids=str)
def test_what_is_asked_for_is_locked_in_versions_that_fit(asked, locked):
    versions = locked.get(canonicalize_name(asked.name), set())
    assert versions, "`make lock` writes the file anew"
    assert all(asked.specifier.contains(version) for version in versions)


def test_everything_has_hashes_and_no_place_it_comes_from():
    text = (ROOT / "requirements.lock").read_text()
    entries = re.split(r"\n(?=[A-Za-z0-9])", text.partition("\n")[2].strip())
    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text
