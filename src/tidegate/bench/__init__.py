"""``tidegate bench``: the cost of atomic versions on your own servers, against writers without guarantees."""

from tidegate.bench.plan import PARTS, Plan
from tidegate.bench.report import Figure, Report
from tidegate.bench.run import run

__all__ = ["PARTS", "Figure", "Plan", "Report", "run"]
