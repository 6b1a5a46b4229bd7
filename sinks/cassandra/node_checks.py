"""Thorough checks of Cassandra's nodes: clocks, sizes, and settings that would refuse requests."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tidegate.base.checks import Check, Outcome, by_server, number_of
from tidegate.errors import ConfigError, StoreUnavailableError
from tidegate.keys.groups import KEY_GROUPS_MAX
from tidegate.options import KEY_BYTES_MAX
from tidegate.sinks.cassandra.client.session import FETCH_ROWS, Fields
from tidegate.sinks.cassandra.namespace import CassandraNamespace, Made
from tidegate.sinks.cassandra.rows import KEYS_AT_ONCE, PAGE_FIRST, TOGETHER_BYTES
from tidegate.sinks.rules.limits import Limit, ValueLimit, value_limit

APPLIED = "decided versions can be applied (I4)"
LEASED = "leases last as long as promised (I8), versions by time"
DURABLE = "durable before visible (I3)"
READ = "a version can be read"

NOW = "SELECT toTimestamp(now()) AS now FROM system.local"
SETTINGS = "SELECT name, value FROM system_views.settings"
LARGEST = "SELECT * FROM system_views.max_partition_size"
ESTIMATES = "SELECT * FROM system.size_estimates WHERE keyspace_name = %s"
CLOCK_WARN_S, CLOCK_FAIL_S = 0.5, 5.0
MIB = 1024**2
PARTITION_WARN_BYTES, PARTITION_WANTED_BYTES = 100 * MIB, 50 * MIB
OVERHEAD_BYTES = 4 * 1024
"""The overhead of a batch of one row, beside its key and value."""
READ_SIZES = ("local_read_size_fail_threshold", "coordinator_read_size_fail_threshold")
"""The limits of a page that is read, which count with ``read_thresholds_enabled``."""
MESSAGE_SIZE, MESSAGES_SINCE = "native_transport_max_message_size", 5
"""A node refuses a larger message of this version of the protocol. Unless an option is set, it is 4."""
SIZES = (
    *("max_mutation_size", "native_transport_max_frame_size", MESSAGE_SIZE),
    *("column_value_size_fail_threshold", *READ_SIZES),
)
"""The settings that limit a request, a mutation, a column or a read."""
TOMBSTONES_MIN = 100_000
"""Cassandra's default."""
UNITS = {"B": 1, "KiB": 1024, "MiB": MIB, "GiB": 1024 * MIB}

Settings = Mapping[str, str]


class Clock(NamedTuple):
    """How far a node's clock is ahead of this machine's, at least and at most: the reply took that long."""

    address: str
    least_s: float
    most_s: float


def set_up(
    space: CassandraNamespace, existing: Made | None, copies: int, nodes: Mapping[str, Settings | None]
) -> list[Check]:
    """Return one result per check, for every node of this data centre. Writes nothing."""
    session = space.session
    agreed = session.agree()
    differs = "the nodes do not agree; look for one that is down with `nodetool describecluster`"
    checks = [
        Check("schema", "pass" if agreed else "warn", "all nodes agree" if agreed else differs, APPLIED)
    ]
    checks.append(clocks([_clock(space, host) for host in session.hosts()]))
    looks: list[Callable[[Settings], Check]] = [
        refusals,
        lambda settings: commit_log(settings, copies),
    ]
    for look in looks:
        checks += _by_server(nodes, look)
    checks.append(partitions(_largest(space), existing.identity.key_groups if existing else None))
    return checks


def settings_of(space: CassandraNamespace) -> dict[str, Settings | None]:
    """Read the settings of every node here that is up; None: it bars them, or does not answer."""
    return {str(host.address): _settings(space, host) for host in space.session.hosts()}


def _settings(space: CassandraNamespace, host: Any) -> Settings | None:
    try:
        return {row["name"]: str(row["value"]) for row in space.session.plain(SETTINGS, host=host)}
    except (ConfigError, StoreUnavailableError):
        return None


def _by_server(nodes: Mapping[str, Settings | None], look: Callable[[Settings], Check]) -> Iterator[Check]:
    """Yield the check of every node's settings; a warning where the node bars them."""

    def check(settings: Settings | None) -> Check:
        result = look(settings or {})
        return (
            result if settings else result._replace(outcome="warn", found="not known: system_views is barred")
        )

    return by_server((address, check(settings)) for address, settings in nodes.items())


# -- clocks -----------------------------------------------------------------------------------------


def _clock(space: CassandraNamespace, host: Any) -> Clock:
    before = time.time()
    now = space.session.plain(NOW, host=host)[0]["now"]
    after = time.time()
    node_s = calendar.timegm(now.timetuple()) + now.microsecond / 1e6
    return Clock(str(host.address), node_s - after, node_s + 0.001 - before)


def clocks(readings: Sequence[Clock]) -> Check:
    """Check the certain difference of the clocks: between nodes, and from this machine's."""
    if not readings:
        return Check("clocks", "warn", "not known: no node is up", LEASED)
    apart = max(clock.least_s for clock in readings) - min(clock.most_s for clock in readings)
    offset = max(max(clock.least_s, -clock.most_s) for clock in readings)
    worst = max(apart, offset)
    outcome: Outcome = "fail" if worst > CLOCK_FAIL_S else "warn" if worst > CLOCK_WARN_S else "pass"
    if outcome == "pass":
        return Check("clocks", outcome, "this machine's and the nodes' agree", LEASED)
    far = max(readings, key=lambda clock: max(clock.least_s, -clock.most_s)).address
    differs = f"{worst:,.1f} s apart, {far} most of all: run NTP on all nodes and here"
    return Check("clocks", outcome, differs, LEASED)


# -- settings -----------------------------------------------------------------------------------------


def refused(nodes: Mapping[str, Settings | None]) -> list[Check]:
    """Return the failed checks of ``refusals`` of the nodes that report their settings."""
    return [check for check in _by_server(nodes, refusals) if check.outcome == "fail"]


def refusals(settings: Settings) -> Check:
    """Check for settings by which a node would refuse tidegate's requests."""
    wrong = list(_refused(settings))
    if wrong:
        return Check("guardrails", "fail", "; ".join(wrong), f"{APPLIED}; {READ}", may_be_allowed=False)
    few = number_of(settings, "tombstone_failure_threshold")
    if few is not None and 0 <= few < TOMBSTONES_MIN:
        low = (
            f"tombstone_failure_threshold {few:,}: scans past many deleted keys fail; set {TOMBSTONES_MIN:,}"
        )
        return Check("guardrails", "warn", low, READ)
    if settings.get("read_thresholds_enabled") == "true":
        return Check("guardrails", "warn", "read_thresholds_enabled: large reads may be refused", READ)
    return Check("guardrails", "pass", "none that refuses tidegate's requests", f"{APPLIED}; {READ}")


def _refused(settings: Settings) -> Iterator[str]:
    for name, reason in (
        ("allow_filtering_enabled", "scans filter by version within a key group"),
        ("group_by_enabled", "scans and reads of many keys group by key"),
        ("user_timestamps_enabled", "every write has its version's timestamp"),
    ):
        if settings.get(name) == "false":
            yield f"{name} false: {reason}; set it to true"
    for name, least, reason in (
        ("in_select_cartesian_product_fail_threshold", KEYS_AT_ONCE, "keys are read"),
        ("page_size_fail_threshold", FETCH_ROWS, "rows are fetched"),
    ):
        limit = number_of(settings, name)
        if limit is not None and 0 <= limit < least:
            yield f"{name} {limit}: {least:,} {reason} at once; raise it to that"
    batch = in_bytes(settings.get("batch_size_fail_threshold", ""))
    if batch is not None and batch < 2 * TOGETHER_BYTES:
        few = f"{TOGETHER_BYTES:,} bytes of several key groups are written at once"
        yield f"batch_size_fail_threshold {batch:,}: {few}; raise it to {2 * TOGETHER_BYTES:,}"
    for kind in ("read", "write"):
        name = f"{kind}_consistency_levels_disallowed"
        levels = set(re.findall(r"\w+", settings.get(name, ""))) & {"LOCAL_QUORUM", "SERIAL"}
        if levels:
            yield f"{name} has {' and '.join(sorted(levels))}: take it out"
    if settings.get("maximum_timestamp_fail_threshold", "None") not in ("None", "null", ""):
        yield "maximum_timestamp_fail_threshold: `tidegate drop` deletes with the highest timestamp; unset it"
    if settings.get("minimum_timestamp_fail_threshold", "None") not in ("None", "null", ""):
        yield "minimum_timestamp_fail_threshold: a version is applied with the time of its decision; unset it"


def limits(nodes: Mapping[str, Settings | None], size: int, protocol: int = 4) -> ValueLimit:
    """Return the smallest limit of a value that any node has: of a request, a mutation, a column or a read.

    ``size``: the largest value that the options allow. A node that bars its settings is taken to have the
    defaults, which ``value_bytes_max`` of the store fits.
    """
    known = {node: settings for node, settings in nodes.items() if settings}
    of_nodes = [limit for node, settings in known.items() for limit in _limits(node, settings, protocol)]
    barred = ", ".join(sorted(nodes.keys() - known.keys()))
    return value_limit(of_nodes, size, f"not known: system_views is barred at {barred}" if barred else "")


def _limits(at: str, settings: Settings, protocol: int) -> Iterator[Limit]:
    known = {name: size for name in SIZES if (size := in_bytes(settings.get(name, ""))) is not None}
    for name, size in known.items():
        if name in READ_SIZES and settings.get("read_thresholds_enabled") != "true":
            continue
        if name == MESSAGE_SIZE and protocol < MESSAGES_SINCE:
            continue
        times = PAGE_FIRST if name in READ_SIZES else 1
        yield Limit(name, at, size, times, KEY_BYTES_MAX + OVERHEAD_BYTES)


def commit_log(settings: Settings, copies: int) -> Check:
    """Check that an acknowledged write is on a disk."""
    sync = settings.get("commitlog_sync")
    if sync is None:
        return Check("commit log", "warn", "not reported", DURABLE)
    if sync != "periodic":
        return Check("commit log", "pass", f"{sync}: on disk before it is acknowledged", DURABLE)
    period = settings.get("commitlog_sync_period", "its period")
    lost = f"periodic: machines that lose power at the same time lose the writes of {period}"
    return Check(
        "commit log", "pass" if copies > 1 else "warn", f"{lost}; batch or group waits for it", DURABLE
    )


def in_bytes(text: str) -> int | None:
    """Parse a size as Cassandra writes it; None: none, or no limit."""
    parts = re.fullmatch(r"(\d+)(B|KiB|MiB|GiB)", text)
    return int(parts[1]) * UNITS[parts[2]] if parts else None


# -- partitions ------------------------------------------------------------------------------------------


def _largest(space: CassandraNamespace) -> int | None:
    """Return the bytes of the largest partition of rows, of any namespace of the keyspace; None:
    not reported.
    """
    partition_bytes: list[int] = []
    session, keyspace = space.session, space.settings.keyspace
    for host in session.hosts():
        try:
            rows: list[Fields] = session.plain(LARGEST, host=host)
            of = [r for r in rows if (r["keyspace_name"], r["table_name"]) == (keyspace, "tidegate_rows")]
            partition_bytes += [int(row["mebibytes"]) * MIB for row in of]
        except (ConfigError, KeyError):
            estimates = session.plain(ESTIMATES, keyspace, host=host)
            partition_bytes += [
                r["mean_partition_size"] for r in estimates if r["table_name"] == "tidegate_rows"
            ]
    return max(partition_bytes, default=None)


def partitions(largest: int | None, groups: int | None) -> Check:
    """Check the largest partition: a key group of a table is one, and key groups are fixed for life."""
    if largest is None:
        return Check("partitions", "pass", "none yet, or their sizes are not reported", READ)
    shown = f"the largest takes {largest / MIB:,.0f} MiB"
    if largest <= PARTITION_WARN_BYTES:
        return Check("partitions", "pass", shown, READ)
    advice = "more key groups"
    if groups is not None:
        times = -(-largest // PARTITION_WANTED_BYTES)
        advice = f"{min(KEY_GROUPS_MAX, 1 << (groups * times - 1).bit_length()):,} key groups, not {groups:,}"
    finding = (
        f"{shown}, and above 100 MiB requests get slow; create the next namespace of that size with {advice}"
    )
    return Check("partitions", "warn", finding, READ)
