"""The places of a namespace: the URLs of its log and its stores, with their clients' options."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.base.names import check_name
from tidegate.base.text import brief
from tidegate.base.urls import redact, scheme_of
from tidegate.errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True)
class StoreRef:
    """One store: its name in the log, its URL, its client's options.

    Raises: ConfigError: the name is not allowed.
    """

    name: str
    url: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if STORE_NAME.fullmatch(self.name) is None:
            raise ConfigError(f"{brief(self.name)} cannot name a store: {_NO_NAME}")

    def __repr__(self) -> str:
        return f"StoreRef({self.name!r}, {redact(self.url)!r})"


STORE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_NAMED = re.compile(r"([^=:/]*)=([^:/]+:.*)", re.DOTALL)
"""``name=URL``: a URL has a colon before any equals sign."""
_NO_NAME = "use 1 to 40 of the characters a-z 0-9 _ and -, the first a letter or a digit"


def parse_store(text: str, options: dict[str, Any] | None = None) -> StoreRef:
    """Parse the store in ``URL`` or ``name=URL``.

    Without a name it is named after its kind, never after its host: servers move, and the log keeps
    the name.

    >>> parse_store("rediss+cluster://h1:6379,h2:6379").name, parse_store("copy=sqlite:///data/copy").name
    ('redis', 'copy')
    """
    if not isinstance(text, str):
        raise ConfigError(f"a store is {type(text).__name__}; it must be text: a URL, or name=URL")
    named = _NAMED.fullmatch(text)
    if named and scheme_of(named[2]):
        if STORE_NAME.fullmatch(named[1]) is None:  # not shown: it may be a piece of a login
            raise ConfigError(f"the text before = cannot name a store: {_NO_NAME}")
        return StoreRef(named[1], named[2], options or {})
    kind = scheme_of(text).partition("+")[0].lower()
    derived = re.sub(r"[^a-z0-9_-]", "", "redis" if kind == "rediss" else kind)[:40].lstrip("_-")
    return StoreRef(derived or "store", text, options or {})


def parse_stores(
    stores: str | Sequence[str | StoreRef], options: Mapping[str, Any] | None = None
) -> tuple[StoreRef, ...]:
    """Parse the stores that a user named, the primary first.

    A single one is a URL, and ``options`` are its client's. For a list, ``options`` are by the
    store's name. Raises: ConfigError: none, two of one name or at one location, or options of a
    store that is not listed.
    """
    if isinstance(stores, str):
        return (parse_store(stores, dict(options or {})),)
    if not isinstance(stores, Sequence):
        raise ConfigError(f"store is {type(stores).__name__}; it must be a URL, or a list of URL or name=URL")
    references = tuple(
        reference if isinstance(reference, StoreRef) else parse_store(reference) for reference in stores
    )
    names = [reference.name for reference in references]
    if not references:
        raise ConfigError("store=[]: name at least one store")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        msg = (
            f"two stores are called {twice[0]}: give each a name of its own, as in {twice[0]}=URL and"
            " copy=URL; the log keeps these names"
        )
        raise ConfigError(msg)
    _refuse_one_place(references)
    by_store = dict(options or {})
    unknown = sorted(
        name for name in by_store if name not in names or not isinstance(by_store[name], Mapping)
    )
    if unknown:
        msg = (
            f"store_options {', '.join(unknown)}: of several stores they are by name,"
            f" {{{names[0]!r}: {{option: value}}}}; the stores are {', '.join(names)}"
        )
        raise ConfigError(msg)
    return tuple(
        dataclasses.replace(reference, options={**reference.options, **by_store.get(reference.name, {})})
        for reference in references
    )


def _refuse_one_place(stores: Sequence[StoreRef]) -> None:
    """Raise ConfigError if two of them are one, as far as their URLs show."""
    by_place: dict[str, StoreRef] = {}
    for store in stores:
        kind, _, where = store.url.partition("://")
        other = by_place.setdefault(f"{kind}:{posixpath.normpath('/' + where.lstrip('/'))}", store)
        if other is not store:
            msg = (
                f"stores {other.name} and {store.name} are one, {redact(store.url)}: rows dropped from one of"
                " them are gone from the other; give each a place of its own. A store keeps the name that the"
                " log has"
            )
            raise ConfigError(msg)


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoints:
    """The location of a namespace: its name, the URLs of log and stores, and their clients' options.

    ``store`` and ``store_options`` are the primary's, ``also`` the other stores. Small and plain,
    so that it can travel to tasks. ``repr`` never shows a password.
    """

    namespace: str
    wal: str
    store: str
    wal_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    store_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    store_name: str = ""
    also: tuple[StoreRef, ...] = ()

    def __post_init__(self) -> None:
        check_name("namespace", self.namespace)

    @classmethod
    def of(
        cls,
        namespace: str,
        wal: str,
        stores: str | Sequence[str | StoreRef],
        wal_options: dict[str, Any] | None = None,
        store_options: Mapping[str, Any] | None = None,
    ) -> Endpoints:
        """Build it from a user's arguments. Raises: as ``parse_stores``."""
        if not isinstance(wal, str):
            raise ConfigError(f"the log's URL is {type(wal).__name__}; it must be text, as in file:///path")
        for name, options in (("wal_options", wal_options), ("store_options", store_options)):
            if not isinstance(options, Mapping | None):
                raise ConfigError(f"{name} is {type(options).__name__}; it must be a dict of options")
        primary, *also = parse_stores(stores, store_options)
        return cls(namespace, wal, primary.url, wal_options or {}, primary.options, primary.name, tuple(also))

    @property
    def stores(self) -> tuple[StoreRef, ...]:
        """All stores, the primary first."""
        name = self.store_name or parse_store(self.store).name
        return (StoreRef(name, self.store, self.store_options), *self.also)

    def only(self, at: StoreRef | None = None) -> Endpoints:
        """Return the same with one store alone: ``at``, or the primary."""
        at = at or self.stores[0]
        return dataclasses.replace(self, store=at.url, store_options=at.options, store_name=at.name, also=())

    def __repr__(self) -> str:
        also = f", also={list(self.also)!r}" * bool(self.also)
        return (
            f"Endpoints(namespace={self.namespace!r}, wal={redact(self.wal)!r},"
            f" store={redact(self.store)!r}{also})"
        )
