"""Which rows of a key no reader can reach any more: vacuum's rule, where every version is kept."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.sinks.layout import payload


def unreachable(versions: Mapping[int, bytes], horizon: int, start: int, at_us: int) -> list[int]:
    """Versions of one key's rows that no reader at or above the horizon can reach, ascending.

    ``start`` is the table's start at the horizon, ``at_us`` when that was decided. A delete marker goes
    when nothing that it hides is left below it (T27), and so does a row that has expired then.
    """
    old = sorted(version for version in versions if version <= horizon)
    newest_hides = bool(old) and payload(versions[old[-1]], at_us) is None
    return old if old and (newest_hides or old[-1] < start) else old[:-1]
