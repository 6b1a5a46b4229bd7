"""What a driver refuses to open on: a log or a store that is set up so that a promise cannot be kept."""

from __future__ import annotations

import logging

from tidegate.committers.driver import Driver
from tidegate.errors import ConfigError

logger = logging.getLogger("tidegate")


def refuse_unsafe(driver: Driver) -> None:
    """ConfigError when a check of the log fails, naming each; only warnings with ``allow_unsafe``."""
    found = [check for check in driver.log.checks() if check.outcome != "pass"]
    failed = [check for check in found if check.outcome == "fail"]
    if failed and not driver.options.allow_unsafe:
        why = "; ".join(f"{check.check}: {check.found} (at stake: {check.promise})" for check in failed)
        msg = f"{driver.log.where} is not set up safely: {why}. Mend it, or set allow_unsafe (--allow-unsafe)"
        raise ConfigError(msg)
    for check in found:
        logger.warning("%s: %s: %s (at stake: %s)", driver.log.where, check.check, check.found, check.promise)
