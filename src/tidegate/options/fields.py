"""A field of ``Options``: its default, the text of its documentation, and the check of its value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tidegate.base.text import brief
from tidegate.errors import ConfigError

DAY_S = 86_400
Check = Callable[[str, Any], None]
"""A check of a value with the option's name for the message. Raises: ConfigError."""


def option(value: Any, text: str, check: Check | None = None, *, default: str = "") -> Any:
    """Make the field of an option. None is always allowed where it is the default.

    ``text`` is Markdown for its line in docs/configuration.md, ``default`` what the page prints for None.
    """
    if check is not None and value is None:
        check = _or_none(check)
    return dataclasses.field(default=value, metadata={"text": text, "default": default, "check": check})


def fixed(value: Any, check: Check, *, optional: bool = False) -> Any:
    """Make a field that is no option: only tests and ``tidegate torture`` set it."""
    return dataclasses.field(default=value, metadata={"check": _or_none(check) if optional else check})


def _or_none(check: Check) -> Check:
    def checked(name: str, value: Any) -> None:
        if value is not None:
            check(name, value)

    return checked


def whole(least: int, most: int | None = None) -> Check:
    """Return the check of a whole number within these bounds."""

    def check(name: str, value: Any) -> None:
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
        if not fits or (most is not None and value > most):
            limit = f"{least} or more" + ("" if most is None else f", at most {most:,}")
            raise ConfigError(f"{name} is {brief(value)}; it must be a whole number, {limit}")

    return check


def seconds(below: int = DAY_S) -> Check:
    """Return the check of a duration in seconds."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < below:
            limit = f"a number of seconds above 0 and below {below:,}"
            raise ConfigError(f"{name} is {brief(value)}; it must be {limit}")

    return check


def flag() -> Check:
    """Return the check of a switch."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {brief(value)}; it must be True or False")

    return check


def one_of(*values: str) -> Check:
    """Return the check of a choice."""

    def check(name: str, value: Any) -> None:
        if value not in values:
            raise ConfigError(f"{name} is {brief(value)}; it must be {' or '.join(map(repr, values))}")

    return check


def of_kind(kind: type) -> Check:
    """Return the check of a record's type."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, kind):
            raise ConfigError(f"{name} is {brief(value)}; it must be a {kind.__name__}")

    return check
