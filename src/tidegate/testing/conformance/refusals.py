"""The checks of refusals: the store is changed by hand, the reader must refuse, the change is undone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from tidegate.keys.groups import encode_key
from tidegate.sinks.rules.removal import Removal
from tidegate.testing.conformance import rows
from tidegate.testing.conformance.changes import StoreChanges, Undo
from tidegate.testing.conformance.session import (
    Session,
    SkippedError,
    check_equal,
    check_rows,
    live_of,
    refused_of,
    write_live,
)
from tidegate.testing.conformance.sqlite_changes import SqliteChanges
from tidegate.testing.conformance.writer import Writer

OTHER_UUID = "00000000-0000-4000-8000-000000000000"
NO_SERVER = b"0" * 40
KEY = ["id1"]
NOT_VERIFIED = "StoreNotVerifiedError"


def changes_in(writer: Writer) -> StoreChanges:
    """Return the changes to the store of this writer's namespace."""
    kind = writer.place.store.partition(":")[0]
    if kind == "sqlite":
        return SqliteChanges(writer)
    if kind == "cassandra":
        from tidegate.testing.conformance.cassandra_changes import CassandraChanges

        return CassandraChanges(writer)
    from tidegate.testing.conformance.redis_changes import RedisChanges

    return RedisChanges(writer)


@contextlib.contextmanager
def changed(
    session: Session, change: Callable[[Any, Writer], Undo], *, reconnects: bool = True
) -> Iterator[Writer]:
    """Change the store while the block runs; after it the reader, connected again, must read as before."""
    writer = session.writer("refused", refused_of)
    undo = change(changes_in(writer), writer)
    try:
        yield writer
    finally:
        undo()
    if reconnects:
        session.connect(writer.namespace)
        session.check_newest(writer, ["marker", "notes"])


def _connected(session: Session) -> Writer:
    writer = session.writer("refused", refused_of)
    session.connect(writer.namespace)
    session.check_newest(writer, ["marker"])
    return writer


def empty_of(session: Session, namespace: str) -> Writer:
    """Make a namespace without versions."""
    return session.new_writer(namespace, rows.TABLES, key_groups=2)


def nowhere(session: Session) -> None:
    """A namespace that does not exist: the connection before is replaced all the same."""
    _connected(session)
    session.raises("ConfigError", "connect", lambda: session.connect(f"{session.prefix}-nowhere"))
    session.refused("ConfigError", "version")
    session.refused("ConfigError", "get", table="marker", key=KEY)


def no_version(session: Session) -> None:
    """A namespace without a version."""
    writer = session.writer("empty", empty_of)
    session.connect(writer.namespace)
    check_equal("version", 0, session.reader.ask("version"))
    session.refused("ConfigError", "get", table="marker", key=KEY)
    session.refused("ConfigError", "scan", table="marker")
    with session.snapshot() as (snapshot, version):
        check_equal("the version of the snapshot", 0, version)
        session.refused("ConfigError", "get", table="marker", key=KEY, snapshot=snapshot)


def no_tables(session: Session) -> None:
    """The list of tables before the first version: it is empty."""
    session.connect(session.writer("empty", empty_of).namespace)
    check_equal("tables", [], session.reader.ask("tables"))
    with session.snapshot() as (snapshot, _):
        check_equal("tables of the snapshot", [], session.reader.ask("tables", snapshot=snapshot))


def gone(session: Session) -> None:
    """A namespace that is removed while the reader is connected."""
    writer = session.writer("gone", live_of)
    session.connect(writer.namespace)
    session.check_newest(writer, ["marker"])
    session.drop("gone")
    session.refused("StoreLostError", "get", table="marker", key=KEY)


def made_again(session: Session) -> None:
    """A namespace of the same name that is made while the reader is connected."""
    writer = session.writer("again", live_of)
    session.connect(writer.namespace)
    session.check_newest(writer, ["marker"])
    session.drop("again")
    write_live(session.writer("again", live_of))
    session.refused("ConfigError", "get", table="marker", key=KEY)


def _with_format(number: int, changes: Any, _: Writer) -> Undo:
    undo: Undo = changes.identity(format=number)
    return undo


def other_format(session: Session) -> None:
    """Formats that this release does not read: a later one, and an earlier one."""
    for number in (99,) if session.kind == "cassandra" else (99, 1):
        with changed(session, partial(_with_format, number)) as writer:
            session.raises(
                "ConfigError", f"connect to format {number}", partial(session.connect, writer.namespace)
            )


def not_ready(session: Session) -> None:
    """A namespace that is not complete yet, or is being dropped."""
    with changed(session, lambda changes, _: changes.not_ready()) as writer:
        session.raises("ConfigError", "connect", partial(session.connect, writer.namespace))


def filling(session: Session) -> None:
    """A store that is being filled at a version: nothing is visible before that is complete."""
    writer = session.writer("empty", empty_of)
    undo = changes_in(writer).pointer(horizon=3)
    try:
        _refused_from_connect(session, writer, NOT_VERIFIED)
        check_equal("version", 0, session.reader.ask("version"))
        for do, arguments in (("scan", {"table": "marker"}), ("tables", {}), ("snapshot", {})):
            session.refused(NOT_VERIFIED, do, **arguments)
    finally:
        undo()


def filled_meanwhile(session: Session) -> None:
    """A store that is filled again under a reader that has seen a version: the filling counts first."""
    _connected(session)
    with changed(session, lambda changes, _: changes.pointer(visible=0, horizon=3)):
        _refuses_all(session, NOT_VERIFIED)


def _refuses_all(session: Session, error: str) -> None:
    """Check that each request for the newest version is refused; a wait has the error at its end."""
    for do, arguments in (
        ("version", {}),
        ("get", {"table": "marker", "key": KEY}),
        ("scan", {"table": "marker"}),
        ("tables", {}),
        ("snapshot", {}),
        ("wait_for", {"version": 1, "timeout_s": 0.1}),
    ):
        session.refused(error, do, **arguments)


def removed(session: Session) -> None:
    """A store that was removed from the namespace."""
    note = Removal(3, 1_795_255_200_000_000, "redis://successor:6379").as_writer()
    with changed(session, lambda changes, _: changes.pointer(writer=note)) as writer:
        _refused_from_connect(session, writer, "StoreRemovedError")


def removed_meanwhile(session: Session) -> None:
    """A store that is removed while the reader is connected: a snapshot that was begun before continues."""
    _connected(session)
    with session.snapshot() as (snapshot, version):
        note = Removal(3, 1_795_255_200_000_000, "").as_writer()
        with changed(session, lambda changes, _: changes.pointer(writer=note), reconnects=False) as writer:
            _refuses_all(session, "StoreRemovedError")
            for given in (version, version - 1):
                session.refused("StoreRemovedError", "snapshot", version=given)
            session.check_table(writer, version, "marker", snapshot)


def half_a_note(session: Session) -> None:
    """A note of a removal that cannot be read."""
    with changed(session, lambda changes, _: changes.pointer(writer='{"removed_after":3')) as writer:
        _refused_from_connect(session, writer, "CorruptError")


def never_back(session: Session) -> None:
    """A store whose visible version goes back."""
    writer = _connected(session)
    digest = writer.store.catalog(2, 2)[0].digest
    with changed(session, lambda changes, _: changes.pointer(visible=2, digest=digest)):
        session.refused("VersionRegressedError", "version")
        session.refused("VersionRegressedError", "get", table="marker", key=KEY)


def other_history(session: Session) -> None:
    """A store that shows the version that was seen, of another history."""
    writer = _connected(session)
    with changed(session, lambda changes, _: changes.pointer(digest="0" * 32)):
        session.refused("VersionRegressedError", "version")
        session.refused("VersionRegressedError", "get", table="marker", key=KEY)
    session.connect(writer.namespace)


def flags(session: Session, stored: bytes) -> None:
    """A stored value that no release writes."""
    key = encode_key(KEY, ["string"])
    with changed(session, lambda changes, _: changes.value("marker", key, 3, stored)) as writer:
        session.connect(writer.namespace)
        session.refused("CorruptError", "get", table="marker", key=KEY)
        session.refused("CorruptError", "scan", table="marker")
        session.check_newest(writer, ["notes"])


def value_format(session: Session) -> None:
    """A schema with a format that this release does not know."""

    def change(changes: Any, writer: Writer) -> Undo:
        schema = writer.schemas["marker"]
        other = msgspec.structs.replace(schema, stored_format="json2")
        undo: Undo = changes.schema(schema.schema_id, msgspec.json.encode(other))
        return undo

    with changed(session, change) as writer:
        session.connect(writer.namespace)
        session.refused("ConfigError", "get", table="marker", key=KEY)
        session.refused("ConfigError", "scan", table="marker")
        session.check_newest(writer, ["notes"])


# -- on SQLite ----------------------------------------------------------------------------------------


def file(session: Session, change: Callable[[Any, Writer], Undo]) -> None:
    """A file that is not this namespace's, or that lost its end."""
    if session.kind != "sqlite":
        raise SkippedError("only SQLite has files")
    with changed(session, change) as writer:
        _refused_from_connect(session, writer, "CorruptError")


# -- on Redis -----------------------------------------------------------------------------------------


def _on_redis(session: Session) -> None:
    if session.kind != "redis":
        raise SkippedError("only Redis has headers and servers that are compared")


def other_uuid(session: Session) -> None:
    """A pointer of another namespace, met by a reader that is connected."""
    _on_redis(session)
    _connected(session)
    with changed(session, lambda changes, _: changes.uuid(OTHER_UUID)):
        session.refused("ConfigError", "get", table="marker", key=KEY)


def header(session: Session, error: str, change: Callable[[Any, Writer], Undo]) -> None:
    """A key group that a reader must not read: connected before and after."""
    _on_redis(session)
    _connected(session)
    with changed(session, change) as writer:
        _refuses_rows(session, error)
        session.connect(writer.namespace)
        _refuses_rows(session, error)


def not_listed(session: Session) -> None:
    """A server that the pointer does not list. A reader that met it while it was listed may go on."""
    _on_redis(session)
    with changed(session, lambda changes, _: changes.servers(NO_SERVER)) as writer:
        session.connect(writer.namespace)
        _refuses_rows(session, NOT_VERIFIED)


def replaced(session: Session) -> None:
    """A server that the reader has met, and that the pointer of a newer version does not list.

    It may be a primary that was replaced and does not know it: it would answer with older rows.
    """
    _on_redis(session)
    writer = session.writer("live", live_of)
    session.connect(writer.namespace)
    session.check_newest(writer, ["marker"])
    write_live(writer)
    changes: Any = changes_in(writer)
    undo = changes.servers(NO_SERVER)
    try:
        _refuses_rows(session, NOT_VERIFIED)
    finally:
        undo()


def other_latest(session: Session) -> None:
    """An entry in ``latest`` that is not the visible version's: the catalog has that one."""
    _on_redis(session)
    digest = session.writer("refused", refused_of).store.catalog(2, 2)[0].digest
    with changed(session, lambda changes, _: changes.pointer(visible=2, digest=digest)) as writer:
        session.connect(writer.namespace)
        expected = {"version": 2, "value": {"n": "2"}}
        check_equal("get at version 2", expected, session.reader.ask("get", table="marker", key=KEY))
        scanned = session.reader.ask("scan", table="marker")
        check_rows("scan", writer.schemas["marker"], writer.expected.rows(2, "marker"), scanned["rows"])
        check_equal("tables at version 2", ["marker"], session.reader.ask("tables"))
        session.refused("ConfigError", "get", table="notes", key=["00"])


def damaged(session: Session, change: Callable[[Any, Writer], Undo]) -> None:
    """A field of the pointer that no release writes."""
    _on_redis(session)
    with changed(session, change) as writer:
        _refused_from_connect(session, writer, "CorruptError")


def _without(field: str, changes: Any, _: Writer) -> Undo:
    undo: Undo = changes.fields(**{field: None})
    return undo


def half_an_alias(session: Session) -> None:
    """An alias that lacks a field."""
    _on_redis(session)
    writer = session.writer("live", live_of)
    for field in ("namespace", "uuid"):
        name = session.set_alias(f"half-{field}", writer)
        changes: Any = changes_in(writer)
        changes.alias(name, field)
        session.raises("CorruptError", f"connect by an alias without {field}", partial(session.connect, name))


def _refuses_rows(session: Session, error: str) -> None:
    session.refused(error, "get", table="marker", key=KEY)
    session.refused(error, "scan", table="marker")


def _refused_from_connect(session: Session, writer: Writer, error: str) -> None:
    """Check a refusal that a reader may raise when it connects, or at its first read."""

    def reads() -> Any:
        session.connect(writer.namespace)
        return session.reader.ask("get", table="marker", key=KEY)

    session.raises(error, "connect and get", reads)


HEADERS: dict[str, tuple[str, Callable[[Any, Writer], Undo]]] = {
    "header-marked": (
        NOT_VERIFIED,
        lambda changes, writer: changes.header(u=f"{writer.uuid}!3f2a".encode()),
    ),
    "header-of-another": ("ConfigError", lambda changes, _: changes.header(u=OTHER_UUID.encode())),
    "header-lost": (NOT_VERIFIED, lambda changes, _: changes.without_header()),
    "layer-lost": (NOT_VERIFIED, lambda changes, _: changes.without_layer("marker", 3)),
    "compared-elsewhere": (NOT_VERIFIED, lambda changes, _: changes.header(s=NO_SERVER)),
}

ON_SQLITE: dict[str, Callable[[Session], None]] = {
    "refuses-other-file": partial(file, change=lambda changes, _: changes.shard(OTHER_UUID)),
    "refuses-cut-file": partial(file, change=lambda changes, _: changes.without_seal(3)),
}
"""The checks that only SQLite has, by name; on other stores they are skipped."""

ON_REDIS: dict[str, Callable[[Session], None]] = {
    "refuses-other-uuid": other_uuid,
    **{f"refuses-{name}": partial(header, error=of[0], change=of[1]) for name, of in HEADERS.items()},
    "refuses-server-not-listed": not_listed,
    "refuses-server-replaced": replaced,
    "latest-of-another-version": other_latest,
    **{
        f"refuses-no-{field}": partial(damaged, change=partial(_without, field))
        for field in ("digest", "writer", "servers")
    },
    "refuses-latest": partial(damaged, change=lambda changes, _: changes.fields(latest=b"17 {")),
    "refuses-half-an-alias": half_an_alias,
}
"""The checks that only Redis has, by name; on other stores they are skipped."""

REFUSALS: dict[str, Callable[[Session], None]] = {
    "refuses-nowhere": nowhere,
    "refuses-no-version": no_version,
    "no-tables": no_tables,
    "refuses-gone": gone,
    "refuses-made-again": made_again,
    "refuses-format": other_format,
    "refuses-not-ready": not_ready,
    "refuses-filling": filling,
    "refuses-removed": removed,
    "refuses-filling-meanwhile": filled_meanwhile,
    "refuses-removed-meanwhile": removed_meanwhile,
    "refuses-half-a-note": half_a_note,
    "refuses-never-back": never_back,
    "refuses-other-history": other_history,
    "refuses-unknown-flag": partial(flags, stored=b'?{"n":7}'),
    "refuses-delete-with-value": partial(flags, stored=b'-{"n":7}'),
    "refuses-no-value": partial(flags, stored=b'+{"n":'),
    "refuses-value-format": value_format,
    **ON_SQLITE,
    **ON_REDIS,
}
"""The checks by name."""
