"""Installation of tidegate's functions on every primary, for the administrator of a shared server."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import redis

from tidegate.base.urls import redact
from tidegate.errors import ConfigError
from tidegate.sinks.redis.client.calls import Calls
from tidegate.sinks.redis.client.functions import LIBRARY, library, library_name
from tidegate.sinks.redis.client.replies import DENIED, LOST, passes, takes_no_functions
from tidegate.sinks.redis.client.servers import Node, servers_of
from tidegate.sinks.redis.client.settings import settings_of

Ask = Callable[[tuple[bytes, ...]], Any]
Result = TypeVar("Result")


class Installed(NamedTuple):
    """One primary: whether it had this release's library before, and the libraries of other releases."""

    address: str
    before: bool
    others: tuple[str, ...]


def install(url: str, options: dict[str, Any], *, remove_others: bool, dry_run: bool) -> list[Installed]:
    """Load the library of this release where it is missing, and compare its text where it exists.

    ``remove_others``: delete the libraries of other releases, also on servers that had only those.
    ``dry_run``: write nothing. Repeatable: a server that has the library keeps it. Raises:
    ConfigError where a library of this name has another text; nothing was written then.
    """
    where = f"store {redact(url)}"
    calls = Calls(servers_of(settings_of(url, options)), where, lambda _: True, frozenset)
    try:
        texts_at = _on_each(calls, _libraries)
        for address, texts in texts_at.items():
            if texts.get(library_name(), library()) != library():
                raise ConfigError(
                    f"{where}: {address} has a library {library_name()} with another text, which every"
                    " client runs: a user with the right function|load put it there. Check who has that"
                    f" right, take it away, then run FUNCTION DELETE {library_name()}, and this command"
                )
        if not dry_run:
            _on_each(calls, lambda ask: _change(ask, remove_others=remove_others))
        return [
            Installed(address, library_name() in texts, tuple(sorted({*texts} - {library_name()})))
            for address, texts in texts_at.items()
        ]
    finally:
        calls.servers.close()


def _on_each(calls: Calls, work: Callable[[Ask], Result]) -> dict[str, Result]:
    """Return the result of ``work``, which must be repeatable, for each primary, by address."""

    def at(node: Node) -> Result:
        try:
            return work(functools.partial(calls.at, node))
        except (*DENIED, *LOST):
            raise
        except redis.ResponseError as error:
            if passes(error):
                raise
            raise takes_no_functions(calls.where, node.address, error) from error

    return calls.on_each_primary(at)


def _change(ask: Ask, *, remove_others: bool) -> None:
    texts = _libraries(ask)
    if library_name() not in texts:
        ask((b"FUNCTION", b"LOAD", library()))
    if remove_others:
        for name in sorted({*texts} - {library_name()}):
            ask((b"FUNCTION", b"DELETE", name.encode()))


def _libraries(ask: Ask) -> dict[str, bytes]:
    """Return the text of each library of this format, by name."""
    reply = ask((b"FUNCTION", b"LIST", b"LIBRARYNAME", f"{LIBRARY}_*".encode(), b"WITHCODE"))
    libraries = [dict(zip(pairs[::2], pairs[1::2], strict=True)) for pairs in reply]
    return {fields[b"library_name"].decode(): fields[b"library_code"] for fields in libraries}
