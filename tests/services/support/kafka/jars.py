"""Kafka's jars: 43 MB."""

from __future__ import annotations

from pathlib import Path

from services.support.jars import fetched_jars

VERSION = "4.1.1"
POM = Path(__file__).with_name("pom.xml")
INSTEAD = "Or set TIDEGATE_TEST_KAFKA=host:port to a broker that runs already."


def kafka_jars() -> Path:
    """The folder of Kafka's jars, fetched at the first call. Several processes may call it at once."""
    return fetched_jars(f"kafka-{VERSION}", POM, f"kafka_2.13-{VERSION}.jar", INSTEAD)
