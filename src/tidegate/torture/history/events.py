"""The events of a history, one per line: by writers, readers, commands and the processes that inject faults.

An event's ``at`` is the monotonic clock of the host, in nanoseconds, when its line was written. That is
before the call for an event that announces one (Offered, Asked, Fault), and after it for an event that
reports how one ended. An answer to a read is one event, written afterwards, with ``began`` taken before the
request. Numbers of calls, clients and snapshots count within one file. Values are JSON; a key is text;
``as_json`` converts bytes.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Event(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="event"):
    """The common base of all events. ``at`` is set by the recorder."""

    at: int = 0


# -- processes ---------------------------------------------------------------------------------------


class Started(Event, tag="started"):
    """The first line of each file. Clocks are comparable only between files of one ``boot``."""

    name: str
    role: str
    pid: int
    boot: str
    wall_us: int
    format: int = 1


class Ended(Event, tag="ended"):
    """The end of a process by itself. A file without it is of a process that was killed, or still runs."""

    code: int = 0


class Destroyed(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Rows of a key group that a fault removes from the store. ``version`` 0: the base."""

    version: int
    key_group: int


class Fault(Event, tag="fault"):
    """A fault that is about to be done to the system, such as SIGKILL to a process.

    ``forgets``: from here on the store may have lost what it acknowledged, for example by a restore from an
    older copy. Versions seen visible before then no longer bound those seen afterwards. ``lasts``: nor do
    those seen until the next such event. ``destroys``: exactly these rows are removed, and no others.
    """

    kind: str
    target: str = ""
    detail: str = ""
    forgets: bool = False
    lasts: bool = False
    destroys: list[Destroyed] = []


# -- writers -----------------------------------------------------------------------------------------


class Change(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The changes of a batch to one table, in the order of the fields.

    ``replace`` empties the table first. ``rows`` sets values, null deletes. ``append`` adds items to the end
    of a list. ``reduce`` combines numbers by column with the existing ones, as ``reducers`` names it for each
    column: "sum", "min" or "max". ``counts`` names another table, without any other field: the rows are the
    numbers of that table's rows by value, ``{"n": 2}`` under the value's JSON text.
    """

    table: str
    replace: bool = False
    rows: dict[str, Any] = {}
    append: dict[str, list[Any]] = {}
    reduce: dict[str, dict[str, Any]] = {}
    reducers: dict[str, str] = {}
    counts: str = ""


class Opened(Event, tag="opened"):
    """The open of a driver returned: it owns the namespace. ``driver`` is unique in the whole folder.

    A driver that opens again is another driver, or is noted again with its new epoch.
    """

    driver: str
    namespace: str
    epoch: int


class Offered(Event, tag="offered"):
    """A driver is about to commit a batch, or to load one (``token``).

    Its contents are in ``changes``, or are given by ``recipe``, from which the workload computes the same
    changes again.
    """

    call: int
    driver: str
    namespace: str
    lineage: str = ""
    batch: int = 0
    fingerprint: str = ""
    token: str = ""
    changes: list[Change] = []
    recipe: dict[str, Any] = {}


class Returned(Event, tag="returned"):
    """The commit returned. ``own``: whether the decided attempt is of this call; null: not known."""

    call: int
    version: int
    own: bool | None = None


class Raised(Event, tag="raised"):
    """A call of Offered or Asked raised. ``error`` is the class name."""

    call: int
    error: str
    text: str = ""


class Asked(Event, tag="asked"):
    """A command is about to run: "recover", "retire", "repair", "adopt", "vacuum" or any other."""

    call: int
    namespace: str
    command: str


class Done(Event, tag="done"):
    """The command returned: the visible version, the published one, the horizon; null: not reported."""

    call: int
    visible: int | None = None
    published: int | None = None
    horizon: int | None = None


class PutBack(Event, tag="put_back"):
    """A repair put a version back in ``key_groups`` key groups; version 0: the base.

    ``began``: a time before that.
    """

    namespace: str
    version: int
    key_groups: int
    began: int


# -- readers -----------------------------------------------------------------------------------------


class Connected(Event, tag="connected"):
    """A client of one namespace. A connection made after an error is another client.

    ``store`` is empty for the primary, the only store that commits wait for. ``kind`` is for the report.
    """

    client: int
    namespace: str
    store: str = ""
    kind: str = ""


class Looked(Event, tag="looked"):
    """A client saw the visible version."""

    client: int
    version: int
    began: int


class Listed(Event, tag="listed"):
    """All readable versions, as ``gate.history()`` lists them: from the horizon to the visible one."""

    client: int
    versions: list[int]
    began: int


class SnapshotOpened(Event, tag="snapshot"):
    """A snapshot was opened. ``asked``: the requested version, 0 for the newest."""

    client: int
    snapshot: int
    version: int
    began: int
    asked: int = 0


class SnapshotClosed(Event, tag="closed"):
    """The snapshot was closed."""

    client: int
    snapshot: int


class Read(Event, tag="read"):
    """The result of a look-up of one or many keys. ``snapshot`` 0: at the newest version, in one request."""

    client: int
    table: str
    began: int
    snapshot: int = 0
    found: dict[str, Any] = {}
    absent: list[str] = []


class Scanned(Event, tag="scanned"):
    """A whole table: the number and digest (``RowDigest``) of its rows; also the rows, if they are few."""

    client: int
    table: str
    began: int
    rows: int
    digest: str
    snapshot: int = 0
    content: dict[str, Any] | None = None


class Failed(Event, tag="failed"):
    """A read, or the opening of a snapshot, raised. ``error`` is the class name."""

    client: int
    what: str
    error: str
    began: int
    snapshot: int = 0
    text: str = ""


AnyEvent = (
    Started
    | Ended
    | Fault
    | Opened
    | Offered
    | Returned
    | Raised
    | Asked
    | Done
    | PutBack
    | Connected
    | Looked
    | Listed
    | SnapshotOpened
    | SnapshotClosed
    | Read
    | Scanned
    | Failed
)
"""Every kind of line."""
