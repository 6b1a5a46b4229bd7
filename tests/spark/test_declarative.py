"""A declarative pipeline writes by ``create_sink``, as docs/spark.md shows it: a namespace for each flow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from log_places import command

import tidegate

pytest.importorskip("pyspark.pipelines", reason="this PySpark has no declarative pipelines: 4.1 or newer")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.only_log("file"),
]

ROOT = Path(__file__).parents[2]
RUN_S = 600


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    """Runs the pipeline of the page, with a second flow into a sink of this name and namespace."""
    by_name = tmp_path / "installed"  # in an installed tidegate it is beside it
    shutil.copytree(ROOT / "src" / "pyspark_tidegate", by_name / "pyspark_tidegate")
    monkeypatch.setenv("PYTHONPATH", f"{by_name}:{os.environ.get('PYTHONPATH', '')}")
    page = (ROOT / "docs" / "spark.md").read_text()
    snippet = page[page.index("### Declarative pipelines") :].partition("```python\n")[2].partition("```")[0]
    (tmp_path / "flows").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(
        json.dumps(
            {
                "name": "flights",
                "storage": f"file://{tmp_path}/storage",
                "libraries": [{"glob": {"include": "flows/**"}}],
            }
        )
    )

    def run(sink, namespace):
        second = snippet[snippet.index("pipelines.create_sink(") :]
        for was, other in (
            (
                '"aircraft", "tidegate", {**PLACE',
                f'"{sink}", "tidegate", {{**PLACE, "namespace": "{namespace}"',
            ),
            ('target="aircraft"', f'target="{sink}"'),
            ("def latest", "def again"),
            ("/data/flights", "/data/more"),
        ):
            assert second.count(was) == 1, was
            second = second.replace(was, other)
        code = f"{snippet}\n\n{second}"
        (tmp_path / "flows" / "flows.py").write_text(code.replace("/data", str(tmp_path)))
        program = [str(Path(sys.executable).with_name("spark-pipelines")), "run"]
        return subprocess.run(
            program, cwd=tmp_path, capture_output=True, text=True, timeout=RUN_S, check=False
        )

    return run


def add(folder, name, *hours):
    folder.mkdir(exist_ok=True)
    rows = [{"tailnum": f"N{hour % 3}", "time_hour": f"2013-01-01T{hour:02}:00:00Z"} for hour in hours]
    (folder / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))


def latest(folder, namespace, version):
    with (
        tidegate.connect(f"sqlite://{folder}/store", namespace=namespace) as gate,
        gate.snapshot(version) as shown,
    ):
        return {key: value["time_hour"].hour for key, value in shown.table("aircraft").scan()}


def test_each_flow_has_a_namespace_and_continues(tmp_path, pipeline):
    add(tmp_path / "flights", "1", 1, 2, 3)
    add(tmp_path / "more", "1", 4)
    done = pipeline("others", "more")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    add(tmp_path / "flights", "2", 5, 6)
    done = pipeline("others", "more")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert latest(tmp_path, "flights", 1) == {"N0": 3, "N1": 1, "N2": 2}
    assert latest(tmp_path, "flights", 2) == {"N0": 6, "N1": 1, "N2": 5}
    assert latest(tmp_path, "more", 1) == {"N1": 4}


def test_a_second_flow_into_one_namespace_is_refused(tmp_path, pipeline):
    add(tmp_path / "flights", "1", 1, 2, 3)
    add(tmp_path / "more", "1", 4)
    done = pipeline("others", "flights")
    assert done.returncode != 0
    assert "A namespace serves one query" in done.stdout + done.stderr
    where = [
        "--store",
        f"sqlite://{tmp_path}/store",
        "--namespace",
        "flights",
        "--wal",
        f"file://{tmp_path}/wal",
    ]
    assert json.loads(command("verify", "--json", *where))["findings"] == []
    assert latest(tmp_path, "flights", 1) in ({"N0": 3, "N1": 1, "N2": 2}, {"N1": 4})
