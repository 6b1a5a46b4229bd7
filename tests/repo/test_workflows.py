"""Workflows run nobody's code that may change unnoticed, and the lock is what is installed."""

import importlib.util
import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("packages", ROOT / "tools" / "packages.py")
packages = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(packages)
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_actions_of_others_are_named_by_digest():
    assert WORKFLOWS
    for file in WORKFLOWS:
        flow = yaml.safe_load(file.read_text())
        used = [step["uses"] for job in flow["jobs"].values() for step in job["steps"] if "uses" in step]
        assert all(re.search(r"@[0-9a-f]{40}$", name) for name in used), (file, used)
        assert flow["permissions"] == {"contents": "read"}
        more = {name: job["permissions"] for name, job in flow["jobs"].items() if "permissions" in job}
        publish = {"contents": "write", "id-token": "write"}
        assert more == ({"publish": publish} if file.name == "release.yml" else {}), file


def test_a_run_names_a_target_or_a_script_that_is_there_and_no_text_of_strangers():
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    for file in WORKFLOWS:
        flow = yaml.safe_load(file.read_text())
        for script in [step["run"] for job in flow["jobs"].values() for step in job["steps"]]:
            assert "${{" not in script, (file, script)  # a shell takes it for commands
            assert set(re.findall(r"\bmake ([a-z-]+)", script)) <= targets, (file, script)
            assert all((ROOT / path).exists() for path in re.findall(r"(?m)\b(tools/[a-z_./]+)", script))
            checked = subprocess.run(
                ["bash", "-n"], input=script, text=True, capture_output=True, check=False
            )
            assert not checked.returncode, (file, checked.stderr)


@pytest.mark.slow
def test_two_builds_of_one_commit_are_equal_byte_for_byte(tmp_path):
    built = []
    for umask in (0o022, 0o077):
        command = [sys.executable, ROOT / "tools" / "packages.py", "build", tmp_path / str(umask)]
        subprocess.run(command, check=True, capture_output=True, umask=umask)
        built.append({file.name: file.read_bytes() for file in (tmp_path / str(umask)).iterdir()})
    assert len(built[0]) == 2
    assert built[0] == built[1]


def test_an_sdist_has_no_time_owner_or_order_of_its_own():
    def sdist(owner, at):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as new:
            for name in sorted(("t/b.py", "t/a.py"), reverse=at % 2):
                member = tarfile.TarInfo(name)
                member.size, member.mtime, member.uname, member.mode = 3, at, owner, 0o600 + at % 2 * 0o50
                new.addfile(member, io.BytesIO(b"abc"))
        return packed.getvalue()

    ours = packages.repacked(sdist("us", 1_700_000_001), 5)
    assert ours == packages.repacked(sdist("them", 1_800_000_002), 5)
    with tarfile.open(fileobj=io.BytesIO(ours)) as read:
        assert [(each.name, each.mtime, each.mode) for each in read] == [
            ("t/a.py", 5, 0o644),
            ("t/b.py", 5, 0o644),
        ]
        assert read.extractfile("t/a.py").read() == b"abc"


def test_the_lock_has_a_hash_for_each_library_and_names_no_index():
    lock = (ROOT / "tools" / "requirements.lock").read_text()
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", lock)[1:]
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in lock
    assert {"pip", "pyspark", "redis", "setuptools"} <= {block.partition("==")[0] for block in blocks}


def test_the_set_up_installs_the_lock_by_its_hashes():
    script = (ROOT / "tools" / "setup").read_text()
    assert "--require-hashes --no-deps --no-build-isolation" in script
    assert "install --no-deps --no-build-isolation -e ." in script


CONDA_NAMES = {
    "xxhash": "python-xxhash",
    "redis[hiredis]": "redis-py",
    "confluent-kafka": "python-confluent-kafka",
}
"""The names of the packages on conda-forge that have another one on PyPI."""


def _for_conda(requirement: str) -> str:
    name, bounds = re.fullmatch(r"([\w\[\]-]+)(>=[^;]+).*", requirement).groups()
    return f"{CONDA_NAMES.get(name, name)} {bounds.strip()}"


def test_the_conda_recipe_has_the_version_and_the_bounds_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    recipe = yaml.safe_load((ROOT / "deploy" / "conda" / "recipe.yaml").read_text())
    needs, project = recipe["requirements"], project["project"]
    assert recipe["context"]["version"] == project["version"]
    assert recipe["about"]["summary"] == project["description"]
    assert recipe["build"]["python"]["entry_points"] == ["tidegate = tidegate.__main__:main"]
    python = f"python {project['requires-python']}"
    assert needs["run"] == [python, *map(_for_conda, project["dependencies"])]
    assert needs["host"][0] == python
    extras = ("arrow", "cli", "spark", "kafka", "redis", "cassandra", "metrics")
    of_extras = [each for name in extras for each in project["optional-dependencies"][name]]
    assert needs["run_constraints"] == [_for_conda(each) for each in of_extras if "tidegate" not in each]
