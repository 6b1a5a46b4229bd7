"""The jars of Spark's Kafka source and Avro functions, which are not in the pyspark wheel: 11 MB."""

from __future__ import annotations

from pathlib import Path

from services.support.jars import fetched_jars

POM = Path(__file__).with_name("pom.xml")
OF_SPARK = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2", "spark-avro")
"""The others that they depend on are in Spark."""


def spark_source_jars() -> list[Path]:
    """What ``--jars`` takes, fetched at the first call. Several processes may call it at once."""
    folder = fetched_jars("spark-sources", POM, "spark-sql-kafka-0-10_2.13-4.2.0.jar")
    return sorted(path for path in folder.glob("*.jar") if path.name.startswith(OF_SPARK))
