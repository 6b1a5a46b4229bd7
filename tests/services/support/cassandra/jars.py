"""Cassandra's jars: 66 MB, or those of another version in TIDEGATE_TEST_CASSANDRA_JARS=folder."""

from __future__ import annotations

import os
from pathlib import Path

from services.support.jars import fetched_jars

VERSION = "5.0.6"
POM = Path(__file__).with_name("pom.xml")


def cassandra_jars() -> Path:
    """The folder of Cassandra's jars, fetched at the first call. Several processes may call it at once."""
    other = os.environ.get("TIDEGATE_TEST_CASSANDRA_JARS")
    if other:
        return Path(other)
    return fetched_jars(f"cassandra-{VERSION}", POM, f"cassandra-all-{VERSION}.jar")
