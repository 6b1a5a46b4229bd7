"""``tidegate explain``: the entry of docs/troubleshooting.md for an error's text or an alert's name.

Its data, explanations.json, is made from that page by tools/explanations.py.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tidegate.base.decoders import json_decoder
from tidegate.base.text import brief
from tidegate.cli.core.app import print_message
from tidegate.cli.core.options import Json, examples
from tidegate.cli.core.output import print_json
from tidegate.errors import ConfigError, TidegateError

EXAMPLES = examples(
    "tidegate explain FencedError",
    "tidegate explain TidegateLag",
    'tidegate explain "leases pin versions, the most that the store allows"',
    "tail -50 driver.log | tidegate explain",
)
NEAREST = 3
"""The number of entries that are named when none fits."""
NAME = re.compile(r"\b(?:Tidegate[A-Z]\w+|tidegate_\w+|[A-Z]\w+Error)\b")
FOREIGN_CLASS = re.compile(r"[A-Z]\w*(?:Error|Exception)")
"""A class of Spark's or of a query's own code, as an alert names it."""
FAILED = "A query has failed"
USUAL = {"StoreUnavailableError": "The store does not answer"}
"""The entry of a class whose text no entry quotes: then it has the words of a server or a client library."""
SUFFIX = re.compile(r"_(?:bucket|sum|count)$")
PAGE = "docs/troubleshooting.md"


class Entry(msgspec.Struct, frozen=True):
    """One entry of the page. ``messages`` are quoted parts of messages; "..." in them is any text."""

    title: str
    anchor: str
    names: tuple[str, ...]
    messages: tuple[str, ...]
    text: str


def explain(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]", help="The text of an error or a log line, or a name; else from stdin."
        ),
    ] = None,
    *,
    json: Json = False,
) -> None:
    """Print the cause and the next step of an error, an alarm or an alert. Needs neither log nor store.

    Exit code 1 when no entry fits: the nearest ones are named then.
    """
    query = " ".join(text) if text else "" if sys.stdin.isatty() else sys.stdin.read()
    if not query.strip():
        raise ConfigError("give the text of an error, or the name of an error or an alert")
    fitting = fitting_entries(query)
    shown = fitting or nearest_entries(query)
    if json:
        print_json({"fits": bool(fitting), "entries": [msgspec.to_builtins(entry) for entry in shown]})
    elif len(fitting) > NEAREST:
        print(
            f"{brief(query.strip())} has {len(fitting)} entries,"
            " its text in the driver's log picks one of them:\n"
        )
        print("\n".join(map(_heading, fitting)))
        for entry in _usual(fitting, query):
            print(f"\nMostly it is this:\n\n{entry.text}")
    elif fitting:
        print("\n\n".join(f"{_heading(entry)}\n\n{entry.text}" for entry in fitting))
    if not fitting:
        near = "; ".join(f'"{entry.title}"' for entry in shown)
        print_message(f"no entry fits; the nearest are {near}: `tidegate explain` with a title prints one")
        raise typer.Exit(TidegateError.exit_code)


@cache
def entries() -> tuple[Entry, ...]:
    """Return all entries."""
    content = Path(__file__).with_name("explanations.json").read_bytes()
    return json_decoder(tuple[Entry, ...]).decode(content)


def fitting_entries(query: str) -> list[Entry]:
    """Return the entries for a text: those of its messages, else of its title, else of the names in it."""
    words = " ".join(query.split())
    matches = [
        (len(message), entry) for entry in entries() for message in entry.messages if _in(message, words)
    ]
    if matches:
        longest = max(length for length, _ in matches)
        return _unique(entry for length, entry in matches if length == longest)
    titled = [entry for entry in entries() if words.lower() in (entry.title.lower(), entry.anchor)]
    # An alert is also known by its name without the prefix that all alerts have.
    alert = [f"Tidegate{words}"] if words.isalpha() else []
    names = {form for name in [*NAME.findall(words), *alert] for form in (name, SUFFIX.sub("", name))}
    named = [entry for entry in entries() if names.intersection(entry.names)]
    if not titled and not named and FOREIGN_CLASS.fullmatch(words):
        return [entry for entry in entries() if entry.title == FAILED]
    if titled or len(named) <= NEAREST or NAME.fullmatch(words.rpartition(".")[2]):
        return titled or named
    return _usual(named, words) or _nearest(words, named)


def _usual(named: Iterable[Entry], words: str) -> list[Entry]:
    titles = {title for name, title in USUAL.items() if name in words}
    return [entry for entry in named if entry.title in titles]


def _heading(entry: Entry) -> str:
    return f"{entry.title} ({PAGE}#{entry.anchor})"


def nearest_entries(query: str) -> list[Entry]:
    """Return the entries that have the most words of the text."""
    return _nearest(query, entries())


def _nearest(query: str, candidates: Iterable[Entry]) -> list[Entry]:
    """Rank by the number of common words; a rare word counts more, and any word less in a long entry."""
    words = _words(query)
    texts = [(entry, _words(f"{entry.title} {entry.text}")) for entry in candidates]
    numbers = Counter(word for _, of_entry in texts for word in of_entry)

    def score(of_entry: set[str]) -> float:
        common = sum(math.log(len(texts) / numbers[word]) for word in words & of_entry)
        return common / math.pow(len(of_entry), 0.25)

    return [entry for entry, of_entry in sorted(texts, key=lambda each: -score(each[1]))[:NEAREST]]


def _in(message: str, words: str) -> bool:
    """Whether the parts of a message follow each other in a text: the first place of each is the best one."""
    offset = 0
    for part in message.strip().split("..."):
        index = words.find(part, offset)
        if index < 0:
            return False
        offset = index + len(part)
    return True


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{3,}", text.lower()))


def _unique(matches: Iterable[Entry]) -> list[Entry]:
    return list(dict.fromkeys(matches))
