"""Places to crash drivers whose log is on Kafka, as a plugin of pytest."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.sweep.place import Place


@contextlib.contextmanager
def place_on(bootstrap: str, folder: Path, store: str = "") -> Iterator[Place]:
    """Topics of its own, which go in the end. A single broker holds one copy, hence the option."""
    options = {"topic_prefix": f"t{uuid.uuid4().hex[:12]}", "partitions": 3}
    place = Place(folder, f"kafka://{bootstrap}", options, "--allow-unsafe", store=store)
    try:
        yield place
    finally:
        with place.opened() as (log, _):
            log.drop()


@pytest.fixture
def place(kafka, tmp_path: Path) -> Iterator[Place]:
    with place_on(kafka.bootstrap, tmp_path) as made:
        yield made


@pytest.fixture
def watched_place(proxied_kafka, tmp_path: Path) -> Iterator[Place]:
    """``start(wal=...)`` leads a driver through the proxy; all else goes to the broker."""
    with place_on(proxied_kafka.direct, tmp_path) as made:
        yield made
