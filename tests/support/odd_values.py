"""Values of a wrong type and of any size, for every argument of a public call: errors are typed and short."""

import datetime
import decimal
from collections.abc import Callable
from typing import Any

from tidegate.errors import TidegateError

HUGE = 10**5000


class Unprintable:
    def __repr__(self) -> str:
        raise KeyError("no text")


VALUES: list[Any] = [
    *(HUGE, -HUGE, [HUGE], {HUGE: HUGE}, (HUGE,), {"a": HUGE}, {"orders": {0: HUGE}}, {"orders": {HUGE: 1}}),
    *(None, True, -1, 5, 2**70, 1.5, float("nan"), float("inf"), object(), Unprintable(), [Unprintable()]),
    *(decimal.Decimal("sNaN"), decimal.Decimal("NaN"), decimal.Decimal("1E+999999"), 1j, range(3), len),
    *("", "x" * 100_000, "a\x00b", "\ud800", "\n" * 5_000, b"a", b"x" * 100_000, bytearray(b"a")),
    memoryview(b"a"),
    *([], ["t"], [None], [["t"]], [b"a"], {1: 2}, {1}, {"aircraft": 5}),
    *({"aircraft": [[]]}, {"aircraft": {1: 2}}),
    *(
        datetime.datetime(1, 1, 1),  # noqa: DTZ001
        datetime.datetime.max.replace(tzinfo=datetime.timezone.utc),
        datetime.date.min,
    ),
]


def fault_of(error: BaseException) -> str:
    """Describe an error that no reader's call may raise; '': it may."""
    if not isinstance(error, TidegateError):
        return f"{type(error).__name__}: {str(error)[:200]}"
    return (
        "" if len(str(error)) <= 1_000 else f"a message of {len(str(error))} characters: {str(error)[:100]}"
    )


def faults(call: Callable[[Any], Any], values: list[Any] = VALUES) -> list[str]:
    """Call with each value; list the errors of Python, and the long ones."""
    found = []
    for number, value in enumerate(values):
        try:
            call(value)
        except Exception as error:  # noqa: BLE001
            if fault := fault_of(error):
                found.append(f"value {number}, {type(value).__name__}: {fault}")
    return found
