"""Libraries that not every installation has: the extra that brings each, and Arrow, imported when first used.

A reader's ``get``, ``get_many`` and ``scan`` need neither pyarrow nor numpy. Modules on their way import
``pa``, ``pc`` and ``np`` from here. Any other module imports the libraries themselves.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from tidegate.base.forks import IN_LIBRARY
from tidegate.errors import ConfigError

EXTRAS = {
    **dict.fromkeys(("pyarrow", "numpy"), "arrow"),
    **dict.fromkeys(("typer", "click", "rich"), "cli"),
    "redis": "redis",
    "cassandra": "cassandra",
    "confluent_kafka": "kafka",
    "prometheus_client": "metrics",
    **dict.fromkeys(("pyspark", "py4j", "pandas"), "spark"),
}
"""The extra that brings a library, by the name that is imported."""
PACKAGES = {"redis": "redis-py", "cassandra": "cassandra-driver", "confluent_kafka": "confluent-kafka"}
"""The names that people use for a library, where that is not the imported one."""


def missing(what: str, error: ImportError) -> ConfigError:
    """Build the error for something that needs a library that is not installed, with the command for it.

    Raises: the import's own error, if no extra brings the library.

    >>> missing("store redis://cache", ModuleNotFoundError(name="redis.client")).args[0]
    "store redis://cache needs redis-py: pip install 'tidegate[redis]'"
    """
    library = (error.name or "").partition(".")[0]
    if library not in EXTRAS:
        raise error
    return ConfigError(
        f"{what} needs {PACKAGES.get(library, library)}: pip install 'tidegate[{EXTRAS[library]}]'"
    )


@functools.cache
def has_arrow() -> bool:
    """Whether pyarrow is installed. It is not imported."""
    try:
        return importlib.util.find_spec("pyarrow") is not None
    except (ImportError, ValueError):  # barred, or replaced by a test
        return False


def require_arrow(what: str) -> None:
    """Refuse what cannot be done without Arrow. Raises: ConfigError, with the command that installs it."""
    if not has_arrow():
        raise missing(what, ModuleNotFoundError(name="pyarrow"))


class _Lazy:
    """A module that is imported when one of its names is first used. Raises then: ConfigError."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by doctest and inspect, which need no library
            raise AttributeError(name)
        try:
            with IN_LIBRARY:
                value = getattr(importlib.import_module(self._module), name)
                if name == "array" and self._module == "pyarrow":
                    value([])  # it imports pandas now, if that is installed
        except ImportError as error:
            raise missing("this call", error) from error
        setattr(self, name, value)  # from now on no slower than the module's own
        return value


if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa, pc, np = _Lazy("pyarrow"), _Lazy("pyarrow.compute"), _Lazy("numpy")

__all__ = ["EXTRAS", "has_arrow", "missing", "np", "pa", "pc", "require_arrow"]
