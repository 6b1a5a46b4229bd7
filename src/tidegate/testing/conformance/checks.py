"""The checks of the conformance program, in their order: each is a function of the session."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tidegate.testing.conformance import rows
from tidegate.testing.conformance.canonical import comparable_value
from tidegate.testing.conformance.refusals import REFUSALS
from tidegate.testing.conformance.session import (
    FailedError,
    Session,
    SkippedError,
    check_equal,
    check_values,
    check_version,
    history_of,
    live_of,
    refused_of,
    until,
    write_live,
)
from tidegate.testing.conformance.vectors.faults import FAULTS
from tidegate.testing.conformance.vectors.keys import key_vectors
from tidegate.testing.conformance.vectors.schemas import schema_vectors
from tidegate.testing.conformance.vectors.values import as_table, value_vectors
from tidegate.testing.conformance.writer import Writer

Check = Callable[[Session], None]

LEASE_S = 0.5
"""The lease of the snapshot that is kept for longer."""
PAUSE_S = 0.02
"""The pause between two versions: the lease of a reader is revoked after ``max_layers`` of them."""
FEW_VERSIONS = 4
MANY_KEYS = 10_000


# -- vectors ------------------------------------------------------------------------------------------


def keys(session: Session) -> None:
    """Check the bytes and the key groups of every key of the vectors, and the refusals."""
    for vector in key_vectors():
        of = {"types": vector["types"], "values": vector["values"]}
        if "error" in vector:
            session.refused(vector["error"], "encode_key", **of, key_groups=128, stride=1)
            continue
        for group in vector["groups"]:
            number = group["key_group"]
            given = {"key_groups": group["key_groups"], "stride": group["stride"]}
            answer = session.reader.ask("encode_key", **of, **given)
            check_equal(f"encode_key {of} {given}", {"bytes": vector["bytes"], "key_group": number}, answer)


def values(session: Session) -> None:
    """Check every stored value of the vectors."""
    _decode(session, value_vectors())


def schemas(session: Session) -> None:
    """Check the schemas of the vectors: accepted, or refused."""
    _decode(session, schema_vectors()["schemas"])


def _decode(session: Session, vectors: Sequence[dict[str, Any]]) -> None:
    for vector in vectors:
        what = f"decode_value, {vector.get('name', vector['schema'])}"
        given = {name: vector[name] for name in ("schema", "stored", "decided_at_us")}
        if "error" in vector:
            session.raises(vector["error"], what, partial(session.reader.ask, "decode_value", **given))
            continue
        answer, schema = session.reader.ask("decode_value", **given), as_table(vector["schema"])
        if comparable_value(schema, answer) != comparable_value(schema, vector["value"]):
            raise FailedError(f"{what}: {vector['value']!r} is expected, and the answer is {answer!r}")


# -- the rows of every version ------------------------------------------------------------------------


def connects(session: Session) -> None:
    """Check the uuid and the visible version of a namespace."""
    writer = session.writer("history", history_of)
    check_equal(
        "connect", {"uuid": writer.uuid, "namespace": writer.namespace}, session.connect(writer.namespace)
    )
    check_equal("version", writer.visible, session.reader.ask("version"))


def rows_of(session: Session, tables: Sequence[str]) -> None:
    """Check these tables at every version that can be read, also where they do not exist."""
    writer = session.writer("history", history_of)
    session.connect(writer.namespace)
    _check_versions(session, writer, tables, _readable(writer))


def _readable(writer: Writer) -> range:
    return range(max(writer.store.pointer().horizon, 1), writer.visible + 1)


def _check_versions(session: Session, writer: Writer, tables: Sequence[str], versions: Sequence[int]) -> None:
    for version in versions:
        with session.snapshot(version=version) as (snapshot, taken):
            check_equal("the version of the snapshot", version, taken)
            for table in tables:
                if table in writer.expected.tables(version):
                    session.check_table(writer, version, table, snapshot)
                else:
                    session.refused("ConfigError", "scan", table=table, snapshot=snapshot)


def newest(session: Session) -> None:
    """Check reads without a snapshot, of one row and of rows of all tables at once."""
    writer = session.writer("history", history_of)
    session.connect(writer.namespace)
    session.check_newest(writer, writer.expected.tables(writer.visible))


def tables(session: Session) -> None:
    """Check the list of tables of every version, and that the tables of timeouts are in none."""
    writer = session.writer("history", history_of)
    session.connect(writer.namespace)
    for version in _readable(writer):
        with session.snapshot(version=version) as (snapshot, _):
            answer = session.reader.ask("tables", snapshot=snapshot)
            check_equal(f"tables of version {version}", writer.expected.tables(version), answer)
    check_equal("tables", writer.expected.tables(writer.visible), session.reader.ask("tables"))
    writer = session.writer("live", live_of)
    session.connect(writer.namespace)
    shown = [name for name in writer.expected.tables(writer.visible) if name not in rows.HIDDEN]
    with session.snapshot() as (snapshot, _):
        check_equal("tables of the snapshot", shown, session.reader.ask("tables", snapshot=snapshot))
    check_equal("tables", shown, session.reader.ask("tables"))


def many_keys(session: Session) -> None:
    """Check 10,000 keys of one key group in one request: a function of Redis takes fewer in one call."""
    writer = session.writer("refused", refused_of)
    session.connect(writer.namespace)
    expected = {key[0]: value for key, value in writer.expected.rows(writer.visible, "marker")}
    names = [f"id{place}" for place in range(MANY_KEYS)]
    for of in ({}, {"snapshot": session.reader.ask("snapshot")["snapshot"]}):
        got = session.reader.ask("get_many", keys={"marker": [[name] for name in names]}, **of)
        check_version("get_many", got, writer.visible)
        pairs = [([name], expected.get(name)) for name in names]
        check_values("get_many of 10,000 keys", writer.schemas["marker"], pairs, got["rows"]["marker"])
    session.connect(writer.namespace)


def wrong_arguments(session: Session) -> None:
    """Check that a table that does not exist, and keys of another type, are refused."""
    writer = session.writer("history", history_of)
    session.connect(writer.namespace)
    session.refused("ConfigError", "get", table="nowhere", key=["id1"])
    session.refused("ConfigError", "scan", table="nowhere")
    session.refused("ConfigError", "get", table="Pairs.of-keys", key=["EWR"])
    session.refused("ConfigError", "get", table="Pairs.of-keys", key=["EWR", "x"])
    session.refused("ConfigError", "get", table="marker", key=["id1", "7"])
    session.refused("ConfigError", "snapshot", version=writer.visible + 1)
    session.refused("ConfigError", "snapshot", version=2**40)
    session.refused("ConfigError", "snapshot", version=0)  # versions begin with 1
    session.refused("ConfigError", "snapshot", lease_s=0)
    session.refused("ConfigError", "snapshot", lease_s=86_401)
    session.check_newest(writer, ["marker"])


def merged(session: Session) -> None:
    """Check all tables once the older versions are retired, and their rows merged."""
    writer, oldest = _retired(session)
    _check_versions(session, writer, sorted(rows.TABLES), range(oldest, writer.visible + 1))
    session.check_newest(writer, writer.expected.tables(writer.visible))


def retired(session: Session) -> None:
    """Check that versions that were retired are refused."""
    _, oldest = _retired(session)
    for version in range(1, oldest):
        session.refused("SnapshotExpiredError", "snapshot", version=version)


def _retired(session: Session) -> tuple[Writer, int]:
    writer = session.writer("history", history_of)
    session.connect(writer.namespace)
    writer.release_leases()  # of a reader that has failed
    oldest = writer.retire()
    assert oldest == writer.visible - rows.VERSIONS_KEPT + 1
    return writer, oldest


# -- while versions are written -----------------------------------------------------------------------


def follows(session: Session) -> None:
    """Check that each version is seen as soon as it is visible."""
    writer = session.writer("live", live_of)
    session.connect(writer.namespace)
    for _ in range(FEW_VERSIONS):
        session.check_newest(writer, ["marker", "notes"])
        check_equal("version", write_live(writer), session.reader.ask("version"))
        session.check_newest(writer, ["marker", "notes"])
        writer.retire()
        session.check_newest(writer, ["marker", "notes"])


def waits(session: Session) -> None:
    """Check that a wait ends once its version is visible, and is bounded."""
    writer = session.writer("live", live_of)
    session.connect(writer.namespace)
    session.reader.send("wait_for", version=writer.visible + 1, timeout_s=30)
    version = write_live(writer)
    check_equal("wait_for", version, session.reader.receive(30))
    check_equal(
        "wait_for of a visible version", version, session.reader.ask("wait_for", version=1, timeout_s=1)
    )
    session.refused("WaitTimeoutError", "wait_for", version=version + 1, timeout_s=0.1)


def kept(session: Session) -> None:
    """Check that a snapshot keeps its version for longer than its lease, while newer ones are retired."""
    writer = session.writer("live", live_of)
    session.connect(writer.namespace)
    with session.snapshot(lease_s=LEASE_S) as (snapshot, version):
        check_equal("the version of the snapshot", writer.visible, version)
        passed, written = until(2.5 * LEASE_S), 0
        while written < FEW_VERSIONS or not passed():
            write_live(writer)
            writer.retire()
            written += 1
            for table in ("marker", "notes"):
                session.check_table(writer, version, table, snapshot)
            session.check_newest(writer, ["marker"])
            time.sleep(PAUSE_S)
    writer.retire()
    session.refused("SnapshotExpiredError", "snapshot", version=version)


def revoked(session: Session) -> None:
    """Check that a snapshot refuses all reads once its version was retired, and never says "absent"."""
    writer = session.writer("live", live_of)
    session.connect(writer.namespace)
    with session.snapshot() as (snapshot, version):
        session.check_table(writer, version, "marker", snapshot)
        for _ in range(FEW_VERSIONS):
            write_live(writer)
        writer.release_leases()
        assert writer.retire() > version
        for _ in range(2):
            session.refused("SnapshotExpiredError", "get", table="marker", key=["absent"], snapshot=snapshot)
            session.refused("SnapshotExpiredError", "scan", table="marker", snapshot=snapshot)


def alias(session: Session) -> None:
    """Check that an alias is followed before each read, and that a snapshot stays where it was taken."""
    first, second = session.writer("history", history_of), session.writer("live", live_of)
    name = session.set_alias("alias", first)
    check_equal(
        "connect by an alias", {"uuid": first.uuid, "namespace": first.namespace}, session.connect(name)
    )
    session.check_newest(first, ["marker", "notes"])
    with session.snapshot() as (snapshot, version):
        session.set_alias("alias", second)
        session.check_newest(second, ["marker", "notes"])
        check_equal("version", second.visible, session.reader.ask("version"))
        session.check_table(first, version, "marker", snapshot)
    session.set_alias("alias", first)
    session.check_newest(first, ["few"])


def wrong_alias(session: Session) -> None:
    """Check that an alias of another namespace of the same name is refused."""
    writer = session.writer("live", live_of)
    name = session.set_alias("wrong-alias", writer, uuid="00000000-0000-4000-8000-000000000000")
    session.raises("ConfigError", "connect by an alias of another uuid", lambda: session.connect(name))


def alias_of_a_namespace(session: Session) -> None:
    """Check that a name is a namespace's, if there are a namespace and an alias of that name."""
    if session.kind == "cassandra":
        raise SkippedError("in Cassandra one row has a name: a namespace's or an alias's")
    writer = session.writer("live", live_of)
    name = session.set_alias("live", session.writer("history", history_of))
    assert name == writer.namespace
    try:
        check_equal("connect", {"uuid": writer.uuid, "namespace": name}, session.connect(name))
        session.check_newest(writer, ["marker", "notes"])
    finally:
        writer.store.aliases().drop(name)


def closes(session: Session) -> None:
    """Check that the reader ends after ``close``."""
    session.connect(session.writer("live", live_of).namespace)
    check_equal("the exit code after close", 0, session.reader.close())
    session.restart()


KEY_TABLES = [name for name in rows.TABLES if name.startswith("key")]

CHECKS: dict[str, Check] = {
    "vectors-keys": keys,
    "vectors-values": values,
    "vectors-schemas": schemas,
    "connect": connects,
    "rows-types": partial(rows_of, tables=["types"]),
    "rows-keys": partial(rows_of, tables=[*KEY_TABLES, "Pairs.of-keys"]),
    "rows-bytes": partial(rows_of, tables=["notes"]),
    "rows-deleted": partial(rows_of, tables=["marker"]),
    "rows-few-key-groups": partial(rows_of, tables=["few"]),
    "rows-large": partial(rows_of, tables=["large"]),
    "rows-expired": partial(rows_of, tables=["sessions"]),
    "rows-emptied": partial(rows_of, tables=["emptied"]),
    "rows-dropped": partial(rows_of, tables=["dropped"]),
    "rows-evolved": partial(rows_of, tables=["evolved"]),
    "newest": newest,
    "tables": tables,
    "many-keys": many_keys,
    "wrong-arguments": wrong_arguments,
    "merged": merged,
    "retired": retired,
    "follows": follows,
    "waits": waits,
    "kept": kept,
    "snapshot-revoked": revoked,
    "alias": alias,
    "wrong-alias": wrong_alias,
    "alias-of-a-namespace": alias_of_a_namespace,
    **REFUSALS,
    **FAULTS,
    "close": closes,
}
"""Every check by its name, in the order in which they run."""
