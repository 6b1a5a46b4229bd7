"""The messages between a run and its Spark applications: jobs to them, and READY or an exit code back."""

from __future__ import annotations

import msgspec

from tidegate.torture.driver.driver import Plan

READY = b"ready"
"""The first answer of an application."""
HOME, LOCAL = "home", "local"
"""The parts of an application's folder that are removed at the end."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One plan for an application. ``output``: the file for what it prints."""

    plan: Plan
    output: str
