"""The documentation as a site builds without a warning: no dead link, no docstring that cannot be read."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)  # its tools are fetched
def test_the_site_builds_without_a_warning():
    done = subprocess.run(
        ["make", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Documentation built" in done.stderr  # with --quiet MkDocs counted no warning, and never failed
    assert "WARNING" not in done.stderr
    writing, reading = (
        (ROOT / "build" / "site" / "reference" / page / "index.html").read_text()
        for page in ("writing", "reading")
    )
    assert 'id="tidegate.spark.sink.VersionedSink.load"' in writing
    signature = re.sub(r"<[^>]+>", "", writing.partition('id="tidegate.spark.sink.VersionedSink"')[2])[:5000]
    shown = set(re.findall(r"\w+", signature))
    assert {"namespace", "delete_when", "locality", "keep_versions", "metrics_port"} <= shown
    assert "doctest" not in writing
    assert 'id="tidegate.spark.transaction.Transaction.close"' not in writing  # the sink's own
    assert 'id="tidegate.reader.gate.Gate.remember"' not in reading
