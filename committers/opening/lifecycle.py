"""The lifecycle of a namespace, by the marks of commands, and the answer of each command to it (I14).

A mark outlives the command that left it: a later command on the same namespace must look at it. So each one
asks here, before it does anything, and a driver asks again when it opens. The page of this table is
docs/protocol.md, by ``tools/lifecycle_table.py``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Mapping
from typing import NamedTuple

from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.rekeyed import (
    COPY,
    NO_QUERY,
    Source,
    is_unfinished,
    is_whole,
    moved_from,
    source_of,
)
from tidegate.errors import ConfigError, WalGapError
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import CatalogEntry, Pointer
from tidegate.sinks.rules.fit import Fit, fit_of
from tidegate.sinks.store import Store
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import View, decided_for, recent_version
from tidegate.wal.log import Log
from tidegate.wal.open_log import open_log
from tidegate.wal.record import BatchOrigin, Folded, RestoreOrigin


class Lifecycle(enum.Enum):
    """The kinds of namespaces by their marks. A value is the predicate of a message."""

    DROPPED = "does not exist"
    ORDINARY = "has no mark"
    WHOLE = "was made by a rekey, and is whole"
    RESTORED = "was restored after its last batch"
    BEGUN = "is being made by a relog, and has no version yet"
    UNFINISHED = "is being made by a rekey, and lacks versions of its source"
    STALE = "was made by a rekey, and lacks versions that its source has now"
    MOVING = "was moved to namespace {to}, which is not whole"
    GONE = "was moved to namespace {to}, which is gone, or is another one of this name"
    MOVED = "was moved to namespace {to}, which has other key groups"
    CONTINUED = "was moved to namespace {to}, which has taken versions since, or lost its log"
    REWOUND = "was restored with --reprocess, and the undone batches were not replayed yet"


class Side(NamedTuple):
    """One namespace: the state of its log, None for none, and the store's visible version, if it is read."""

    state: Folded | None
    shown: CatalogEntry | None = None


def lifecycle_of(side: Side, other: Side | None = None) -> Lifecycle:
    """Find what a namespace is.

    ``other`` is the other side of a copy: of a moved namespace the new one, of a copy its source. None: it
    was not read; then a moved namespace counts as MOVED, and a copy is not STALE.
    """
    state = side.state
    if _is_unfinished(side):
        return Lifecycle.UNFINISHED
    if state is None:
        return Lifecycle.DROPPED if side.shown is None else Lifecycle.ORDINARY
    source = source_of(state)
    if _is_begun(state) and not _is_behind(side):
        return Lifecycle.BEGUN
    if moved_from(state) is not None:
        return Lifecycle.MOVED if other is None else _moved_to(state, other)
    of_source = None if other is None else other.state
    if source is not None and of_source is not None and not _has_all(state, source, of_source):
        return Lifecycle.STALE
    if state.last_batch is not None and state.last_batch[0] < state.generation:
        return Lifecycle.REWOUND
    if restored_after_batch(state) is not None:
        return Lifecycle.RESTORED
    return Lifecycle.ORDINARY if source is None else Lifecycle.WHOLE


def restored_after_batch(state: Folded) -> int | None:
    """Return the version that a restore made visible again after the last batch; None: there is none."""
    for decided in reversed(state.recent):
        match decided.origin:
            case RestoreOrigin(version=version):
                return version
            case BatchOrigin():
                return None
    return None


def _is_unfinished(side: Side) -> bool:
    """Whether it is a copy that lacks versions. A log that is behind its store does not know."""
    state, shown = side
    if shown is not None and shown.attempt.startswith(COPY):
        return True
    return state is not None and is_unfinished(state) and not _is_behind(side)


def _is_begun(state: Folded) -> bool:
    """Whether a relog began it: its first record has the time of the version that is saved."""
    return state.last_version == 0 and state.decided_at_us > 0


def _is_behind(side: Side) -> bool:
    """Whether the log lost what the store shows, so that its marks are not the newest."""
    state, shown = side
    return shown is not None and (state is None or state.last_version < shown.version)


def _moved_to(state: Folded, copy: Side) -> Lifecycle:
    """Find whether the copy of a moved namespace is whole, and has taken versions since."""
    if _is_behind(copy) and not _is_unfinished(copy):
        return Lifecycle.CONTINUED  # what it took is not known
    if copy.state is None:
        return Lifecycle.GONE if copy.shown is None else Lifecycle.MOVING
    source = source_of(copy.state)
    if source is None or source.uuid != state.namespace:
        return Lifecycle.GONE
    if not is_whole(copy.state, source):
        return Lifecycle.MOVING
    whole = decided_for(copy.state, source.last)
    is_last = whole is not None and whole.version == copy.state.last_version
    return Lifecycle.MOVED if is_last and moved_from(copy.state) is None else Lifecycle.CONTINUED


def _has_all(copy: Folded, source: Source, state: Folded) -> bool:
    """Whether a whole copy has all that its source has decided, and the source decides nothing more."""
    moved, whole = moved_from(state), decided_for(copy, source.last)
    if moved is None or moved.to != copy.name:
        return False
    if whole is None:  # it is not among the recent ones, so the copy was continued long ago
        return True
    last = whole.version - 1
    before = recent_version(copy, last)
    same = last == 1 or before is None or before.origin == state.recent[-1].origin
    return same and source.version + last - 1 == state.last_version


# -- the table ------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """A refusal: its next step. ``after``: the command does its work, and ends with the error."""

    text: str
    after: bool = False


FINISH = Answer(
    "nothing was written. Stop the query and run `tidegate rekey --namespace SOURCE"
    " --to {name} --finish` for its source; or"
    " `tidegate drop --namespace {name}` removes it, and its source is as it was"
)
RELOG_AGAIN = Answer(
    "nothing was written. Run `tidegate relog --namespace SOURCE --to {name}` again for the namespace that it"
    " saves; or `tidegate drop --namespace {name}` removes it, and the saved namespace is as it was"
)
CONTINUE_THERE = Answer(
    "set namespace={to!r} and keep the checkpoint; nothing was written. Only while no query has written into"
    " {to} there is a way back: `tidegate drop --namespace {to}`, then `tidegate adopt --namespace"
    " {name} --lineage {back}`{nobody}"
)
FINISH_THERE = Answer(
    "nothing was written, since its last versions are only here. Stop the query and run `tidegate rekey"
    " --namespace {name} --to {to} --finish`; or take it back: `tidegate drop --namespace {to}`, then"
    " `tidegate adopt --namespace {name} --lineage {back}`{nobody}"
)
TAKE_BACK = Answer(
    "nothing was written. If a query has ever written into {to}, its later versions are not here: let it"
    " continue where {to} went. Only if none has, take this one back: `tidegate adopt --namespace {name}"
    " --lineage {back}`{nobody}"
)
STAY_THERE = Answer(
    "set namespace={to!r} and keep the checkpoint; nothing was written, since {to} alone has its later"
    " versions"
)
DROP_COPY = Answer(
    "nothing was written. No query has written into {to} yet, so there is a way back: `tidegate drop"
    " --namespace {to}`, then run this command again"
)
OTHER_NAME = Answer("nothing was written. Give another name with --to, which gets a copy of its own")
MOVED = (Lifecycle.MOVING, Lifecycle.GONE, Lifecycle.MOVED, Lifecycle.CONTINUED)
Row = Mapping[Lifecycle, Answer]
ANY: Row = {}
"""It reads, or makes visible what was decided, or belongs to no namespace."""
COPIES: Row = {Lifecycle.BEGUN: RELOG_AGAIN, Lifecycle.UNFINISHED: FINISH}
WRITES: Row = {
    **COPIES,
    Lifecycle.MOVING: FINISH_THERE,
    Lifecycle.GONE: TAKE_BACK,
    Lifecycle.MOVED: CONTINUE_THERE,
    Lifecycle.CONTINUED: CONTINUE_THERE,
}
"""It decides a version, or changes what the next driver does."""
QUERY = "a query"
"""The row of Spark's side: batches, loads, imports and migrations of a sink."""

COMMANDS: Mapping[str, Row] = {
    QUERY: WRITES,
    **dict.fromkeys(
        ("import", "restore", "schema rename", "quarantine drop", "store add", "store remove"), WRITES
    ),
    "rebuild-checkpoint": {
        **COPIES,
        **dict.fromkeys(
            MOVED, Answer("nothing was written. Run this command with --namespace {to}, once that is whole")
        ),
        Lifecycle.GONE: TAKE_BACK,
    },
    "adopt": {
        **COPIES,
        Lifecycle.MOVED: DROP_COPY,
        Lifecycle.CONTINUED: STAY_THERE,
    },
    "drop": {
        Lifecycle.MOVING: Answer(
            "nothing was removed: its last versions are only here. Run `tidegate rekey --namespace {name}"
            " --to {to} --finish` first; or use --force"
        )
    },
    "backup": {
        Lifecycle.UNFINISHED: Answer(
            "nothing was written. Back up its source instead, until `tidegate rekey --namespace SOURCE --to"
            " {name} --finish` has made this one whole; if its source is gone, `tidegate export FOLDER"
            " --namespace {name}` saves its rows"
        ),
        **dict.fromkeys(
            MOVED,
            Answer(
                "its backups never get a newer version: let the job run `tidegate backup NEW_FOLDER"
                " --namespace {to}` instead",
                after=True,
            ),
        ),
        Lifecycle.MOVING: Answer(
            "its backups never get a newer version. Stop the query and run `tidegate rekey --namespace {name}"
            " --to {to} --finish`, then let the job run `tidegate backup NEW_FOLDER --namespace {to}`; or"
            " take it back: `tidegate drop --namespace {to}`, then `tidegate adopt --namespace {name}"
            " --lineage {back}`{nobody}",
            after=True,
        ),
        Lifecycle.GONE: Answer(
            TAKE_BACK.text.replace("nothing was written", "its backups never get a newer version"), after=True
        ),
    },
    "relog": {
        Lifecycle.UNFINISHED: Answer(
            "nothing was copied. If its source is lost, too, make the source again first. Then `tidegate drop"
            " --namespace {name}`, and `tidegate rekey --namespace SOURCE --to {name} --key-groups N` makes"
            " it again"
        ),
        Lifecycle.MOVED: STAY_THERE,
        Lifecycle.CONTINUED: STAY_THERE,
    },
    "alias set": {
        Lifecycle.UNFINISHED: Answer(
            "readers would miss them: `tidegate rekey --namespace SOURCE --to {name} --finish` for its source"
            " sets its aliases"
        )
    },
    "rekey": {
        **COPIES,
        Lifecycle.REWOUND: Answer(
            "start the query on the checkpoint that was set back, and run this command after its next version"
        ),
        **dict.fromkeys(MOVED, Answer("nothing was written. Give --to {to}")),
    },
    "relog --to": {Lifecycle.UNFINISHED: FINISH, **dict.fromkeys(MOVED, OTHER_NAME)},
    "rekey --to": {Lifecycle.STALE: OTHER_NAME, **dict.fromkeys(MOVED, OTHER_NAME)},
    **dict.fromkeys(("recover", "repair", "restore-from", "init", "store list", "verify", "doctor"), ANY),
    **dict.fromkeys(("status", "namespaces", "history", "get", "scan", "diff", "changes", "tail", "ui"), ANY),
    **dict.fromkeys(("export", "vacuum", "quarantine list", "quarantine export"), ANY),
    **dict.fromkeys(("alias list", "alias drop", "drop --only-stores", "redis-functions"), ANY),
    **dict.fromkeys(("demo", "new", "explain", "bench", "torture", "conformance"), ANY),
}
"""By command, the lifecycles that it refuses; in all others it continues."""


def refuse(command: str, name: str, side: Side, other: Side | None = None, *, after: bool = False) -> None:
    """Refuse a command that does not accept such a namespace. Raises: ConfigError, with the next step.

    ``after``: the command has done its work.
    """
    lifecycle = lifecycle_of(side, other)
    answer = COMMANDS[command].get(lifecycle)
    if answer is None or answer.after != after:
        return
    moved = moved_from(side.state) if side.state is not None else None
    lineage = moved.lineage if moved else ""
    words = {
        "name": name,
        "to": moved.to if moved else "",
        "back": lineage or NO_QUERY,
        "nobody": "" if lineage else ", the id of no query, since it followed none",
    }
    raise ConfigError(f"namespace {name} {lifecycle.value}: {answer.text}".format(**words))


def ask(coordinator: Coordinator, command: str, *, to: str = "", shown: CatalogEntry | None = None) -> None:
    """Refuse a command that does not accept the coordinator's namespace, whose log was folded.

    One that was moved to ``to`` is not refused. ``shown`` is the store's visible version, for a log that may
    be gone or behind. The other side of a moved one is read if the answer depends on it. Raises:
    ConfigError: as ``refuse``. WalGapError: the store is of another namespace than the log. Otherwise the
    errors of the other side's log and store.
    """
    state, where, other = coordinator.decisions.view.state, coordinator.endpoints, None
    if state is not None:
        refuse_other_uuid(coordinator.log, coordinator.store, state)
    if shown is None and state is not None and (is_unfinished(state) or _is_begun(state)):
        shown = shown_in(coordinator.store)
    moved = None if state is None else moved_from(state)
    if moved is not None:
        if moved.to == to:
            return
        if len({COMMANDS[command].get(each) for each in MOVED}) > 1:
            other = side_of(dataclasses.replace(where, namespace=moved.to))
    refuse(command, where.namespace, Side(state, shown), other)


def refuse_other_uuid(log: Log, store: Store, state: Folded) -> None:
    """Refuse a store that is of another namespace than the log. Raises: WalGapError."""
    identity = store.identity()
    if identity is not None and fit_of(state, identity, Pointer()) is Fit.OTHER_NAMESPACE:
        why = f"the log is of namespace {state.namespace}, the store of namespace {identity.uuid}"
        raise WalGapError(
            f"the log {log.where} does not belong to the {store.where}: {why}; nothing was written; check the"
            " URLs of both"
        )


def side_of(where: Endpoints) -> Side:
    """Read a namespace: its log, and the visible version of its primary where the log alone does not tell."""
    with contextlib.closing(open_log(where.wal, where.namespace, where.wal_options)) as log:
        state = catch_up(View(), log).state
    if state is not None and not is_unfinished(state):
        return Side(state)
    primary = where.stores[0]
    with contextlib.closing(open_store(primary.url, where.namespace, primary.options)) as store:
        return Side(state, shown_in(store))


def shown_in(store: Store) -> CatalogEntry | None:
    """Read the entry of a store's visible version; None: it shows nothing."""
    visible = store.pointer().visible if store.identity() is not None else 0
    return next(iter(store.catalog(visible, visible)), None) if visible else None
