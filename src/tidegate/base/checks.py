"""A check of something that the guarantees rest on: a line of ``tidegate doctor``, and a driver's
preflight.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

Outcome: TypeAlias = Literal["pass", "warn", "fail"]

ONLY_REDIS = "wait_replicas and wait_aof are for a store on Redis: leave them out"


class Check(NamedTuple):
    """The subject of a check, its state (with a remedy, when it is wrong), and the guarantee at stake.

    A driver does not open a log or a store with a ``fail``, unless ``allow_unsafe`` is set and the
    check ``may_be_allowed``. ``at`` is the full name, where there are several. ``seconds`` are those
    that ``tidegate doctor`` spent on it and the other checks of the same request.
    """

    check: str
    outcome: Outcome
    found: str
    promise: str
    at: str = ""
    may_be_allowed: bool = True
    seconds: float = 0.0


def by_server(checks: Iterable[tuple[str, Check]]) -> Iterator[Check]:
    """Yield the checks of several servers, given by address: once if all are alike, else with addresses."""
    alike: dict[Check, list[str]] = defaultdict(list)
    for address, check in checks:
        alike[check].append(address)
    for check, addresses in alike.items():
        yield check if len(alike) == 1 else check._replace(found=f"{', '.join(addresses)}: {check.found}")


def number_of(fields: Mapping[str, str], name: str) -> int | None:
    """Return a whole number among the fields that a server reported; None: it is not among them."""
    text = fields.get(name, "")
    return int(text) if re.fullmatch(r"-?\d+", text) else None
