"""The messages between a run and its Spark applications: jobs to them, exit codes back."""

from __future__ import annotations

import msgspec

from tidegate.torture.driver.driver import Plan

HOME, LOCAL = "home", "local"
"""The parts of an application's folder that are removed at the end."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The first answer of an application: its JVM, and its id in Spark."""

    jvm: int
    name: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One plan for an application. ``output``: the file for what it prints."""

    plan: Plan
    output: str
