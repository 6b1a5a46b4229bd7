"""Printed commands with the places of the command that prints them.

A printed command is run as it stands. Without ``--namespace`` it takes that of the variables or of
tidegate.toml, which may be another one. So it gets the namespace that an option gave; of the other options
those that the variables have with another value. Where there is no variable it is refused for a lack of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from shlex import quote

from tidegate.base.names import NAME
from tidegate.base.urls import redact
from tidegate.cli.core.options import split_stores
from tidegate.cli.core.settings_file import URLS, variable_of

PRINTED = re.compile(r"`(tidegate ([a-z][a-z -]*[a-z])[^`]*)`")
MENTIONED = re.compile(r"\bnamespace ([A-Za-z0-9_.-]*[A-Za-z0-9_-])")
NAMED = re.compile(r"([a-z0-9_-]{1,40}=)?(.*)", re.DOTALL)
ORDER = ("namespace", "store", "store_config", "wal", "wal_config")


def with_places(text: str, words: Sequence[str], taken: Callable[[Sequence[str]], set[str]]) -> str:
    """Return the text, its commands in backquotes with the options of ``words`` that say where.

    ``words`` are those of the command that prints it, its name first. An option that a printed command has
    itself, or does not take, is left out; so are logins. ``taken`` returns those that a command takes.
    """
    given = {option: values for key in ORDER if (values := _given(option := _option(key), key, words))}
    first = MENTIONED.search(text)
    if first and first[1] in _values("--to", words):  # an error about the copy, not about its source
        given = {"--namespace": [first[1]]} | {key: given[key] for key in given if key != "--namespace"}

    def placed(match: re.Match[str]) -> str:
        whole, names = match.groups()
        takes = taken(names.split())
        has = {word.partition("=")[0] for word in whole.split()}
        more = [f" {option} {value}" for option in given if option in takes - has for value in given[option]]
        return f"`{whole}{''.join(more)}`"

    return PRINTED.sub(placed, text) if given else text


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _given(option: str, key: str, words: Sequence[str]) -> list[str]:
    """Return the values that the words give an option, as they may be printed."""
    values = list(_values(option, words))
    known = os.environ.get(variable_of(key), "")
    if (not known and key != "namespace") or values == (split_stores(known) if key == "store" else [known]):
        return []
    shown = []
    for value in values:
        name, place = re.fullmatch(NAMED, value).groups(default="")  # type: ignore[union-attr]
        if key == "namespace" and not NAME.fullmatch(value):  # it may be a URL in the wrong place
            continue
        is_url = key in URLS or "://" in place
        shown.append(quote(name + (redact(place) if is_url else place)))
    return list(dict.fromkeys(shown))


def _values(option: str, words: Sequence[str]) -> Iterator[str]:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            yield value if equals else following
