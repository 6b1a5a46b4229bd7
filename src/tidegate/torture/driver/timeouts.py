"""Timeouts of processes: the exit codes that report them, what they prove, and the advice for them.

A log or a store that is down, or only too slow, breaks no promise: a driver then stops and reports it. Its
decisions stay decided, though, and the next driver has to be able to finish them (I4). That is checked before
such a cell is called unproven.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.errors import (
    BY_NAME,
    OutcomeUnknownError,
    StoreUnavailableError,
    TidegateError,
    WaitTimeoutError,
    WalUnavailableError,
)

HUNG = 71
"""The exit code of readers whose last round did not end in time."""
NO_ANSWER = (OutcomeUnknownError, WalUnavailableError, StoreUnavailableError, WaitTimeoutError)
NAMES = {each.exit_code: each.__name__ for each in NO_ANSWER} | {HUNG: "a round of reads did not end"}
"""By exit code: the error of the process, or the reason that it did not live to raise one."""
ERRORS = {each.exit_code: name for name, each in BY_NAME.items()}
"""Names of all errors, by exit code."""
MORE_TIME = (
    "it breaks no promise and proves none: run the cell again with more time (a larger timeout_s in"
    " --store-config or --wal-config, a longer --cell-deadline) or with less to do (--jobs 1)"
)
TEXT_MAX = 400


def exit_code_of(error: TidegateError) -> int:
    """Return the exit code of the first error in the chain of causes that is not about time.

    Without one it is the error's own. A version that could not be applied in time, because rows were missing
    that the store had acknowledged, is no matter of time.
    """
    for cause in _causes(error):
        if not isinstance(cause, NO_ANSWER):
            return cause.exit_code
    return error.exit_code


def _causes(error: BaseException | None) -> Iterator[TidegateError]:
    while isinstance(error, TidegateError):
        yield error
        error = error.__cause__


def reason(process: str, exit_code: int, output: str) -> str:
    """Describe why a cell is not proven: the process without an answer, its last message, and the advice."""
    name = NAMES[exit_code]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    message = next((line for line in reversed(lines) if name in line), lines[-1] if lines else "")
    error = message if name in message else f"{name}: {message}".removesuffix(": ")
    return f"{process} had no answer in time: {error[:TEXT_MAX]}; {MORE_TIME}"
