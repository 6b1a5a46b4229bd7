"""Named places in the protocol where a test, or the demo, makes the process fail.

There is one list of names; ``hit(name)`` is called exactly where a crash, a pause or an exception
must be survived. Without the environment variable a hit costs one comparison.

    TIDEGATE_FAILPOINTS="publish.before=kill@10,decide.after_append=raise"

``name=action[@n]``: the action happens at the n-th hit in this process (default the first).
Actions: ``kill`` (SIGKILL to this process), ``stop`` (SIGSTOP, resumed by SIGCONT from outside),
``raise`` (FailpointError).
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable

ENVIRONMENT_VARIABLE = "TIDEGATE_FAILPOINTS"

NAMES = (
    "open.before_append",  # folded and checked, nothing written
    "open.after_append",  # Open is durable, the store does not know the epoch
    "open.after_claim",  # the epoch is claimed in the store, nothing recovered yet
    "stage.before_write",  # in a task: rows are sorted, no frame written
    "stage.before_ack",  # in a task: frames are durable, the ack is not sent
    "manifest.before_write",  # all acks are in
    "manifest.after_write",  # the manifest is durable, nothing decided
    "decide.before_append",  # the last moment at which nothing is decided
    "decide.after_append",  # Decided is durable, the driver has not read it back
    "apply.after_begin",  # the store has noted the attempt, and has no row of it
    "apply.before_chunk",  # before a chunk is sent to the store
    "apply.after_chunk",  # a chunk is in the store, not sealed
    "seal.after",  # a range of key groups is sealed
    "publish.before",  # everything is sealed, the pointer has not moved
    "publish.after",  # the pointer has moved, the driver has not seen the reply
    "commit.before_return",  # visible; Spark's commit log is not written
    "pipeline.before_complete",  # decided, its batch may have returned; nothing of it is applied
    "pipeline.after_complete",  # visible; the next version in flight is next
    "summary.before_append",  # visible; a Summary is due
    "summary.after_append",  # the Summary is in the log, or lost
    "fill.after_begin",  # a new store is marked as being filled, nothing of the version is there
    "fill.after_group",  # some key groups are filled and sealed, others not
    "follow.after_claim",  # the epoch is claimed in a secondary, nothing is written there
    "repair.after_version",  # a lost version is restored, later ones are not
    "repair.before_listing",  # everything is restored, its servers still count as changed
    "retire.after_announce",  # the horizon moved, nothing deleted
    "retire.after_group",  # some key groups retired, others not
    "trim.before_decisions",  # a Summary to cut at is found, nothing is cut
    "trim.after_decisions",  # the decision log is cut, no blob dropped
    "trim.after_blobs",  # blobs are dropped, that is not recorded yet
)

OF_COMMANDS = (
    "rekey.after_first_record",  # the log of the new namespace has begun, its store is not made
    "rekey.after_copy",  # the rows are copied; no later version is
    "rekey.after_version",  # a later version is copied
    "rekey.after_move",  # the source follows a lineage that no query has; the copy lacks its last versions
    "rekey.after_whole",  # the copy is whole, no alias names it
)
"""Names of places that no driver reaches, only a command."""

ACTIONS = ("kill", "stop", "raise")


class FailpointError(RuntimeError):
    """Raised by a failpoint armed with ``raise``. Never raised in normal operation."""


class _Armed:
    def __init__(self, specification: str) -> None:
        self.hits: Counter[str] = Counter()
        self.listener: Callable[[str], object] | None = None
        self.actions: dict[tuple[str, int], str] = {}
        for part in filter(None, (piece.strip() for piece in specification.split(","))):
            name, _, action = part.partition("=")
            action, _, nth = action.partition("@")
            if (
                name not in (*NAMES, *OF_COMMANDS)
                or action not in ACTIONS
                or not re.fullmatch(r"[1-9][0-9]*|", nth)
            ):
                msg = f"{ENVIRONMENT_VARIABLE}: cannot arm {part!r}; names are {', '.join(NAMES)}"
                raise ValueError(msg)
            self.actions[name, int(nth or 1)] = action


_armed: _Armed | None = None


def arm(specification: str | None) -> None:
    """Arm failpoints in this process from a specification; None or '' disarms all."""
    global _armed  # noqa: PLW0603 - one switch per process, by design
    _armed = _Armed(specification) if specification else None


def listen(listener: Callable[[str], object] | None) -> None:
    """Call the listener with the name at every hit of this process, before the armed action; None:
    no listener.
    """
    global _armed  # noqa: PLW0603 - as ``arm``
    if _armed is None:
        _armed = _Armed("")
    _armed.listener = listener


def hit(name: str) -> None:
    """Mark the place ``name``; acts only when armed."""
    if _armed is None:
        return
    _armed.hits[name] += 1
    if _armed.listener is not None:
        _armed.listener(name)
    match _armed.actions.get((name, _armed.hits[name])):
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            stop()
        case "raise":
            msg = f"failpoint {name}"
            raise FailpointError(msg)
        case _:
            pass


def stop() -> None:
    """Send SIGSTOP to this process, which then waits for SIGCONT; the caller does not continue before that.

    The signal is for the calling thread. One for the process is taken by its main thread, and until that
    wakes the caller continues: it would stop somewhere else, such as with the lock of a file.
    """
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


arm(os.environ.get(ENVIRONMENT_VARIABLE))
