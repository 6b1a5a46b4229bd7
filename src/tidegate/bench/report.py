"""The report of a comparison: figures, each with the one that it is compared with in the same run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure: ``value`` of ``who``, in ``unit``, and its ratio to the same figure of ``beside``.

    ``samples``, in order, are those whose median or percentile it is, where there are few.
    """

    part: str
    what: str
    who: str
    value: float
    unit: str
    beside: str = ""
    ratio: float | None = None
    more_is_better: bool = False
    samples: tuple[float, ...] = ()


class Report(msgspec.Struct, kw_only=True):
    """All figures of a run, its settings and versions, and what was left out, with reasons."""

    made_at: str
    settings: dict[str, str]
    figures: list[Figure] = msgspec.field(default_factory=list)
    left_out: list[str] = msgspec.field(default_factory=list)
    seconds: float = 0.0

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return part, figure, who, value and ratio, formatted for people."""
        return [(f.part, f.what, f.who, shown(f.value, f.unit), shown_ratio(f)) for f in self.figures]


def compared(
    part: str,
    what: str,
    unit: str,
    samples: Mapping[str, Sequence[float]],
    *,
    ours: Iterable[str],
    at: float = 0.5,
    more_is_better: bool = False,
    samples_max: int = 20,
) -> list[Figure]:
    """Compute the same figure of several: the ``at`` percentile of each one's samples.

    Ours have their ratio to the best of the others.
    """
    values = {who: percentile(of, at) for who, of in samples.items() if of}
    own = set(ours)
    others = {who: value for who, value in values.items() if who not in own}
    best = (max if more_is_better else min)(others, key=lambda who: others[who], default="")
    figures = []
    for who, value in values.items():
        beside = best if who in own and others.get(best) else ""
        few = tuple(samples[who]) if len(samples[who]) <= samples_max else ()
        figures.append(
            Figure(
                part=part,
                what=what,
                who=who,
                value=value,
                unit=unit,
                beside=beside,
                ratio=value / others[beside] if beside else None,
                more_is_better=more_is_better,
                samples=few,
            )
        )
    return figures


def percentile(samples: Sequence[float], at: float) -> float:
    """Return the sample at or below which the share ``at`` of them is (nearest rank).

    >>> percentile([3.0, 1.0, 2.0], 0.5), percentile([1.0, 2.0], 0.99)
    (2.0, 2.0)
    """
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(at * len(ordered)) - 1)]


def shown(value: float, unit: str) -> str:
    """Format a value for people, with three digits.

    >>> shown(1234567.0, "rows/s"), shown(0.01234, "s"), shown(12.345, "ms")
    ('1,230,000 rows/s', '0.0123 s', '12.3 ms')
    """
    if not value or not math.isfinite(value):
        return f"{value:g} {unit}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{max(0, digits)}f} {unit}"


def shown_ratio(figure: Figure) -> str:
    """Format the ratio for people: ``0.45x of Arrow + MSET``; '' where there is none."""
    return "" if figure.ratio is None else f"{figure.ratio:.2f}x of {figure.beside}"
