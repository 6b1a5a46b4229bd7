"""The adoption of a namespace by another Spark checkpoint, on an operator's request."""

from __future__ import annotations

import dataclasses

from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.lifecycle import Lifecycle, Side, lifecycle_of, refuse
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.opening.rekeyed import moved_from, source_of
from tidegate.committers.operations.local_coordinator import coordinator_for
from tidegate.committers.steps.append import append_adopted
from tidegate.errors import ConfigError
from tidegate.wal.fold import last_followed

LINEAGE_MAX = 200


def adopt(coordinator: Coordinator, lineage: str, shown: int | None = None) -> list[int]:
    """Make the namespace follow ``lineage`` (a query id) from here on; return the versions recovered.

    ``shown``: the version of the last batch that the operator was shown, after which the new query starts.

    It opens with the current lineage first, so that everything decided under it is visible before
    the new one starts. When the namespace follows ``lineage`` already, nothing is appended. Repeatable: a
    second Adopted of the same lineage changes nothing for readers or batches. Raises: ConfigError: the
    lineage cannot be one, the namespace does not exist, or has a later batch than the one shown; nothing
    appended. FencedError: another driver
    opened meanwhile, this Adopted will never count. OutcomeUnknownError: the log did not answer; adopt
    again. Otherwise as ``open_namespace``.
    """
    if not 0 < len(lineage) <= LINEAGE_MAX or not lineage.isprintable() or lineage != lineage.strip():
        msg = f"{lineage!r} is no query id: it is the id in the file metadata of Spark's checkpoint folder"
        raise ConfigError(msg)
    state = coordinator.decisions.catch_up()
    if state is None:
        msg = (
            f"there is no namespace {coordinator.endpoints.namespace} at {coordinator.log.where}, so there is"
            " nothing to adopt: check the log's URL and the name; a new namespace follows its first query by"
            " itself"
        )
        raise ConfigError(msg)
    if state.lineage == lineage:
        return []
    # An epoch of its own: a copy of this Adopted that lands late, after the next Open, is void.
    recovered = open_namespace(coordinator, None, command="adopt")
    last = last_followed(coordinator.folded)
    if shown is not None and last is not None and last.version > shown:
        raise ConfigError(
            f"namespace {state.name} has a later batch now, version {last.version}, not {shown} as shown."
            " Nothing was adopted; run this command again, which shows how the new query starts"
        )
    _fence_copy(coordinator)
    append_adopted(coordinator.decisions, lineage)
    return recovered


def _fence_copy(coordinator: Coordinator) -> None:
    """Fence the rekey that moves the namespace, so that its copy does not become whole any more.

    The namespace is open; before its last version, the rekey opens it again. Raises: ConfigError: the copy is
    whole by now. Otherwise as ``open_namespace``.
    """
    state, where = coordinator.folded, coordinator.endpoints
    moved = moved_from(state)
    if moved is None:
        return
    with coordinator_for(dataclasses.replace(where, namespace=moved.to), coordinator.options) as copy:
        made = copy.decisions.catch_up()
        source = None if made is None else source_of(made)
        if made is None or source is None or source.uuid != state.namespace:
            return
        if lifecycle_of(Side(made)) is Lifecycle.UNFINISHED:
            open_namespace(copy, None, command="recover")
        refuse("adopt", where.namespace, Side(state), Side(copy.folded))
