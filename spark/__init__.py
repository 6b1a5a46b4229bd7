"""The PySpark side: the only part that imports pyspark."""

from tidegate.spark.data_source import register
from tidegate.spark.locality import Locality, LocationIdProvider, MetadataStore
from tidegate.spark.sink import VersionedSink
from tidegate.spark.transaction import Transaction

__all__ = ["Locality", "LocationIdProvider", "MetadataStore", "Transaction", "VersionedSink", "register"]
