"""``tidegate bench``: what atomic versions cost on your own servers, beside writers without any guarantee."""

from tidegate.bench.plan import PARTS, Plan
from tidegate.bench.report import Figure, Report
from tidegate.bench.run import run

__all__ = ["PARTS", "Figure", "Plan", "Report", "run"]
