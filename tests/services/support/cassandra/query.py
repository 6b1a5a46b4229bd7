"""A query without Spark whose store is Cassandra."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from services.support.workloads.query import Query
from support.concurrency import Once
from tidegate.errors import StoreUnavailableError

REQUEST_S = 20.0
"""A store's call, where the tests say nothing else: nodes that come back have so long, and machines that are
busy. A lost reply is noticed at once, since its connection is closed."""
AWAY_S = 5.0
"""A store's call, and a driver's deadline, where nodes stay away: all of it is waited for."""
STARTS_S = 300.0
"""Of whom waits for a node that starts: longer than a node may take to (``cassandra_server.START_S``)."""
TRIES = 5
TOLD = {"SnapshotExpiredError", "StoreUnavailableError"}
"""All that a reader may be told here: a cluster forgets nothing, and versions never go back."""

Done = TypeVar("Done")


@contextlib.contextmanager
def query_on(url: str, folder: Path, **options: Any) -> Iterator[Query]:
    """On a keyspace that is made when it is not there, with one copy unless told otherwise."""
    made = Query(url, folder, **{"create": True, "replication": 1, "timeout_s": REQUEST_S} | options)
    try:
        yield made
    finally:
        made.close()


def at_last(work: Callable[..., Done], *arguments: Any, **named: Any) -> Done:
    """As a scheduler starts a query again, and the background tries anew: a conditional write that was given
    to a node that fails is not sent again by itself, and says so."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(StoreUnavailableError):
            return work(*arguments, **named)
    return work(*arguments, **named)


def stopped_at(at: Once, work: Callable[[], object]) -> StoreUnavailableError:
    """The error that ``work`` ends with when what was to be done was done. What its short deadlines end
    before that, on a machine that is busy, is begun again."""
    for _ in range(TRIES):
        with pytest.raises(StoreUnavailableError) as raised:
            work()
        if at.done:
            return raised.value
    raise AssertionError(f"it was never reached: {raised.value}")
