"""The demo: real departures, streamed into versioned tables while a reader checks every version."""

from tidegate.demo.run import Outcome, run

__all__ = ["Outcome", "run"]
