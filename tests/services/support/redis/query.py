"""A query without Spark whose store is Redis."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.support.redis.server import RedisServer
from services.support.workloads import query
from tidegate.sinks.redis.keys import header_key, meta_key
from tidegate.sinks.redis.seals import headers


class Query(query.Query):
    """One namespace on Redis."""

    store_options = ("timeout_s", "functions")

    def oldest_read(self, store: Any) -> int:
        """A horizon that was lost comes back at the next retirement; until then the floors refuse."""
        return max(header.floor for header in headers(store._space).values())

    def keys_of(self, group: int) -> str:
        """What all keys of a key group have in their names; they lie in one slot."""
        return header_key(self.namespace, group).decode().removesuffix("h")

    @property
    def meta(self) -> str:
        return meta_key(self.namespace).decode()


@contextlib.contextmanager
def query_on(url: str, folder: Path, **options: Any) -> Iterator[Query]:
    made = Query(url, folder, **options)
    try:
        yield made
    finally:
        made.close()


class Moment:
    """What a server on its own has now. ``back``: it is killed, and starts again with no more than that.

    So does one whose last writes were not on its disk, or on the replica that was promoted.
    """

    def __init__(self, server: RedisServer) -> None:
        assert server.ask("CONFIG", "GET", "appendfsync") == {"appendfsync": "always"}
        self._server = server
        self._kept = server.folder / f"{server.name}-{uuid.uuid4().hex[:8]}"
        shutil.copytree(server.data_folder, self._kept)

    def back(self) -> None:
        self._server.kill()
        shutil.rmtree(self._server.data_folder)
        shutil.copytree(self._kept, self._server.data_folder)
        self._server.start()
