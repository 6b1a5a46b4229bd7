"""The PySpark side: the only part that imports pyspark."""

from tidegate.spark.sink import VersionedSink
from tidegate.spark.transaction import Transaction

__all__ = ["Transaction", "VersionedSink"]
