"""The reports of commands about the stores besides the primary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from tidegate.cli.core.app import say
from tidegate.committers.background.follower import Follower, Standing
from tidegate.committers.repair.below_horizon import Repaired
from tidegate.committers.repair.rebuild import Source
from tidegate.errors import BY_NAME, StoreUnavailableError, TidegateError
from tidegate.sinks.capabilities import SupportsRebuild


def repaired(follower: Follower, source: Source | None = None) -> Repaired:
    """Repair a store and return what was restored; its ``standing`` records errors."""
    try:
        return follower.repair(source if isinstance(follower.store, SupportsRebuild) else None)
    except TidegateError as error:
        follower.retried(error)
        return Repaired([])


def stores_as_json(standings: Sequence[Standing]) -> list[dict[str, Any]]:
    """Return a JSON object for each."""
    return [{"name": one.name, "visible": one.visible, "error": one.error or None} for one in standings]


def print_standings(standings: Sequence[Standing]) -> None:
    """Print a line for each store that is at the log's end."""
    for one in standings:
        if not one.error:
            print(f"store {one.name}: version {one.visible} is visible")


def fail_if_behind(standings: Sequence[Standing]) -> None:
    """End the command with the first error's exit code when a store could not be brought to the end."""
    behind = [one for one in standings if one.error]
    for one in behind:
        say(f"store {one.name}: {one.error}")
    if behind:
        kind = BY_NAME.get(behind[0].error.partition(":")[0], StoreUnavailableError)
        raise typer.Exit(kind.exit_code)
