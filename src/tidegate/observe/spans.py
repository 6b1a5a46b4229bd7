"""Spans for OpenTelemetry: one for each version, with one for each of its phases below it.

They are created where the package ``opentelemetry-api`` is installed, with the tracer provider of
the process; without a provider they cost next to nothing. The span of a commit is a child of your
current span, if any; that of a pipelined commit has no parent.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from tidegate.observe import events
from tidegate.observe.events import Commit, Observer

NAME = "tidegate"


class Spans(Observer):
    """An observer that creates spans after a version, or its failure, with the original times."""

    def __init__(self, trace: Any) -> None:
        self._trace = trace
        self._tracer = trace.get_tracer(NAME)

    def committed(self, commit: Commit) -> None:
        self._make(commit, None)

    def failed(self, commit: Commit, error: BaseException) -> None:
        if commit.trace:
            self._make(commit, error)

    def _make(self, commit: Commit, error: BaseException | None) -> None:
        trace = self._trace
        known = {"namespace": commit.namespace, "version": commit.version, "store": commit.store}
        if commit.batch is not None:
            known["batch"] = commit.batch
        known |= {"rows": sum(commit.rows.values()), "bytes": commit.bytes, "retries": commit.retries}
        began_ns = commit.trace[0].began_ns if commit.trace else time.time_ns()
        attributes = {f"tidegate.{name}": value for name, value in known.items()}
        whole = self._tracer.start_span("tidegate.version", start_time=began_ns, attributes=attributes)
        inside, ended_ns = trace.set_span_in_context(whole), began_ns
        for phase, since_ns, seconds in commit.trace:
            ended_ns = since_ns + round(seconds * 1e9)
            part = self._tracer.start_span(f"tidegate.{phase}", context=inside, start_time=since_ns)
            part.end(ended_ns)
        if error is not None:
            whole.record_exception(error)
            whole.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
        whole.end(ended_ns)


_lock = threading.Lock()
_made: list[Spans] = []


def use_if_there() -> bool:
    """Create spans from now on, if OpenTelemetry is installed; return whether it is. Repeatable."""
    with _lock:
        if not _made:
            try:
                from opentelemetry import trace
            except ImportError:
                return False
            _made.append(Spans(trace))
            events.add(_made[0])
        return True
