"""Every error tidegate raises, split by what it proves and by the operator's next step.

There is one root, ``TidegateError``. Each class states what is proven when it is raised, and each
docstring ends with the remedy. The exit code is the one of the command line.
"""

from __future__ import annotations

import re
from typing import TypeVar

Error = TypeVar("Error", bound="TidegateError")


class TidegateError(Exception):
    """Root of all errors raised by tidegate.

    Catch it to catch everything tidegate raises on purpose. Do: read the message, it names
    the cause and the next step.
    """

    exit_code = 1
    writes_refused = False
    """Whether the store refused this write and takes reads: its memory or disk is full, it is read-only,
    this user may not write, or it has all the leases that it allows. ``refused_to_write`` sets it."""
    final = False
    """Whether it is proven that the same call never succeeds on this handle. Such an error ends a mirror and
    a wait. Any other one passes when the store or the login is mended. ``proven_final`` sets it."""


class ConfigError(TidegateError):
    """Options, URLs, schemas or calls that do not fit; raised before anything is written.

    Proves that nothing was staged, decided or applied on behalf of the refused call.
    Do: correct the option or call the message names, then run again.
    """

    exit_code = 2


class BadRecordError(TidegateError):
    """A row that cannot be staged (null key, key or value over its limit, wrong encoding).

    Proves that nothing of this barrier was decided; frames already written are orphans and are
    trimmed later. Do: correct or filter the record named in the message and run again.
    """

    exit_code = 3


class ConflictError(TidegateError):
    """This attempt is provably not decided, and never will be.

    Raised only on proof: a valid higher Open was folded with no Decided of this attempt
    before it, another attempt was decided for the batch, or Spark made a shuffle of the batch again, so that
    its acks do not count. Do: run the batch again (Spark
    does so when the query is restarted); nothing has to be cleaned up.
    """

    exit_code = 4


class OutcomeUnknownError(TidegateError):
    """A write was sent and its outcome could not be learned before the deadline.

    Proves nothing: the write may have happened, may not, or may still happen. Do: restart the
    query or run ``tidegate recover``; opening the namespace again settles the question.
    """

    exit_code = 5


class WalUnavailableError(TidegateError):
    """The write-ahead log could not be reached or refused the request.

    When raised by an append it proves that this one request was not written; elsewhere it
    proves only that the answer is missing. Do: bring the log back, then restart the query; if it
    was deleted, ``tidegate relog``.
    """

    exit_code = 6


class StoreUnavailableError(TidegateError):
    """The store did not answer before the deadline. A decided version stays decided.

    Applies and seals are safe to repeat, so a decided version is finished later by a restart
    or by the command line. Do: bring the store back, then restart the query or run
    ``tidegate recover``.
    """

    exit_code = 7


class FencedError(TidegateError):
    """A driver with a higher epoch owns the namespace; this one must stop.

    Says nothing about any single version: the newer driver finishes whatever was decided.
    Do: stop this driver; if it is the one that should run, restart it.
    """

    exit_code = 8


class LineageError(TidegateError):
    """The Spark checkpoint is not the one the namespace follows, or it went back in time.

    Proves that nothing of this batch, from these offsets, was decided. Do: put the right checkpoint
    back, or run ``tidegate adopt`` if it was replaced on purpose, or use a new namespace.
    """

    exit_code = 9


class WalGapError(TidegateError):
    """The log no longer has what the store needs, or the log is behind its store.

    Also: a stream's checkpoint is of another history than the log. Proves that continuing would skip or
    invent changes; nothing was written. Do: restore the log,
    or save what the store shows with ``tidegate relog`` (the message names which).
    """

    exit_code = 10


class SnapshotExpiredError(TidegateError):
    """The requested version was retired, or its lease ran out or was revoked.

    The answer is withheld rather than mixed with newer data. Do: take a new snapshot; raise
    ``keep_versions`` if readers need more time.
    """

    exit_code = 11


class VersionRegressedError(TidegateError):
    """The store's visible version is older than one this client has already seen, or of another history.

    Proves that the store lost acknowledged writes (restored from an old copy, failed over), or that
    the namespace was made again. Do: let the writer reopen or run ``tidegate recover``; connect again to
    accept the older version knowingly.
    """

    exit_code = 12
    final = True


class StoreNotVerifiedError(TidegateError):
    """A part of the store changed its identity and was not yet checked against the log.

    The read may be repeated; it succeeds once the writer or ``repair`` has listed the new
    server. Do: wait and retry; if it lasts, check that a writer is running.
    """

    exit_code = 13


class CorruptError(TidegateError):
    """Bytes in the log or the store do not match their checksum, digest or format.

    The message names the file, topic or table and the position. Nothing of the damaged version is
    published. Do: restore the damaged part from a copy, or start a new namespace.
    """

    exit_code = 14
    final = True


class IncompleteError(TidegateError):
    """A seal found fewer or other changes than the manifest counts.

    Proves that the version was not sealed in that key group; applying again is safe and is what the
    driver does by itself. Do: nothing; if it repeats until the deadline, the store loses
    acknowledged writes: check its persistence settings.
    """

    exit_code = 15


class WaitTimeoutError(TidegateError):
    """A version awaited by ``wait_for`` did not become visible in time.

    Proves only that it was not visible at the last check. Do: wait longer, or check with ``tidegate
    status`` whether a writer is running.
    """

    exit_code = 16


class FunctionError(TidegateError):
    """The function given to ``txn.update`` or ``local_state`` raised, took too long, or is not deterministic.

    Or that of ``sink.each`` raised an exception that is no ``Exception``, such as SystemExit.

    Proves that nothing of this barrier was decided; frames already written are orphans and are
    trimmed later. Do: correct the function that the message names, then restart the query: it runs
    the batch again.
    """

    exit_code = 17


class StoreLostError(TidegateError):
    """The namespace was in the store, and is not there any more.

    Proves no drop: a server that was emptied (FLUSHALL, a restart without persistence) and a removed folder
    look the same. The log still has what it decided. Do: restart the query or run ``tidegate recover``, which
    rebuild the store from the log; after a drop, open the namespace again.
    """

    exit_code = 18


class StoreRemovedError(TidegateError):
    """The namespace's log no longer lists this store: no further version becomes visible there.

    Proves that ``tidegate store remove`` left a note in the store. It keeps its visible version, and
    open snapshots stay readable. ``successor`` is the URL of the store to read instead, without
    login, '' if the note names none. Do: connect to the successor; or connect with
    its servers in ``follow_redirects``, and the gate does so itself.
    """

    exit_code = 19
    final = True
    successor: str = ""


BY_NAME: dict[str, type[TidegateError]] = {
    cls.__name__: cls
    for cls in (
        TidegateError,
        ConfigError,
        BadRecordError,
        ConflictError,
        OutcomeUnknownError,
        WalUnavailableError,
        StoreUnavailableError,
        FencedError,
        LineageError,
        WalGapError,
        SnapshotExpiredError,
        VersionRegressedError,
        StoreNotVerifiedError,
        CorruptError,
        IncompleteError,
        WaitTimeoutError,
        FunctionError,
        StoreLostError,
        StoreRemovedError,
    )
}
"""Errors by class name: the form in which a typed error travels from a Spark task to the driver."""


def remedy(kind: type[TidegateError]) -> str:
    """Return the operator's next step after an error of this class, from its docstring; '' without one.

    >>> remedy(FencedError)
    'stop this driver; if it is the one that should run, restart it'
    """
    return " ".join((kind.__doc__ or "").rpartition("Do: ")[2].split()).rstrip(".").replace("``", "`")


_ADVICE = re.compile(
    r"`tidegate |[:;,.] (?:or |and )?(?:add|ask|bring|call|cast|check|choose|close|connect|copy it|correct"
    r"|divide|drop|export again|filter|free|give|grant|import into|install|keep|leave|let|look|lower|make"
    r"|mend|migrate|mount|open it|pass|put|raise|read|remove|rename it|renew|repeat|restart|restore|return"
    r"|run|save|set|start|stop|take|try again|upgrade|use|wait|write)\b",
    re.IGNORECASE,
)


def advises(message: str) -> bool:
    """Return whether an error's message has a next step of its own: a command, or an imperative.

    A printed error gets no second one then, since the remedy of its class may contradict it.

    >>> advises("driver 7 was fenced"), advises("namespace a has a living writer: use another namespace")
    (False, True)
    """
    return _ADVICE.search(message) is not None


def proven_final(error: Error) -> Error:
    """Mark an error as ``final``."""
    error.final = True
    return error


def is_final(error: TidegateError) -> bool:
    """Return whether an error is ``final``."""
    return error.final


def refused_to_write(error: TidegateError) -> TidegateError:
    """Mark an error as ``writes_refused``."""
    error.writes_refused = True
    return error
