r"""The standard streams of the process: all three exist, and none fails on a character.

A caller may have closed some of them (``2>&-``). Python has None for these, and the next file that
is opened takes the number: text that a library writes to standard error would end up in the log or
the store.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys

NAMES = ("stdin", "stdout", "stderr")
"""Their index is their number."""
ESCAPED = "tidegate.escaped"


def made_ready() -> None:
    """Replace each closed stream by a null stream, and let standard output escape unencodable text."""
    for number, name in enumerate(NAMES):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        with contextlib.suppress(io.UnsupportedOperation):
            sys.stdout.reconfigure(errors=ESCAPED)


def escaped(error: UnicodeError) -> tuple[str, int]:
    r"""Escape unencodable text as JSON does, so that JSON stays JSON.

    >>> '"\u00e9\U0001f600"'.encode("ascii", ESCAPED)
    b'"\\u00e9\\ud83d\\ude00"'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[index : index + 4]}" for index in range(0, len(units), 4)), error.end


codecs.register_error(ESCAPED, escaped)
