"""Typed errors across Spark: what a task raised is raised again in the driver, as itself."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tidegate.errors import BY_NAME, ConfigError

_MISSING = re.compile(r"ModuleNotFoundError: No module named '(tidegate|pyarrow|msgspec|xxhash|numpy)")
_RAISED = re.compile(r"tidegate\.errors\.(\w+): (.*)")


@contextlib.contextmanager
def typed() -> Iterator[None]:
    """Turn Spark's report of a task's tidegate error back into that error.

    Anything else, such as an error in the user's own plan, passes as it is.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if missing := _MISSING.search(str(error)):
            msg = (
                f"the executors' Python has no module {missing[1]}: install tidegate for it, or set"
                " PYSPARK_PYTHON to a Python that has it before the session starts"
            )
            raise ConfigError(msg) from error
        raised = _RAISED.findall(str(error))
        if raised and raised[-1][0] in BY_NAME:
            name, message = raised[-1]
            raise BY_NAME[name](message) from error
        raise
