"""Checks that keyspace, tables and nodes in Cassandra are set up as the guarantees require.

On open, three small requests read the nodes' view of the schema, and one the settings of each node
of this data centre. `tidegate doctor` sends each of them more (``node_checks.py``). Managed services
bar some of it: a check without its data is a warning with that reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tidegate.base.checks import Check, Outcome
from tidegate.errors import StoreUnavailableError
from tidegate.sinks.cassandra import node_checks as limits
from tidegate.sinks.cassandra.client.schema import KEYSPACES, planned
from tidegate.sinks.cassandra.client.settings import CONSISTENCY, READ_AT, is_loopback
from tidegate.sinks.cassandra.client.statements import tables
from tidegate.sinks.cassandra.namespace import CassandraNamespace, Made
from tidegate.sinks.rules.limits import ValueLimit

WHOLE = "a version is seen whole or not at all (I1)"
KEPT = "visible versions stay (I3, I10)"
ONE_WRITER = "one writer at a time, nothing goes back (I6, I9)"
APPLIED = "decided versions can be applied (I4)"
AWAY = "readers and the stream continue when a node is lost"
BOUNDED = "disks do not fill up (I11)"

TABLES = "SELECT * FROM system_schema.tables WHERE keyspace_name = %s"
KNOWN = ((4, 1), (5, 0))
VERSION_MIN = (4, 0)
"""Before it, conditional writes and SERIAL reads could contradict each other (CASSANDRA-12126)."""
GC_GRACE_MIN_S = 10 * 86_400
"""Cassandra's default, and ten times the longest ``apply_deadline_s``."""
NOT_FOR_ROWS = ("TimeWindowCompactionStrategy", "DateTieredCompactionStrategy")
REPAIR = "`nodetool repair` every node within gc_grace_seconds"


class Node(NamedTuple):
    """A node as the driver knows it. ``up`` None: not known."""

    address: str
    dc: str
    up: bool | None
    version: str


class Keyspace(NamedTuple):
    """A keyspace's replication: copies per data centre, "" for any. ``simple``: regardless of data
    centres.
    """

    name: str
    copies: Mapping[str, int]
    simple: bool = False
    durable: bool = True
    transient: bool = False


def set_up(
    space: CassandraNamespace, value_bytes_max: int, *, thorough: bool
) -> tuple[list[Check], ValueLimit]:
    """Return one result per check, and the limit of values. Writes nothing.

    ``value_bytes_max``: the largest value that options and store allow.
    """
    session = space.session
    hosts = session.cluster.metadata.all_hosts()
    nodes = [Node(str(h.address), str(h.datacenter), h.is_up, str(h.release_version or "")) for h in hosts]
    scylla = is_scylla(session.cluster.metadata.keyspaces)
    checks = [version(nodes, scylla=scylla)]
    rows = session.plain(KEYSPACES, session.settings.keyspace)
    keyspace = keyspace_of(rows[0]) if rows else Keyspace(session.settings.keyspace, planned(session))
    existing = _made(space)
    if rows or session.settings.create:
        checks += _keyspace(space, keyspace, nodes, existing)
    checks += _tables(space)
    settings = limits.settings_of(space)
    limit = limits.limits(settings, value_bytes_max, session.settings.passed.get("protocol_version", 4))
    if thorough or limit.why:
        checks.append(limit.check)
    if not thorough:
        checks += limits.refused(settings)
    else:
        copies = sum(keyspace.copies.values())
        checks += limits.set_up(space, existing, copies, settings)
    return checks, limit


def _made(space: CassandraNamespace) -> Made | None:
    """Return the namespace; None: there is none, or too few nodes are up, which another check reports."""
    try:
        return space.find()
    except StoreUnavailableError:
        return None


def _keyspace(
    space: CassandraNamespace, keyspace: Keyspace, nodes: list[Node], existing: Made | None
) -> Iterator[Check]:
    level = existing.written.consistency if existing else space.settings.consistency or CONSISTENCY
    dc = existing.written.dc if existing else space.session.local_dc
    yield replication(keyspace, nodes, level, dc)
    yield durable(keyspace)
    yield quorum(keyspace, nodes, level, dc)
    yield consistency(keyspace, level, dc)


def _tables(space: CassandraNamespace) -> Iterator[Check]:
    rows = {row["table_name"]: row for row in space.session.plain(TABLES, space.settings.keyspace)}
    if not set(tables()) <= set(rows):
        if space.settings.create:
            yield Check(
                "tables", "pass", "they do not exist yet; the first batch creates them (create)", APPLIED
            )
        else:
            yield Check("tables", "fail", space.not_made, APPLIED, may_be_allowed=False)
    ours = {name: row for name, row in rows.items() if name in tables()}
    if ours:
        yield gc_grace(ours)
        yield time_to_live(ours)
        yield compaction(ours)
        yield read_repair(ours)


def is_scylla(keyspaces: Mapping[str, Any]) -> bool:
    """Detect ScyllaDB by its tables beside Cassandra's."""
    system = keyspaces.get("system")
    return system is not None and any(table.startswith("scylla_") for table in system.tables)


def keyspace_of(row: Mapping[str, Any]) -> Keyspace:
    """Decode a keyspace from its row in system_schema.keyspaces."""
    options = dict(row["replication"])
    kind = options.pop("class", "").rpartition(".")[2]
    copies = {("" if dc == "replication_factor" else dc): str(number) for dc, number in options.items()}
    numbers = {dc: int(digits[0]) for dc, number in copies.items() if (digits := re.match(r"\d+", number))}
    return Keyspace(
        row["keyspace_name"],
        numbers,
        kind != "NetworkTopologyStrategy",
        row["durable_writes"] is not False,
        any("/" in number for number in copies.values()),
    )


# -- nodes ----------------------------------------------------------------------------------------


def version(nodes: list[Node], *, scylla: bool) -> Check:
    """Check that all nodes run a version that tidegate knows."""
    versions = sorted({node.version for node in nodes})
    shown = f"{'ScyllaDB, as ' if scylla else ''}Cassandra {' and '.join(versions)}"
    if scylla:
        untested = (
            f"{shown}: tidegate is not tested with it; conditional writes need a keyspace without tablets"
        )
        return Check("version", "warn", f"{untested}, unless your release has them with tablets", WHOLE)
    numbers = {tuple(int(part) for part in re.findall(r"\d+", each)[:2]) for each in versions}
    if not numbers or () in numbers:
        return Check("version", "warn", f"not known: {shown}", WHOLE)
    if min(numbers) < VERSION_MIN:
        old = f"{shown}: 4.1 or later is needed; before 4.0 conditional writes could contradict reads"
        return Check("version", "fail", old, WHOLE, may_be_allowed=False)
    if not numbers <= set(KNOWN):
        return Check("version", "warn", f"{shown}: tidegate supports 4.1 and 5.0", WHOLE)
    if len(numbers) > 1:
        return Check(
            "version", "warn", f"{shown}: an upgrade is in progress; the schema cannot be changed now", WHOLE
        )
    return Check("version", "pass", shown, WHOLE)


def replication(keyspace: Keyspace, nodes: list[Node], level: str, dc: str) -> Check:
    """Check that there are copies in the written data centre, and more than one."""
    name, dcs = keyspace.name, sorted({node.dc for node in nodes})
    shown = ", ".join(f"{dc or 'in all'}: {n}" for dc, n in sorted(keyspace.copies.items())) or "none"
    alter = f"ALTER KEYSPACE {name} WITH replication = {{'class': 'NetworkTopologyStrategy', '{dc}': 3}}"
    mend = f"{alter}, then `nodetool repair --full {name}`"

    def check(outcome: Outcome, why: str, *, allowed: bool = True) -> Check:
        return Check("replication", outcome, f"{shown}: {why}", KEPT, may_be_allowed=allowed)

    if not keyspace.simple and not keyspace.copies.get(dc):
        return check("fail", f"no copy in data centre {dc}, where it is written; {mend}", allowed=False)
    if keyspace.transient:
        return check("fail", f"transient copies do not count for a quorum of whole versions; {mend}")
    least = min(number for number in keyspace.copies.values() if number)
    alone = len(nodes) == 1 and is_loopback(nodes[0].address)
    if least == 1 and not alone:
        return check("fail", f"one copy: rows on a lost disk are lost; {mend}")
    if keyspace.simple and len(dcs) > 1:
        return check("fail", f"SimpleStrategy knows no data centres, and there are {', '.join(dcs)}; {mend}")
    if keyspace.simple and not alone:
        return check("warn", f"SimpleStrategy: wrong as soon as there is a second data centre; {mend}")
    if least == 2:
        return check("warn", f"a quorum of two is both: a node that is down stops everything; {mend}")
    return check("pass", "on this machine alone" if least == 1 else f"written at {level}")


def _nodes(number: int) -> str:
    return f"{number} node{'s' * (number != 1)}"


def durable(keyspace: Keyspace) -> Check:
    """Check that writes go through the commit log."""
    if keyspace.durable:
        return Check("durable writes", "pass", "on", KEPT)
    mend = f"ALTER KEYSPACE {keyspace.name} WITH durable_writes = true"
    off = f"off: a restart loses acknowledged writes; {mend}"
    return Check("durable writes", "fail", off, KEPT)


def quorum(keyspace: Keyspace, nodes: list[Node], level: str, dc: str) -> Check:
    """Check that no more nodes are down than may be. A warning: they may come back."""
    looked = sorted({node.dc for node in nodes}) if level != CONSISTENCY and not keyspace.simple else [dc]
    counted = f"{_nodes(len(nodes))}, {sum(node.up is not False for node in nodes)} up"
    for each in looked:
        copies = keyspace.copies.get("" if keyspace.simple else each, 0)
        dc_nodes = [node for node in nodes if keyspace.simple or node.dc == each]
        down = [node.address for node in dc_nodes if node.up is False]
        spare = copies - (copies // 2 + 1)
        if copies > len(dc_nodes):
            finding = f"{counted}: {copies} copies do not fit on {_nodes(len(dc_nodes))} of {each}"
            return Check("nodes", "warn", finding, AWAY)
        if copies and len(down) > spare:
            finding = (
                f"{counted}: {', '.join(down)} down; with {copies} copies only {spare} may be: writes wait"
            )
            return Check("nodes", "warn", finding, AWAY)
        if down:
            finding = f"{counted}: {', '.join(down)} down; {REPAIR} if that lasts for more than three hours"
            return Check("nodes", "warn", finding, AWAY)
    return Check("nodes", "pass", counted, AWAY)


def consistency(keyspace: Keyspace, level: str, dc: str) -> Check:
    """Report which data centres can read the namespace."""
    others = sorted(each for each, copies in keyspace.copies.items() if copies and each not in ("", dc))
    if level == CONSISTENCY and others:
        refused = f"readers in {', '.join(others)} are refused; EACH_QUORUM lets them read at LOCAL_QUORUM"
        return Check("consistency", "pass", f"{level} in {dc}: {refused}", WHOLE)
    return Check("consistency", "pass", f"written at {level}, read at {' or '.join(READ_AT[level])}", WHOLE)


# -- tables ----------------------------------------------------------------------------------------


def gc_grace(tables: Mapping[str, Mapping[str, Any]]) -> Check:
    """Check how long tombstones stay: nothing older may be written again after they are gone."""
    seconds = tables.get("tidegate_rows", {}).get("gc_grace_seconds")
    if seconds is None:
        return Check("gc_grace", "warn", "not reported", KEPT)
    if seconds < GC_GRACE_MIN_S:
        short = (
            f"{seconds:,} s: a node that was down for longer, or a write that arrives later, brings back"
            f" deleted rows; ALTER TABLE tidegate_rows WITH gc_grace_seconds = {GC_GRACE_MIN_S}"
        )
        return Check("gc_grace", "fail", short, KEPT)
    return Check("gc_grace", "pass", f"{seconds / 86_400:.0f} days; {REPAIR}", KEPT)


def time_to_live(tables: Mapping[str, Mapping[str, Any]]) -> Check:
    """Check that none of tidegate's rows can expire."""
    wrong = sorted(name for name, row in tables.items() if row.get("default_time_to_live"))
    if wrong:
        finding = f"{', '.join(wrong)}: rows vanish by age; ALTER TABLE ... WITH default_time_to_live = 0"
        return Check("time to live", "fail", finding, KEPT)
    return Check("time to live", "pass", "none", KEPT)


def compaction(tables: Mapping[str, Mapping[str, Any]]) -> Check:
    """Check for strategies by time, which use write timestamps as ages, and may drop whole files by them."""
    classes = {
        name: str((row.get("compaction") or {}).get("class", "")).rpartition(".")[2]
        for name, row in tables.items()
    }
    wrong = sorted(name for name, strategy in classes.items() if strategy in NOT_FOR_ROWS)
    if wrong:
        by_time = (
            f"{', '.join(wrong)}: {classes[wrong[0]]} keeps a row and its tombstone apart, so neither is"
            " removed; set LeveledCompactionStrategy or UnifiedCompactionStrategy"
        )
        return Check("compaction", "fail", by_time, BOUNDED)
    return Check("compaction", "pass", classes.get("tidegate_rows") or "the default", BOUNDED)


def read_repair(tables: Mapping[str, Mapping[str, Any]]) -> Check:
    """Check that a flip seen by one quorum is seen by the next, acknowledged or not."""
    strategy = tables.get("tidegate_pointers", {}).get("read_repair")
    if strategy is None or strategy.upper() == "BLOCKING":
        return Check("read repair", "pass", "blocking" if strategy else "the server's default", ONE_WRITER)
    off = (
        f"{strategy}: while a version is made visible, a reader may see it and the next one not;"
        " ALTER TABLE tidegate_pointers WITH read_repair = 'BLOCKING'"
    )
    return Check("read repair", "fail", off, ONE_WRITER)
