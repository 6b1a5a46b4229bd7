"""The marks that a rekey leaves in both logs.

A namespace that is being made with other key groups has a token for its source, and one more once it is
whole; until then its versions' attempts begin with ``COPY``. Its source follows a lineage that no query has,
from the last version on that was copied. ``lifecycle`` has the commands that look at them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidegate.base.names import REKEY_TOKEN
from tidegate.wal.fold import decided_for, once_key, undone_by
from tidegate.wal.record import Folded, ImportOrigin, LoadOrigin, Origin

_COPIED = re.compile(r"\Aimport:rekey:([0-9a-f]+):([0-9]+)\Z")
_OWN = re.compile(r"\Aimport:rekey:[0-9a-f]+:[0-9]+(:rows|:whole)?\Z")
_WHOLE = re.compile(r"\Aimport:rekey:[0-9a-f]+:[0-9]+:whole\Z")
UNDONE = "undone:"
"""The start of the mark of a token whose version a restore had undone before the namespace was copied."""
COPY = "copy-"
"""The start of the attempts of an unfinished copy: its store shows what it is without its log."""
NO_QUERY = "00000000-0000-0000-0000-000000000000"
"""The lineage that is adopted to take back a namespace that followed no query: a query's id has its form."""

_MOVED = re.compile(r"\Arekeyed to (\S+) from (\S*)\Z")


class Source(NamedTuple):
    """The namespace that is copied: its uuid, and the version that the first version of the copy holds."""

    uuid: str
    version: int

    @property
    def token(self) -> str:
        """The token of the copy, which is in its state from its first record on."""
        return f"{REKEY_TOKEN}{self.uuid}:{self.version}"

    @property
    def first(self) -> ImportOrigin:
        """The origin of the first version, where the source has no batch."""
        return ImportOrigin(f"{self.token}:rows")

    @property
    def last(self) -> ImportOrigin:
        """The origin of the version after which the copy is whole."""
        return ImportOrigin(f"{self.token}:whole")


class Moved(NamedTuple):
    """The namespace to which one was moved, and the lineage that it followed before; '' for none."""

    to: str
    lineage: str

    def as_lineage(self) -> str:
        """Return the lineage that no query has, as a query's id has no blanks."""
        return f"rekeyed to {self.to} from {self.lineage}"


def source_of(state: Folded) -> Source | None:
    """Return the source of a namespace that is or was made by a rekey; None: it was made in another way."""
    match = next(filter(None, map(_COPIED.match, state.once)), None)
    return None if match is None else Source(match[1], int(match[2]))


def is_whole(state: Folded, source: Source) -> bool:
    """Whether the copy has all of its source, and may follow a query."""
    return once_key(source.last) in state.once


def made_whole(origin: Origin) -> bool:
    """Whether a version of this origin made a copy whole: it holds what the one before held, and queues."""
    return isinstance(origin, ImportOrigin) and bool(_WHOLE.match(once_key(origin)))


def is_unfinished(state: Folded) -> bool:
    """Whether the namespace is a copy that still lacks versions of its source."""
    source = source_of(state)
    return source is not None and not is_whole(state, source)


def moved_from(state: Folded) -> Moved | None:
    """Return where a namespace was moved to; None: it was not."""
    match = _MOVED.match(state.lineage or "")
    return None if match is None else Moved(match[1], match[2])


def own_tokens(state: Folded) -> tuple[str, ...]:
    """Return the tokens for a copy of a state: without those of a rekey, which are of its own copy.

    The copy does not have the versions, so a mark says which of them a restore has undone.
    """
    undone = (
        f"{UNDONE}{once_key(decided.origin)}"
        for decided in state.recent
        if isinstance(decided.origin, LoadOrigin | ImportOrigin) and undone_by(state, decided.version)
    )
    return (*(token for token in state.once if not _OWN.match(token)), *undone)


def undone_words(state: Folded, origin: Origin) -> str:
    """Return which version of this origin a restore has undone; '': none, or that is not known any more."""
    decided = decided_for(state, origin)
    if decided is None:
        is_undone = f"{UNDONE}{once_key(origin)}" in state.once
        return "a version of the namespace of which this is a copy, where a restore has undone it" * is_undone
    undone = undone_by(state, decided.version)
    if undone is None:
        return ""
    return f"version {decided.version}, which version {undone} has undone, a restore"
