"""The preflight checks of an open: a log or a store whose set-up breaks a promise is refused."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidegate.base.checks import Check
from tidegate.committers.coordinator import Coordinator
from tidegate.errors import ConfigError

logger = logging.getLogger("tidegate")


def require_safe_setup(coordinator: Coordinator) -> None:
    """Refuse a log or a store that fails a check; with ``allow_unsafe`` only log warnings.

    A set-up that cannot work at all is refused either way. The same finding at several places is reported
    once. Raises: ConfigError, which names each failed check.
    """
    refuse_unsafe_log(coordinator)
    refuse_unsafe_store(coordinator)


def refuse_unsafe_log(coordinator: Coordinator) -> None:
    """Refuse a log that fails a check, as ``require_safe_setup``."""
    _refuse(coordinator.log.where, coordinator.log.checks(), allow=coordinator.options.allow_unsafe)


def refuse_unsafe_store(coordinator: Coordinator) -> None:
    """Refuse a store that fails a check, as ``require_safe_setup``."""
    store, options = coordinator.store, coordinator.options
    of_confirm = store.checks_of_confirm(replicas=options.wait_replicas, aof=options.wait_aof)
    checks = store.checks(value_bytes_max=options.value_bytes_max)
    _refuse(store.where, [*checks, *of_confirm], allow=options.allow_unsafe)


def _refuse(where: str, checks: Sequence[Check], *, allow: bool) -> None:
    findings = [check for check in checks if check.outcome != "pass"]
    failed = [check for check in findings if check.outcome == "fail"]
    refused = [check for check in failed if not (allow and check.may_be_allowed)]
    if refused:
        way_out = ", or set allow_unsafe (--allow-unsafe)" * all(check.may_be_allowed for check in failed)
        msg = f"{where} is not set up safely: {'; '.join(_told(refused))}. Correct it{way_out}"
        raise ConfigError(msg)
    for line in _told(findings):
        logger.warning("%s: %s", where, line)


def _told(checks: Sequence[Check]) -> list[str]:
    """Write a line for each finding, with all the places that share it."""
    alike: dict[tuple[str, str, str], list[Check]] = {}
    for check in checks:
        what = check.check.rpartition(": ")[2] if check.at else check.check
        alike.setdefault((what, check.found, check.promise), []).append(check)
    lines = []
    for (what, finding, promise), same in alike.items():
        parts = " and ".join(check.check.removesuffix(what).removesuffix(": ") for check in same)
        places = "; ".join(check.at for check in same if check.at)
        whose, where = f"{parts}: " * bool(parts), f"{places}; " * bool(places)
        lines.append(f"{whose}{what}: {finding} ({where}at stake: {promise})")
    return lines
