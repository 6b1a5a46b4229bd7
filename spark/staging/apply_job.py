"""Apply on the executors: one Spark task per range of key groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from tidegate.base.decoders import msgpack_decoder
from tidegate.committers.apply import apply
from tidegate.committers.apply.apply import ApplyWork
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import shared_store
from tidegate.spark.errors import told, typed
from tidegate.spark.placement.preferred import Places, map_at
from tidegate.wal.open_log import shared_log

_encoder = msgspec.msgpack.Encoder()


def apply_on_executors(
    session: Callable[[], Any],
    endpoints: Endpoints,
    places: Callable[[], Places | None] = lambda: None,
) -> Callable[[Sequence[ApplyWork]], None]:
    """Return the function by which a driver applies a large version.

    ``session`` returns the session in use, ``places`` the last preferred locations of key
    groups, which are preferred again. Spark retries a failed task on another executor: any task can
    apply any change-log, since it reads it from the log. Raises: a work's own error.
    """

    def run(works: Sequence[ApplyWork]) -> None:
        parts = [_encoder.encode(work) for work in works]
        preferred = places()
        with typed():
            if preferred is None or any(work.end_group > preferred.key_groups for work in works):
                numbers = session().range(0, len(parts), 1, len(parts))
                numbers.mapInArrow(_numbered(parts, told(_tasks(endpoints))), "first_group int").collect()
            else:
                hosts = [preferred.location_of(work.first_group) for work in works]
                map_at(session().sparkContext, list(zip(parts, hosts, strict=True)), told(_tasks(endpoints)))

    return run


def _numbered(
    parts: Sequence[bytes], do: Callable[[Iterable[bytes]], Iterable[int]]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        done = do(parts[number] for batch in batches for number in batch.column(0).to_pylist())
        yield pa.record_batch({"first_group": pa.array(done, pa.int32())})

    return run


def _tasks(endpoints: Endpoints) -> Callable[[Iterable[bytes]], Iterable[int]]:
    def run(parts: Iterable[bytes]) -> Iterator[int]:
        for part in parts:
            work = msgpack_decoder(ApplyWork).decode(part)
            named = endpoints.namespace, work.namespace
            log = shared_log(endpoints.wal, *named, endpoints.wal_options)
            store = shared_store(endpoints.store, *named, endpoints.store_options)
            apply.do(work, log, store)
            yield work.first_group

    return run
