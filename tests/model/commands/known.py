"""The findings that are known and open. An entry is removed with the change that mends it: tests are strict."""

from __future__ import annotations

import re
from typing import NamedTuple


class Known(NamedTuple):
    """``word`` is a shortest one that ends in it; ``text`` matches what is found then; ``why`` is the cause."""

    word: str
    text: str
    why: str


KNOWN = {
    "backup after a start": Known(
        "replace backup",
        r"backup: .* cannot be restored: .*the manifest of version \d+ cannot be right",
        "restore-from gives versions that it makes again the table starts of a later one",
    ),
    "stream in another history": Known(
        "drop batch batch",
        r"return: a stream of",
        "the offset of a stream is a number without its history",
    ),
}


def known_as(word: tuple[str, ...], wrong: str) -> str:
    """Return the name of the known finding that this is; '': it is a new one."""
    del word
    return next((name for name, each in KNOWN.items() if re.match(each.text, wrong, re.DOTALL)), "") if wrong else ""
