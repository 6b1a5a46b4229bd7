"""The names of a transaction's calls, as steps of its version: given, or made of the kind and the table."""

from __future__ import annotations

import itertools
from collections.abc import Collection

from tidegate.base.names import check_name
from tidegate.errors import ConfigError
from tidegate.spark.calls.records import Call, LocalState


def step_name(call: Call, given: object, taken: Collection[str]) -> str:
    """Return the name of a call: ``given``, or kind and table, with a number from the second such call on.

    Raises: ConfigError: the given name is not allowed, or an earlier call has it.
    """
    if given is not None:
        name = check_name("call", given)
        if name in taken:
            raise ConfigError(
                f"table {call.table}: an earlier call of this transaction has the name {name!r}; give each"
                " call a name of its own"
            )
        return name
    kind = call.kind.partition("(")[0]
    stem = f"{kind}.{call.name if isinstance(call, LocalState) else call.table}"
    numbered = (stem if number == 1 else f"{stem}.{number}" for number in itertools.count(1))
    return next(name for name in numbered if name not in taken)
