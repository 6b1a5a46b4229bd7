"""Live progress of a running query: in place on a terminal, below the cell in a notebook.

    from tidegate.observe import progress

    with progress.shown():
        query.awaitTermination()

It shows the versions of all sinks of this process. Elsewhere than on a terminal or in a notebook
nothing is shown: the log has a line for each version (logger "tidegate", level INFO).
"""

from __future__ import annotations

import collections
import contextlib
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.observe import events
from tidegate.observe.events import Commit, Observer

LAST = 8
"""The number of versions shown."""
WIDTH = 120
"""The width of the table in a notebook, in characters."""
RATE_AFTER_S = 10.0
PHASES = ("stage", "decide", "apply", "publish")


class Progress(Observer):
    """The last versions, and their total number. ``show`` gets a rich table after each version."""

    def __init__(self, show: Callable[[Any], None]) -> None:
        self._show, self._lock = show, threading.Lock()
        self._last: collections.deque[Commit] = collections.deque(maxlen=LAST)
        self._began = time.monotonic()
        self.versions = self.rows = 0
        self.error = ""

    def committed(self, commit: Commit) -> None:
        with self._lock:
            self.versions += 1
            self.rows += sum(commit.rows.values())
            self.error = ""
            self._last.append(commit)
            self._show(self.table())

    def failed(self, commit: Commit, error: BaseException) -> None:
        with self._lock:
            self.error = f"batch {commit.batch}: {type(error).__name__}: {error}"
            self._show(self.table())

    def table(self) -> Any:
        """Return a rich table: a line per version, newest last, with its seconds by phase."""
        from rich.table import Table
        from rich.text import Text

        took_s = time.monotonic() - self._began
        title = f"{self.versions:,} versions, {self.rows:,} rows"
        if took_s >= RATE_AFTER_S:
            title += f", {60 * self.versions / took_s:,.0f} versions a minute"
        table = Table(title=title, title_justify="left", header_style="bold", box=None, padding=(0, 1))
        for name in ("namespace", "version", "batch", "rows", "seconds", *PHASES):
            table.add_column(name, justify="left" if name == "namespace" else "right")
        for commit in self._last:
            phases = (f"{commit.phases.get(name, 0.0):.3f}" for name in PHASES)
            batch = "" if commit.batch is None else str(commit.batch)
            counts = (f"{sum(commit.rows.values()):,}", f"{commit.seconds:.3f}")
            table.add_row(Text(commit.namespace), f"{commit.version:,}", batch, *counts, *phases)
        if self.error:
            table.caption = Text(self.error, style="red")
        return table


@contextlib.contextmanager
def shown() -> Iterator[Progress]:
    """Show versions as they become visible until the block ends. Free of cost where nothing can be shown."""
    with _showing() as show:
        progress = Progress(show)
        events.add(progress)
        try:
            yield progress
        finally:
            events.remove(progress)


@contextlib.contextmanager
def _showing() -> Iterator[Callable[[Any], None]]:
    shell = _notebook()
    if shell is not None:
        yield _below_the_cell()
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False) as live:
            yield lambda table: live.update(table, refresh=True)
    else:
        yield lambda _: None


def _notebook() -> Any:
    """Return the shell of a notebook, None elsewhere. A notebook has imported IPython already."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if shell is not None and not hasattr(shell, "pt_app") else None  # a terminal's has a prompt


def _below_the_cell() -> Callable[[Any], None]:
    """Return a function that replaces the content of one display, from any thread."""
    from IPython import display

    notebook: Any = display  # it is not typed
    handle = notebook.display(notebook.HTML(""), display_id=True)

    def show(table: Any) -> None:
        from rich.console import Console

        console = Console(file=io.StringIO(), record=True, width=WIDTH, force_jupyter=False)
        console.print(table)
        page = console.export_html(
            inline_styles=True, code_format='<pre style="line-height:1.2">{code}</pre>'
        )
        handle.update(notebook.HTML(page))

    return show
