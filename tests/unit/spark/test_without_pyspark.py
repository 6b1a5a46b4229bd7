"""Modules of the Spark side that say they need no pyspark can be imported where it is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

SPARK = Path(__file__).resolve().parents[3] / "spark"
SAID = "No pyspark is imported here"
WITHOUT = sorted(
    {
        path
        for path in SPARK.rglob("*.py")
        if SAID in path.read_text() or path.is_relative_to(SPARK / "state") or path == SPARK / "__init__.py"
    }
)
BLOCKED = "import sys; sys.modules['pyspark'] = None; import importlib; importlib.import_module({name!r})"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("path", WITHOUT, ids=lambda path: path.relative_to(SPARK).as_posix())
def test_spark_module_is_imported_without_pyspark(path):
    parts = path.relative_to(SPARK).with_suffix("").parts
    name = ".".join(("tidegate.spark", *(part for part in parts if part != "__init__")))
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(name=name)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


CLIENT = """
import sys

class NoJvm:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "py4j" or name.startswith("pyspark.core"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoJvm())
import tidegate.spark
for name in tidegate.spark.__all__:
    getattr(tidegate.spark, name)
"""


def test_all_names_are_there_with_the_client_of_spark_connect_alone():
    """It is pyspark without its core, and without py4j."""
    done = subprocess.run([sys.executable, "-c", CLIENT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_name_that_needs_pyspark_says_what_to_install():
    program = BLOCKED.format(name="tidegate.spark") + "; from tidegate.spark import VersionedSink"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: tidegate.spark.VersionedSink needs pyspark: pip install 'tidegate[spark]'"
    )
    assert "During handling" not in done.stderr
