"""One namespace in a Cassandra keyspace: its rows, its consistency, its pointer."""

from __future__ import annotations

import calendar
import copy
import os
import uuid
from typing import Any, NamedTuple

import msgspec
from cassandra import ConsistencyLevel

from tidegate.base import forks
from tidegate.base.names import check_name
from tidegate.errors import ConfigError, CorruptError, TidegateError
from tidegate.sinks.cassandra.client import schema
from tidegate.sinks.cassandra.client import session as sessions
from tidegate.sinks.cassandra.client.settings import CONSISTENCY, READ_AT, read_level, settings_of
from tidegate.sinks.records import Identity, Pointer, heartbeat_ages
from tidegate.sinks.rules.reads import (
    check_kept,
    check_visible,
    checked_format,
    decode,
    dropped,
    encode,
    lost,
    nothing_here,
)
from tidegate.sinks.rules.visible import FROM_A_COPY

FORMAT = 1
"""The format of a namespace, in its identity."""
HERE, DROPPING = "here", "dropping"
NAMES = "tidegate_namespaces"
NEVER_AGAIN_US = 2**62
"""The timestamp of a drop: a space is never used again, whatever late writers write to it."""


class Written(msgspec.Struct, frozen=True):
    """How a namespace is written, for life: reads must overlap with it."""

    consistency: str
    dc: str


class Highest(msgspec.Struct):
    """The highest numbers that this instance saw in one space; none decreases.

    ``merged``: up to this version everything is whole, and none of it is written any more.
    """

    visible: int = 0
    horizon: int = 0
    merged: int = 0


class Made(NamedTuple):
    """A namespace that exists.

    ``space`` is its key in every table; ``read_at`` and ``write_at`` are the driver's numbers of
    consistencies. A store that lost the namespace gets it again in another space.
    """

    space: uuid.UUID
    identity: Identity
    written: Written
    read_at: int
    write_at: int
    highest: Highest


class Seen(NamedTuple):
    """One read of the pointer, with fields for the store's own statements only. ``now_ms``: its clock."""

    pointer: Pointer
    leases_at: uuid.UUID
    now_ms: int


class CassandraNamespace:
    """A namespace on the cluster of a URL. Connects on first use.

    ``writing``: this instance has claimed an epoch, so the outcome of its own conditional writes must
    be settled before it reads the pointer.
    """

    def __init__(self, url: str, namespace: str, options: dict[str, Any]) -> None:
        check_name("namespace", namespace)
        self.settings = settings_of(url, options)
        self.where = f"store {self.settings.shown}, namespace {namespace}"
        self.namespace = namespace
        self.writing = self.warned_of_leases = False
        self._made: Made | None = None
        self._known: str | None = None
        self._session: sessions.Session | None = None
        self._pid = 0
        self._closed = False

    # -- the session ---------------------------------------------------------------------------

    @property
    def session(self) -> sessions.Session:
        """The session of this process; a forked child connects again (T13)."""
        session = self._session
        if session is None or self._pid != os.getpid():
            with _taking:
                if self._closed:
                    raise ConfigError(f"{self.where}: this store was closed; open it again")
                session = self._session
                if session is None or self._pid != os.getpid():
                    session = sessions.take(self.settings, f"store {self.settings.shown}")
                    self._session, self._pid = session, os.getpid()
        return session

    def close(self) -> None:
        with _taking:
            session, self._session, self._closed = self._session, None, True
            if session is not None and self._pid == os.getpid():
                sessions.give_back(session)

    @property
    def not_made(self) -> str:
        """The remedy where keyspace or tables are missing."""
        return (
            f"keyspace {self.settings.keyspace} or a table in it does not exist; create them with"
            " `tidegate init`, or set store_options={'create': True, 'replication': {'<data centre>': 3}}"
        )

    @property
    def read_at(self) -> int:
        return self.made.read_at

    @property
    def write_at(self) -> int:
        return self.made.write_at

    # -- requests ------------------------------------------------------------------------------

    def rows(self, name: str, *values: Any) -> list[sessions.Row]:
        """Return the rows of a statement on this space; its first value is the space."""
        return self.session.rows(name, self.made.space, *values, level=self.read_at)

    def write(self, name: str, *values: Any) -> None:
        """Send a plain write; its values are passed in full."""
        self.session.write(name, *values, level=self.write_at)

    def decide(self, *steps: tuple[Any, ...], again: bool = False) -> sessions.Row:
        """Send conditional writes of one partition; return whether they were applied, and else the
        current row.
        """
        return self.session.decide(*steps, level=self.write_at, again=again)

    # -- identity ------------------------------------------------------------------------------

    @property
    def made(self) -> Made:
        """The namespace that this instance works on, found once, and again after its pointer was lost.

        Raises: ConfigError: there is none, or it cannot be read from here. StoreLostError: there was one.
        """
        made = self._made
        if made is None:
            existing = self._find()
            if existing is None:
                raise lost(self.where) if self._known else nothing_here(self.where)
            if self._known not in (None, existing.identity.uuid):
                raise dropped(self.where)  # another one was created since its identity was read
            self._made = made = self._readable(existing)
            self._known = existing.identity.uuid
        return made

    def within(self) -> CassandraNamespace:
        """Return a view of the present space alone. A space that replaces it has a horizon of its own, so no
        delete that the horizon of this one allows may reach that one.
        """
        made, _ = self.made, self.session
        view = copy.copy(self)
        view._made = made  # noqa: SLF001 - of this class
        return view

    def find(self) -> Made | None:
        """Return the namespace, whether it can be read from here or not; None: not created yet."""
        return self._made or self._find()

    def identity(self) -> Identity | None:
        existing = self._find()
        if existing is None or not self._has_pointer(existing):
            return None
        self._known = self._known or existing.identity.uuid
        return existing.identity

    def _has_pointer(self, existing: Made) -> bool:
        """Whether the pointer is there, which is made before the name and removed after it."""
        rows = self.session.rows("pointer", existing.space, level=existing.read_at)
        return bool(rows) and rows[0][0] is not None

    def _find(self, *, state: str = HERE) -> Made | None:
        if not self.session.has_tables():
            self._refuse_lost_tables()
            return None
        # SERIAL: a half-done conditional write is settled first.
        rows = self.session.rows("find", self.namespace, level=ConsistencyLevel.SERIAL)
        if not rows or rows[0][3] != state:
            return None
        space, identity, settings, _ = rows[0]
        written = decode(self.where, settings, Written)
        read_at = read_level(written.consistency, self.settings.read_consistency, self.where)
        identity = checked_format(self.where, decode(self.where, identity, Identity), FORMAT)
        return Made(space, identity, written, _level(read_at), _level(written.consistency), Highest())

    def _refuse_lost_tables(self) -> None:
        """Refuse a namespace that is named in a keyspace which lacks another table. Raises: ConfigError."""
        missing = schema.missing(self.session)
        if NAMES in missing:
            return
        rows = self.session.rows("find", self.namespace, level=ConsistencyLevel.SERIAL)
        if rows and rows[0][3] == HERE:
            raise ConfigError(
                f"{self.where}: keyspace {self.settings.keyspace} lacks {', '.join(missing)}: `tidegate init`"
                " makes it empty, then `tidegate repair` puts back from the log what was in it"
            )

    def _readable(self, existing: Made) -> Made:
        written, local = existing.written, self.session.local_dc
        consistency = self.settings.consistency
        if consistency and consistency != written.consistency:
            raise ConfigError(
                f"{self.where}: consistency is {consistency}, but the namespace is written at"
                f" {written.consistency}, for life; leave it out"
            )
        if written.consistency == CONSISTENCY and local != written.dc:
            raise ConfigError(
                f"{self.where}: it is written at {CONSISTENCY} in data centre {written.dc}, and this client"
                f" is in {local}, where a version may be incomplete; read in {written.dc}, or create a"
                " namespace with store_options={'consistency': 'EACH_QUORUM'}"
            )
        return existing

    def prepare(self) -> list[str]:
        """Create keyspace and tables; return descriptions of them."""
        return schema.make(self.session)

    def create(self, identity: Identity, lost_at: int) -> Identity:
        if self.settings.create and not self.session.has_tables():
            self.prepare()
        if not self.session.has_tables():
            raise ConfigError(f"{self.where}: {self.not_made}")
        existing = self._find()
        if existing is not None and not self._has_pointer(existing):  # its rows cannot be read any more
            self._hide(existing)
        self.finish_drop()
        written = Written(self.settings.consistency or CONSISTENCY, self.session.local_dc)
        level, space = _level(written.consistency), uuid.uuid4()
        self.session.decide(("new_pointer", space, lost_at), level=level)
        content = encode(identity).decode(), encode(written).decode()
        entered = self.session.decide(("enter", self.namespace, space, *content), level=level)
        if not entered[0]:  # another was first
            self.session.write("drop_pointer", NEVER_AGAIN_US, space, level=level)
        self._made = self._known = None
        return self.made.identity

    # -- removal -------------------------------------------------------------------------------

    def begin_drop(self) -> bool:
        """Hide the namespace permanently, as the first step of a drop; return whether there was one."""
        existing = self._find()
        if existing is not None:
            if self._known not in (None, existing.identity.uuid):
                raise dropped(self.where)
            self._hide(existing)
        self._made = self._known = None
        return existing is not None

    def _hide(self, existing: Made) -> None:
        hide = "begin_drop", self.namespace, existing.space
        self.session.decide(hide, level=existing.write_at)

    def finish_drop(self) -> bool:
        """Delete a hidden namespace; return whether there was one. Repeatable."""
        existing = self._find(state=DROPPING)
        if existing is None:
            return False
        level, session = existing.write_at, self.session
        rows = session.rows("versions", existing.space, level=level)
        versions = [version for (version,) in rows if version is not None]  # a pointer alone: one row, none
        # One more version may have been applied and not published.
        for version in {*versions, max(versions, default=0) + 1}:
            session.write("drop_notes", NEVER_AGAIN_US, existing.space, version, level=level)
        for (table,) in session.rows("tables", existing.space, level=level):
            requests = (
                (session.bind("drop_rows", (NEVER_AGAIN_US, existing.space, table, group), level), 1)
                for group in range(existing.identity.key_groups)
            )
            for _ in session.each(requests):
                pass
        for name in ("drop_tables", "drop_schemas", "drop_all_leases", "drop_pointer"):
            session.write(name, NEVER_AGAIN_US, existing.space, level=level)
        session.decide(("end_drop", self.namespace, existing.space), level=level)
        return True

    # -- the pointer ---------------------------------------------------------------------------

    def look(self, *, settle: bool = False) -> Seen:
        """Return the newest acknowledged pointer.

        Plain reads at a quorum show a flip once it was acknowledged, and never retract one that
        they showed. Only a SERIAL read (``settle``) settles a conditional write of unknown outcome,
        and only its writer needs that.
        """
        return self._look(self.made, settle=settle)

    def _look(self, made: Made, *, settle: bool = False) -> Seen:
        level = ConsistencyLevel.SERIAL if settle or self.writing else made.read_at
        rows = self.session.rows("pointer", made.space, level=level)
        if not rows or rows[0][0] is None:
            raise self.lost(made)
        visible, digest, epoch, writer, horizon, filled, beat, beat_written_us, leases_at, now = rows[0]
        if None in (digest, epoch, writer, horizon):
            raise CorruptError(f"{self.where}: a column of the pointer was emptied: {FROM_A_COPY}")
        beat_us = None if beat is None else milliseconds(beat) * 1_000 or -beat_written_us
        ages = heartbeat_ages(beat_us, milliseconds(now) * 1_000)
        highest = made.highest
        highest.visible, highest.horizon = max(highest.visible, visible), max(highest.horizon, horizon)
        highest.merged = max(highest.merged, horizon - 1, filled or 0)
        pointer = Pointer(visible, digest, epoch, writer, horizon, *ages)
        return Seen(pointer, leases_at, milliseconds(now))

    def lost(self, made: Made) -> TidegateError:
        """Build the error for a space without a pointer; the next call finds the one that replaced it."""
        if self._made is not None and self._made.space == made.space:
            self._made = None
        existing = self._find()
        if existing is not None and existing.identity.uuid != made.identity.uuid:
            return dropped(self.where)
        return lost(self.where)

    def check_before(self, version: int) -> Made:
        """Check before reading rows: an invisible version may be half applied."""
        made = self.made
        if version > made.highest.visible:
            check_visible(self.where, version, self._look(made).pointer)
        check_kept(self.where, version, made.highest.horizon)
        return made

    def check_after(self, version: int) -> None:
        """Check after missing rows: the horizon moves before anything is deleted."""
        pointer = self.look().pointer
        check_visible(self.where, version, pointer)
        check_kept(self.where, version, pointer.horizon)

    def check_same(self, made: Made) -> None:
        """Refuse rows that were read while this instance changed to another space. Raises: StoreLostError."""
        present = self._made  # threads that began at one time may have found the same space each
        if present is None or present.space != made.space:
            raise lost(self.where)


def milliseconds(moment: Any) -> int:
    """Convert a CQL timestamp, which the driver returns as a naive datetime in UTC."""
    return calendar.timegm(moment.timetuple()) * 1_000 + int(moment.microsecond) // 1_000


_taking = forks.Lock()
"""Held while a session is taken or released. It is global: one connection is made at a time."""


def _level(name: str) -> int:
    assert name in READ_AT
    value: int = ConsistencyLevel.name_to_value[name]
    return value
