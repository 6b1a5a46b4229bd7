"""``tidegate init``: creation of a namespace."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.base.urls import redact
from tidegate.cli.core.operation import Operation, operation
from tidegate.cli.core.options import examples
from tidegate.committers.opening.lifecycle import refuse_other_uuid
from tidegate.committers.opening.open import ensure_made, refuse_lost
from tidegate.sinks.records import Identity

EXAMPLES = examples(
    "tidegate init --store sqlite:///data/store --wal file:///data/wal --namespace flights",
    "tidegate init --store cassandra://node1,node2/tidegate --store-config FILE --wal URL --namespace x",
)


@operation("tidegate init", without=("force",))
def init(
    work: Operation,
    key_groups: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Key groups, fixed for life: ten for each task or more. Default 128; 1024 above 50 M keys.",
        ),
    ] = None,
) -> None:
    """Make a namespace in log and store. May be repeated.

    A query makes its namespace by itself at its first batch; init is for readers that come
    before it, to choose the number of key groups, and to make Cassandra's keyspace and tables. Refused
    when the log has versions and the store has nothing: then `tidegate recover` rebuilds the store.
    """
    with work.coordinator(key_groups=key_groups) as coordinator:
        prepared = [part for each in coordinator.stores for part in each.prepare()]
        refuse_lost(coordinator.log, coordinator.store, coordinator.decisions.catch_up())
        fresh = coordinator.store.identity() is None
        state = ensure_made(coordinator)
        coordinator.log.create()  # again, when a part of it was removed
        for other in coordinator.others:  # the log lists them when the first query opens
            other.create(Identity(state.namespace, state.name, state.key_groups))
            refuse_other_uuid(coordinator.log, other, state)
        where = coordinator.endpoints
    origin = "made," if fresh else "was there already,"
    lines = [
        *(f"made {part}" for part in prepared),
        f"namespace {state.name} {origin} with {state.key_groups} key groups (uuid {state.namespace})",
    ]
    if fresh:
        lines += [
            f"  log    {redact(where.wal)}",
            *(f"  store  {redact(each.url)}" for each in where.stores),
            "next: start a query with tidegate.spark.VersionedSink; `tidegate status` shows its versions",
        ]
    facts = {"uuid": state.namespace, "key_groups": state.key_groups, "made": fresh, "prepared": prepared}
    work.report(facts, lines)
