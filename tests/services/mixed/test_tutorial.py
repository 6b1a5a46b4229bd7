"""docs/tutorial.md, word by word: every command that it shows, in an empty folder, on real servers."""

import os
import re
import shutil
import subprocess

import pytest

from services.support.servers import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
COMMAND_S = 300


@pytest.fixture
def run(kafka, redis, namespace, tmp_path):
    """Runs one line of the tutorial as a user's shell would; gives what it printed."""
    shutil.copy(ROOT / "examples" / "tutorial" / "departures.py", tmp_path)
    settings = {"TIDEGATE_WAL": kafka.url, "TIDEGATE_STORE": redis.url, "TIDEGATE_NAMESPACE": namespace}

    def line(text):
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=tmp_path,
            env=os.environ | settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"$ {text}\n{done.stdout}{done.stderr}"
        return done.stdout

    return line


def test_every_command_of_the_tutorial_does_what_it_says(run):
    page = (ROOT / "docs" / "tutorial.md").read_text()
    told = [(line, run(line)) for line in re.findall(r"^\$ (.*)$", page, re.MULTILINE)]

    def of(command):
        return [text for line, text in told if line.startswith(command)]

    five, killed = of("tidegate status")
    assert "visible version\t5" in five
    assert "visible version\t5" in killed
    assert "decided version\t6 (1 not visible yet" in killed
    assert "made visible: version 6" in of("tidegate recover")[0]
    first, last = (text.splitlines() for text in of("tidegate history"))
    assert [len(first), len(last)] == [1 + 5, 1 + 7]
    departures = [
        re.search(r"^departures\t(\d+)$", text, re.MULTILINE)[1] for text in of("tidegate get airports EWR")
    ]
    assert departures == ["1555", "981", "1855"]
    undone = of("tidegate diff 5 8 --stat")[0]
    assert "airports\t0\t0\t0" in undone or "airports" not in undone
