"""The PySpark side: the only part that imports pyspark.

The names below are imported at their first use, so modules that do not use pyspark do not need it.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.spark.errors import cause as cause
    from tidegate.spark.placement.locality import Locality as Locality
    from tidegate.spark.placement.locality import LocationIdProvider as LocationIdProvider
    from tidegate.spark.placement.locality import MetadataStore as MetadataStore
    from tidegate.spark.session.configure import configure as configure
    from tidegate.spark.sink import VersionedSink as VersionedSink
    from tidegate.spark.source.data_source import register as register
    from tidegate.spark.source.writing.prepare import prepare as prepare
    from tidegate.spark.staging.declared import Derived as Derived
    from tidegate.spark.transaction import Transaction as Transaction

_HOME = {
    **dict.fromkeys(("Locality", "LocationIdProvider", "MetadataStore"), "tidegate.spark.placement.locality"),
    "Derived": "tidegate.spark.staging.declared",
    "Transaction": "tidegate.spark.transaction",
    "VersionedSink": "tidegate.spark.sink",
    "cause": "tidegate.spark.errors",
    "configure": "tidegate.spark.session.configure",
    "prepare": "tidegate.spark.source.writing.prepare",
    "register": "tidegate.spark.source.data_source",
}
"""The module of each public name."""

_EXTRA = ("pyspark", "pandas")
"""The libraries that `pip install 'tidegate[spark]'` brings."""

__all__ = sorted(_HOME)  # noqa: PLE0605 - a list of text


if not TYPE_CHECKING:  # a type checker would consider any name public

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
        except ImportError as error:
            library = str(error.name).partition(".")[0]
            if library not in _EXTRA:
                raise
            if sys.modules.get(library) is not None:
                msg = (
                    f"tidegate.spark.{name} does not run on the {library} that is installed, which lacks a"
                    f" part of {error.name}: take a newer release of Spark; docs/spark.md has a table of the"
                    " parts of tidegate by release"
                )
                raise ImportError(msg, name=error.name) from None
            # With a PySpark, such as Spark Connect's client alone, the extra would put another one over it.
            requirement = library if sys.modules.get("pyspark") is not None else "'tidegate[spark]'"
            msg = f"tidegate.spark.{name} needs {library}: pip install {requirement}"
            raise ModuleNotFoundError(msg, name=error.name) from None
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
