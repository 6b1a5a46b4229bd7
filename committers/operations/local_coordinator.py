"""A coordinator without Spark, for commands: it applies large versions in processes of its own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from tidegate.base.clock import Clock
from tidegate.committers.apply.processes import jobs_here, local_apply
from tidegate.committers.background.follower import Follower, follower_for
from tidegate.committers.coordinator import Coordinator, process_writer
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.wal.open_log import open_log


@contextlib.contextmanager
def coordinator_for(
    where: Endpoints, options: Options | None = None, jobs: int | None = 1
) -> Iterator[Coordinator]:
    """Give a coordinator that is not open yet; log and stores are closed in the end.

    It applies large versions in ``jobs`` processes; None: as many as fit this machine.
    """
    options, jobs = options or Options(), jobs or jobs_here()
    apply_large = local_apply(where.only(), jobs, options.apply_deadline_s)
    with contextlib.ExitStack() as closing:
        if apply_large is not None:
            tasks = max(jobs, options.tasks or 1)  # each needs a key group
            options = dataclasses.replace(options, parallelism=min(tasks, options.key_groups or tasks))
            closing.callback(apply_large.close)
        log = open_log(where.wal, where.namespace, where.wal_options)
        closing.callback(log.close)
        stores = []
        for ref in where.stores:
            stores.append(open_store(ref.url, where.namespace, ref.options))
            closing.callback(stores[-1].close)
        writer = process_writer(Clock())
        coordinator = Coordinator(
            where, log, stores[0], options, apply_on_executors=apply_large, writer=writer
        )
        coordinator.others = tuple(stores[1:])
        yield coordinator


def followers_in(coordinator: Coordinator, jobs: int | None = 1) -> list[Follower]:
    """Make a follower for each of the coordinator's other stores; large versions as ``coordinator_for``."""
    where, deadline_s = coordinator.endpoints, coordinator.options.apply_deadline_s
    return [
        follower_for(coordinator, ref, store, local_apply(where.only(ref), jobs or jobs_here(), deadline_s))
        for ref, store in zip(where.also, coordinator.others, strict=True)
    ]
