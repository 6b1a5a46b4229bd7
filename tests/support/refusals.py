"""The table of a Redis server's errors, as the page has it: each reply, and the errors of each column."""

from __future__ import annotations

from tidegate.errors import ConfigError, CorruptError, StoreUnavailableError
from tidegate.sinks.redis.client.replies import PARTS, WORDS, Effect

CALL, SNAPSHOT, WAIT, MIRROR, WRITER = range(5)
"""The page's columns after the first."""
ERRORS = {
    Effect.ELSEWHERE: (StoreUnavailableError, None, None, None, StoreUnavailableError),
    Effect.LATER: (StoreUnavailableError, None, None, None, StoreUnavailableError),
    Effect.LOGIN: (ConfigError, None, None, None, ConfigError),
    Effect.FULL: (None, None, None, None, StoreUnavailableError),
    Effect.MISTAKE: (ConfigError, ConfigError, ConfigError, None, ConfigError),
    Effect.DAMAGE: (CorruptError, CorruptError, None, None, CorruptError),
}
"""The error in each column; None: it continues, or ends without an error of its own."""
OURS = {Effect.ELSEWHERE: "TGSERVER replica", Effect.LATER: "ERR an error of a later release"}
"""Replies that no word of the table is of."""
USES_EVAL = "unknown command"
"""Of a function: the server has none, and scripts are used in their place."""
TO = {"MOVED": "MOVED 1 127.0.0.1:1", "ASK": "ASK 1 127.0.0.1:1"}

REPLIES = [
    *((TO.get(word, f"{word} of a test"), effect) for word, effect in WORDS),
    *((f"ERR {part} of a test", effect) for part, effect in PARTS),
    *((reply, effect) for effect, reply in OURS.items()),
]
"""A reply of each row, and its effect."""


def first_cell(effect: Effect) -> str:
    """Return the replies of a row of the page, in the table's order."""
    words = [f"`{word}`" for word, of in WORDS if of is effect]
    parts = [f'"{part}"' for part, of in PARTS if of is effect]
    ours = {Effect.ELSEWHERE: ["`TGSERVER replica`"], Effect.LATER: ["any error that is not in this table"]}
    return ", ".join(words + parts + ours.get(effect, []))
