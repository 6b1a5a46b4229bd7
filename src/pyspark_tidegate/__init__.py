"""The data source ``format("tidegate")``, which Spark finds by this module's name.

Spark imports each top-level module whose name begins with ``pyspark_``, when a program first names a data
source of Python. An error here would hide all others.
"""

import contextlib

with contextlib.suppress(ImportError):  # a library is missing, or this Spark has no such data sources
    from tidegate.spark.source.data_source import TidegateSource as DefaultSource  # noqa: F401
