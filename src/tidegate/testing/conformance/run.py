"""A run of the conformance program: every check in order, and the removal of what it wrote.

>>> from tidegate.testing.conformance.run import conformance
>>> results = conformance("my-reader --json", "redis://localhost:6379")  # doctest: +SKIP
>>> all(result.outcome != "failed" for result in results)  # doctest: +SKIP
True
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tidegate.base.names import did_you_mean
from tidegate.errors import ConfigError, StoreUnavailableError
from tidegate.testing.conformance.checks import CHECKS
from tidegate.testing.conformance.program import (
    Reader,
    ReaderFailedError,
    ReaderRaisedError,
    UnsupportedRequestError,
)
from tidegate.testing.conformance.session import FailedError, Session, SkippedError
from tidegate.testing.conformance.writer import Place

PASSED: Literal["passed"] = "passed"
SKIPPED: Literal["skipped"] = "skipped"
FAILED: Literal["failed"] = "failed"
UNSUPPORTED = "the reader does not support a request of it"


class Result(NamedTuple):
    """The outcome of a check; ``text`` has the reason unless it passed."""

    name: str
    outcome: Literal["passed", "skipped", "failed"]
    text: str = ""


def conformance(
    command: str,
    store: str,
    store_options: Mapping[str, Any] | None = None,
    *,
    only: Sequence[str] = (),
    report: Callable[[Result], object] = lambda _: None,
) -> list[Result]:
    """Drive the reader ``command`` through all checks, or those in ``only``; return their results.

    The namespaces have names of their own, and are removed on return, also after an error. The log is in a
    temporary folder. ``report`` is called after each check. The reader's process has ended on return.

    Raises: ConfigError: the command cannot be started, or an argument does not fit. Errors of the store.
    StoreUnavailableError: a namespace could not be removed; the message names it.
    """
    if store.startswith("memory:"):
        raise ConfigError(
            f"{store}: the reader is a process of its own, and memory is not shared; use a server or files"
        )
    names = only or list(CHECKS)
    for name in names:
        if name not in CHECKS:
            raise ConfigError(
                f"there is no check {name!r}; known are {', '.join(CHECKS)}{did_you_mean(name, CHECKS)}"
            )
    with tempfile.TemporaryDirectory(prefix="tidegate-conformance-") as folder:
        place = Place(store, dict(store_options or {}), f"file://{folder}/wal")
        output = Path(folder, "reader.txt")
        session = Session(place, f"conformance-{secrets.token_hex(4)}", lambda: Reader(command, output))
        results = []
        try:
            for name in names:
                results.append(outcome_of(name, session))
                report(results[-1])
        finally:
            left = session.clean_up()
    if left:
        raise StoreUnavailableError(
            f"namespaces {', '.join(left)} could not be removed, and their log is gone: `tidegate drop"
            " --only-stores --force --namespace NAME --store URL --wal file:///tmp/no-log` removes one"
        )
    return results


def outcome_of(name: str, session: Session) -> Result:
    """Run one check."""
    try:
        CHECKS[name](session)
    except (FailedError, ReaderRaisedError) as error:
        return Result(name, FAILED, str(error))
    except ReaderFailedError as error:
        session.restart()
        return Result(name, FAILED, f"the reader broke the protocol: {error}")
    except UnsupportedRequestError:
        return Result(name, SKIPPED, UNSUPPORTED)
    except SkippedError as why:
        return Result(name, SKIPPED, str(why))
    return Result(name, PASSED)
