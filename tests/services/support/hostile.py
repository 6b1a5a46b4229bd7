"""Attacks by tenants: who tries what, on what, and how it ends, as in docs/records/hostile-tenants.md.

    tools/run python tests/services/support/hostile.py        # prints the tables of that page

Each ``*/hostile.py`` has the attacks of one kind of server as a table, ``test_hostile_tenants.py`` runs
them with exactly the rights of deploy/rights.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

SERVERS = ("redis", "kafka", "cassandra")
REFUSED = "refused"
"""The server refuses the request; nothing changes."""


class Attack(NamedTuple):
    """One attack. ``by``: whose login it uses. ``ends``: ``REFUSED``, or what bounds it.

    ``run`` raises what the server refuses with; of an attack that is bounded it checks the bound.
    """

    name: str
    by: str
    on: str
    ends: str
    run: Callable[[Any], None]


def rows(server: str) -> list[str]:
    """The table of one kind of server."""
    attacks: list[Attack] = importlib.import_module(f"services.support.{server}.hostile").ATTACKS
    lines = ["| attack | with the login of | on | ends as |", "|---|---|---|---|"]
    return lines + [f"| {one.name} | {one.by} | {one.on} | {one.ends} |" for one in attacks]


if __name__ == "__main__":
    for kind in SERVERS:
        print(f"## Hostile tenants of {kind.capitalize()}\n", *rows(kind), "", sep="\n")
