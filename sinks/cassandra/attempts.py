"""The noted attempts of a Cassandra store: notes of a version that belong to no key group.

Each attempt that begins a version adds its own note, then reads all of them and the pointer. Of two
that begin at once, each has written before it reads, at consistencies that overlap: at least one of
them sees the other, and refuses. So no version waits for a conditional write. A discarded attempt
has a second note, which stays until the version is retired.

Rows are plain writes: no server stops a late one. They have their attempt's time, which is below
that of anything decided after a discard, so no key that the next attempt writes is ever theirs.
Rows that existed at the discard stay deleted. docs/decisions/0028 describes what remains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tidegate.sinks.cassandra.namespace import CassandraNamespace
from tidegate.sinks.cassandra.rows import Rows
from tidegate.sinks.records import Stamp
from tidegate.sinks.rules.attempts import DISCARDED, fenced, other_attempt
from tidegate.sinks.rules.schemas import stored_schema
from tidegate.wal.record import TableSchema

NO_GROUP = -1
"""The key group of notes that belong to none."""
DISCARD = "!"
"""The prefix of the attempt in the note of its discard."""


def put_schema(space: CassandraNamespace, schema: TableSchema, timestamp_us: int) -> tuple[Any, ...]:
    """Return the values of the statement that stores a schema."""
    return space.made.space, schema.schema_id, stored_schema(schema).decode(), timestamp_us


class NotedAttempts:
    """The begins and discards of a space's versions."""

    def __init__(self, space: CassandraNamespace, rows: Rows) -> None:
        self._space, self._rows = space, rows

    def begin(self, stamp: Stamp, schemas: Iterable[TableSchema], epoch: int) -> bool:
        """As ``Attempts.begin``. The schemas are sent together with the note."""
        space, session = self._space, self._space.session
        new = stamp.version > self._look(stamp, epoch)
        writes = [
            (session.bind("put_schema", put_schema(space, schema, stamp.decided_at_us), space.write_at), 1)
            for schema in schemas
        ]
        if new:
            note = (NO_GROUP, stamp.attempt, 0, stamp.decided_at_us)
            writes += self._rows.requests_to_note(stamp, [note])
        for _ in session.each(iter(writes)):
            pass
        if new:
            self._look(stamp, epoch)  # an older driver that read before our claim is noted now, or sees ours
            self._rows.begun = stamp
        return new

    def _look(self, stamp: Stamp, epoch: int) -> int:
        """Return the visible version. Raises: WalGapError, FencedError: the attempt may not write."""
        space, session = self._space, self._space.session
        made, level = space.made, space.read_at
        reads = (
            (session.bind("notes", (made.space, stamp.version, NO_GROUP, NO_GROUP), level), 1),
            (session.bind("pointer", (made.space,), level), 1),
        )
        notes, pointers = session.each(iter(reads))
        if not pointers or pointers[0][0] is None:
            raise space.lost(made)
        visible, _, standing, writer, *_ = pointers[0]
        if standing > epoch:
            raise fenced(space.where, stamp, standing, epoch, writer)
        if stamp.version > visible:
            self._refuse_other(stamp, {name for _, name, _ in notes})
        return int(visible)

    def refuse_other(self, stamp: Stamp) -> None:
        """Raise WalGapError if another attempt of the version was begun, or this one was discarded.

        An instance that began the attempt has already checked.
        """
        if stamp.attempt and stamp != self._rows.begun:
            notes = self._space.rows("notes", stamp.version, NO_GROUP, NO_GROUP)
            self._refuse_other(stamp, {name for _, name, _ in notes})

    def _refuse_other(self, stamp: Stamp, names: set[str]) -> None:
        if DISCARD + stamp.attempt in names:
            raise other_attempt(self._space.where, stamp)
        for name in sorted(names - {stamp.attempt}):
            if not name.startswith(DISCARD) and DISCARD + name not in names:
                raise other_attempt(self._space.where, stamp, name)

    def begun(self) -> list[Stamp]:
        """As ``Attempts.begun``. A discarded attempt with later notes counts as not discarded."""
        stamps, version = list[Stamp](), self._space.look().pointer.visible + 1
        while notes := self._space.rows("all_notes", version):
            times_us = {name: at_us for group, name, _, at_us in notes if group == NO_GROUP}
            brought = {name.rpartition("/")[0] for group, name, _, _ in notes if group != NO_GROUP}
            for name, at_us in sorted(times_us.items(), key=lambda note: note[1]):
                if name.startswith(DISCARD):
                    stamps.append(Stamp(version, at_us, DISCARDED))
                elif DISCARD + name not in times_us or name in brought:
                    stamps.append(Stamp(version, at_us, name))
            version += 1
        return stamps

    def discard(self, lost: Sequence[Stamp], epoch: int) -> None:
        """As ``Attempts.discard``: refuse first, then drop rows, then their notes."""
        pointer = self._space.look().pointer
        if pointer.epoch > epoch:
            raise fenced(self._space.where, lost[0], pointer.epoch, epoch, pointer.writer)
        for stamp in lost:
            self._rows.note(stamp, [(NO_GROUP, DISCARD + stamp.attempt, 0, stamp.decided_at_us)])
        self._rows.begun = None
        self._rows.drop_lost(lost)
        for stamp in lost:
            notes = self._space.rows("all_notes", stamp.version)
            brought = [note[:3] for note in notes if note[1].rpartition("/")[0] == stamp.attempt]
            self._rows.drop_noted(stamp, brought)
