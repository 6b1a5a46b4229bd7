"""The progress of a run of the simulation: a bar on a terminal, otherwise a line every 30 s."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from simulation.coverage import Tally

LINE_EVERY_S = 30.0
Show = Callable[[Tally], None]


@contextlib.contextmanager
def shown(before: int, more: int, console: Console | None = None) -> Iterator[Show]:
    """Yield a callback for the total so far: ``before`` schedules at the start, ``more`` are to come."""
    console = console or Console()
    started, last = time.monotonic(), [0.0]

    def rate(total: Tally) -> float:
        return (total.schedules - before) / max(time.monotonic() - started, 0.001)

    def line(total: Tally) -> None:
        now, left = time.monotonic(), before + more - total.schedules
        if now - last[0] >= LINE_EVERY_S or not left:
            last[0] = now
            ends = f", ends in {left / rate(total) / 60:.0f} min" if left else ""
            done = f"{total.schedules:,} schedules, {total.versions:,} versions"
            told = f"{done}, {rate(total):.0f} schedules a second{ends}"
            console.print(told, highlight=False, soft_wrap=True)

    if not console.is_terminal:
        yield line
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("schedules", total=before + more, completed=before)

        def move(total: Tally) -> None:
            told = f"schedules, {rate(total):.0f} a second, {total.versions:,} versions"
            bar.update(task, completed=total.schedules, description=told)

        yield move
