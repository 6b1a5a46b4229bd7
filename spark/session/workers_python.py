"""The Python of Spark's workers, asked before the first job whether it has this tidegate.

Without it the first job fails in a worker, as 200 lines of Java's and Python's traces.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from typing import Any

import msgspec

import tidegate
from tidegate.base.decoders import json_decoder
from tidegate.errors import ConfigError

logger = logging.getLogger("tidegate")

ANSWER_S = 20.0
NEEDED = ("tidegate", "pyarrow", "msgspec", "xxhash", "numpy")
QUESTION = f"""
import importlib.metadata, importlib.util, json, sys
missing = [name for name in {NEEDED!r} if importlib.util.find_spec(name) is None]
release = "" if "tidegate" in missing else importlib.metadata.version("tidegate")
print(json.dumps({{"python": sys.version_info[:2], "missing": missing, "tidegate": release}}))
"""
CURE = (
    "call tidegate.spark.configure(SparkSession.builder) before getOrCreate, or set PYSPARK_PYTHON before the"
    " session starts"
)


class _Answer(msgspec.Struct):
    python: tuple[int, int]
    missing: list[str]
    tidegate: str


_answers = json_decoder(_Answer)
_fit: set[str] = set()
"""The Pythons that have answered well."""


def check_workers_python(context: Any) -> None:
    """Compare the workers' Python with this one, if the workers run on this machine.

    With a ``local`` or ``local-cluster`` master a Python other than this process's is asked once, in a
    process of its own. With any other master it is on other machines, and only a job could ask it: the first
    job fails there, with the same advice. Raises: ConfigError: it cannot be started, lacks tidegate or a
    library of it, or has another release.
    """
    master, name = str(context.master), str(context.pythonExec)
    shipped = bool(getattr(context, "_python_includes", ()))  # by addPyFile or --py-files
    if name in _fit or shipped or not master.startswith("local"):
        return
    path = shutil.which(name)
    if path is None:
        raise ConfigError(f"Spark's workers would run {name}, which is not on the PATH: {CURE}")
    # Not the target of a link: each virtual environment links to the same Python.
    if os.path.abspath(path) != os.path.abspath(sys.executable):  # noqa: PTH100 - Path.resolve follows links
        _ask(path)
    _fit.add(name)


def _ask(path: str) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - the program that Spark is going to run
            [path, "-c", QUESTION], capture_output=True, timeout=ANSWER_S, check=True
        )
        answer = _answers.decode(done.stdout)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        logger.warning(
            "the workers' Python %s does not report whether it has tidegate: %s; the first job will",
            path,
            error,
        )
        return
    programs = f"Spark's workers would run {path}, the driver runs {sys.executable}"
    if answer.missing:
        raise ConfigError(f"{programs}: the workers' Python has no module {answer.missing[0]}: {CURE}")
    if answer.python != sys.version_info[:2]:
        raise ConfigError(f"{programs}: it is Python {'.'.join(map(str, answer.python))}: {CURE}")
    if answer.tidegate != tidegate.__version__:
        raise ConfigError(
            f"{programs}: it has tidegate {answer.tidegate}, the driver has {tidegate.__version__}: {CURE}"
        )
