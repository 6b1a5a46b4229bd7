"""Workflows run nobody's code that may change unnoticed, and the lock is what is installed."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_actions_of_others_are_named_by_digest():
    assert WORKFLOWS
    for file in WORKFLOWS:
        flow = yaml.safe_load(file.read_text())
        used = [step["uses"] for job in flow["jobs"].values() for step in job["steps"] if "uses" in step]
        assert all(re.search(r"@[0-9a-f]{40}$", name) for name in used), (file, used)
        assert flow["permissions"] == {"contents": "read"}


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
