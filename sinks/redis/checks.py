"""Checks that the servers of a store in Redis are set up as its guarantees require.

On open, each primary gets one round trip, without CONFIG. `tidegate doctor` checks more. Managed
services bar some commands: a check without its data is a warning with that reason.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import redis

from tidegate.base.checks import Check, Outcome
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.redis.client.functions import call_head
from tidegate.sinks.redis.client.replies import LOST, RetryLater, pack
from tidegate.sinks.redis.client.servers import Node
from tidegate.sinks.redis.client.settings import RedisSettings
from tidegate.sinks.redis.keys import SLOTS, changes_key
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.redis.seals import headers

STEPS = "a version is read and made visible in one step (I1, I7)"
KEPT = "what was made visible stays (I3, I10)"
DURABLE = "durable before visible (I3)"
AWAY = "readers and the stream go on when a server is lost"
APPLIED = "what is decided can be applied (I4)"
PRIVATE = "password and rows go to this server alone"

VERSION_MIN, WAITAOF_MIN = (7, 0), (7, 2)
LAG_WARN_S = 10
REPAIR = "`tidegate repair` puts back what the log still holds (wal_retain_s)"
EVAL_BARRED = (
    "this user may use neither Functions nor EVAL: nothing can be read or written; allow one of them"
)

Fields = Mapping[str, str]


class Told(NamedTuple):
    """One primary's replies about itself, or the reasons for those it bars."""

    address: str
    info: Fields
    cluster: Fields
    config: Fields
    config_barred: bool
    by_function: Any
    by_eval: Any


def set_up(space: RedisNamespace, *, thorough: bool) -> list[Check]:
    """Return one result per check; one for all servers if they are alike. Writes nothing."""
    settings = space.servers.settings
    told = _ask_all(space, thorough=thorough)
    looks: list[Callable[[Told], Check | None]] = [
        _version,
        lambda one: _functions(one, wanted=settings.functions),
        _eviction,
        lambda one: _persistence(one, thorough=thorough),
        lambda one: _replicas(one, wanted=settings.kind != "one"),
        _slots if settings.kind == "cluster" else _no_cluster,
    ]
    return [*_tls(settings), *(check for look in looks for check in _of_each(told, look))]


def _tls(settings: RedisSettings) -> list[Check]:
    """Warn where TLS is on but verifies nothing."""
    if not settings.trusts_any_server:
        return []
    found = (
        "unsafe: ssl_check_hostname or ssl_cert_reqs switches the check of the server's certificate off, so"
        " that another server may take the password and the rows; leave both out, and give the authority that"
        " signed it as ssl_ca_certs"
    )
    return [Check("TLS", "warn", found, PRIVATE)]


def fsync(space: RedisNamespace) -> list[Check]:
    """Check that every primary supports WAITAOF; empty if so. A server that hides its version passes."""
    told = [_told(address, *replies, None, None, None) for address, replies in ask_each(space, (b"INFO",))]
    return list(_of_each(told, _fsync))


def _fsync(told: Told) -> Check | None:
    numbers = _numbers(told.info.get("redis_version", ""))
    if numbers and numbers < WAITAOF_MIN:
        old = f"Redis {told.info['redis_version']}; wait_aof needs 7.2 or later, or Valkey: leave it out"
        return Check("fsync", "fail", old, DURABLE, may_be_allowed=False)
    if told.info.get("aof_enabled") == "0":
        off = "wait_aof needs appendonly yes: set it, or leave wait_aof out"
        return Check("fsync", "fail", off, DURABLE, may_be_allowed=False)
    return None


# -- sending --------------------------------------------------------------------------------------


def ask(node: Node, *commands: tuple[bytes, ...]) -> list[Any]:
    """Return the replies to some commands in one round trip; a refusal replaces its reply."""
    replies: list[Any] = []
    connection, _ = node.take()
    try:
        connection.send_packed_command([pack(command) for command in commands])
        for _ in commands:
            try:
                replies.append(connection.read_response(disable_decoding=True))
            except redis.ResponseError as refusal:
                replies.append(refusal)
    except BaseException:
        connection.disconnect()
        node.close()
        raise
    node.give(connection)
    return replies


def ask_each(space: RedisNamespace, *commands: tuple[bytes, ...]) -> list[tuple[str, list[Any]]]:
    """Return every primary's address and replies. Raises: StoreUnavailableError, one did not answer
    in time.
    """
    for attempt in space.calls.retrying():
        with attempt:
            try:
                found = [(str(node.address), ask(node, *commands)) for node in space.servers.primaries()]
            except LOST as error:
                space.servers.refresh()
                raise RetryLater(str(error) or type(error).__name__) from error
    return found


def fields(reply: Any) -> dict[str, str]:
    """Parse the ``name:value`` lines of INFO and similar replies; empty for a refusal."""
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
    return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)


def number(told: Fields, name: str) -> int | None:
    """Return a whole number among the fields; None when it is missing."""
    found = re.fullmatch(r"-?\d+", told.get(name, ""))
    return int(found[0]) if found else None


def _ask_all(space: RedisNamespace, *, thorough: bool) -> list[Told]:
    by_function, by_eval = (call_head("present", functions=each)[:2] for each in (True, False))
    commands: list[tuple[bytes, ...]] = [
        (b"INFO",),
        (*by_function, b"0"),
        (*by_eval, b"0", b"present"),
        (b"CLUSTER", b"INFO"),
    ]
    settings = (b"appendfsync", b"save") if thorough else ()
    commands += [(b"CONFIG", b"GET", name) for name in settings]
    return [_told(address, *replies) for address, replies in ask_each(space, *commands)]


def _told(address: str, info: Any, by_function: Any, by_eval: Any, cluster: Any, *settings: Any) -> Told:
    known = [reply for reply in settings if isinstance(reply, list) and len(reply) == 2]
    config = {name.decode(): value.decode() for name, value in known}
    barred = len(known) < len(settings)
    return Told(address, fields(info), fields(cluster), config, barred, by_function, by_eval)


def _of_each(told: Iterable[Told], look: Callable[[Told], Check | None]) -> Iterator[Check]:
    """Yield the check of every server: once if all are alike, else with the servers' addresses."""
    alike: dict[Check, list[str]] = defaultdict(list)
    for one in told:
        check = look(one)
        if check is not None:
            alike[check].append(one.address)
    for check, addresses in alike.items():
        yield check if len(alike) == 1 else check._replace(found=f"{', '.join(addresses)}: {check.found}")


# -- evaluation of the replies ----------------------------------------------------------------------


def _untold(check: str, barred: str, promise: str) -> Check:
    return Check(check, "warn", f"cannot be told: {barred} is barred", promise)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _version(told: Told) -> Check:
    version, valkey = told.info.get("redis_version"), told.info.get("valkey_version")
    if version is None:
        return _untold("version", "INFO server", STEPS)
    numbers = _numbers(version)
    named = f"Valkey {valkey}, as Redis {version}" if valkey else f"Redis {version}"
    if numbers < VERSION_MIN:
        old = f"{named}: 7.0 or later is needed, or Valkey"
        return Check("version", "fail", old, STEPS, may_be_allowed=False)
    return Check("version", "pass", f"{named}{'; wait_aof needs 7.2' * (numbers < WAITAOF_MIN)}", STEPS)


def _functions(told: Told, *, wanted: bool) -> Check:
    if wanted and _may(told.by_function):
        return Check("functions", "pass", "Functions", STEPS)
    if _may(told.by_eval):
        why = "are barred" if wanted else "are switched off by an option"
        return Check("functions", "pass", f"EVAL: Functions {why}", STEPS)
    return Check("functions", "fail", EVAL_BARRED, STEPS, may_be_allowed=False)


def _may(reply: Any) -> bool:
    """Return whether a call is allowed; a library that is not loaded yet is no refusal."""
    said = str(reply).lower() if isinstance(reply, Exception) else ""
    return not said or "not found" in said or "no matching script" in said


def _eviction(told: Told) -> Check:
    policy, limit = told.info.get("maxmemory_policy"), number(told.info, "maxmemory")
    if policy is None or limit is None:
        return _untold("eviction", "INFO memory", KEPT)
    if policy == "noeviction":
        return Check("eviction", "pass", policy, KEPT)
    outcome: Outcome
    if policy.startswith("volatile-"):
        outcome = "warn" if limit else "pass"
        found = "tidegate's keys have no time to live, so none of them goes today; set noeviction"
    else:
        outcome = "fail" if limit else "warn"
        found = "rows and whole versions vanish when memory is full; set noeviction"
    return Check("eviction", outcome, f"maxmemory-policy {policy}: {found}", KEPT)


def _persistence(told: Told, *, thorough: bool) -> Check:
    appends = told.info.get("aof_enabled")
    if appends is None:
        return _untold("persistence", "INFO persistence", DURABLE)
    if appends == "1":
        return _appending(told)
    if not thorough:
        lost = "appendonly is off: what came after the last snapshot, if any, goes with a restart"
    elif "save" not in told.config:
        lost = "appendonly is off; whether snapshots are saved cannot be told: CONFIG is barred"
    elif told.config["save"]:
        lost = (
            f"snapshots alone (save {told.config['save']}): what came after the last one goes with a restart"
        )
    else:
        lost = "neither appendonly nor save: a restart comes back empty"
    return Check("persistence", "warn", f"{lost}; {REPAIR}", DURABLE)


def _appending(told: Told) -> Check:
    status = told.info.get("aof_last_write_status", "ok")
    if status != "ok":
        failing = f"appendonly, but its last write failed ({status}): look at the server's disk"
        return Check("persistence", "warn", failing, DURABLE)
    if told.config_barred:
        untold = "appendonly; appendfsync cannot be told: CONFIG is barred"
        return Check("persistence", "warn", untold, DURABLE)
    fsync = told.config.get("appendfsync")
    if fsync in (None, "always"):
        return Check("persistence", "pass", f"appendonly{', appendfsync always' * bool(fsync)}", DURABLE)
    outcome: Outcome = "pass" if fsync == "everysec" else "warn"
    lost = "its last second" if fsync == "everysec" else "what the system had not written yet"
    found = f"appendonly, appendfsync {fsync}: a machine that fails takes {lost} along; {REPAIR}"
    return Check("persistence", outcome, found, DURABLE)


def _replicas(told: Told, *, wanted: bool) -> Check:
    count = number(told.info, "connected_slaves")
    if count is None:
        return _untold("replicas", "INFO replication", AWAY)
    if told.info.get("role") != "master":
        return Check("replicas", "warn", "a replica answered for its primary: a failover is under way", AWAY)
    if count == 0:
        none = "none: readers and the stream wait while this server is away"
        return Check("replicas", "warn" if wanted else "pass", none, AWAY)
    behind = list(_behind(told.info))
    if behind:
        late = f"{count}; {', '.join(behind)}: if promoted, it lacks what was written since; {REPAIR}"
        return Check("replicas", "warn", late, AWAY)
    return Check("replicas", "pass", f"{count}, none lags", AWAY)


def _behind(info: Fields) -> Iterator[str]:
    for name, value in info.items():
        if re.fullmatch(r"slave\d+", name):
            of = dict(part.split("=", 1) for part in value.split(",") if "=" in part)
            lag_s = number(of, "lag")
            if of.get("state") != "online" or lag_s is None or lag_s > LAG_WARN_S:
                yield f"{of.get('ip')}:{of.get('port')} is {of.get('state')} and lags by {lag_s} s"


def _slots(told: Told) -> Check:
    assigned, served = (number(told.cluster, f"cluster_slots_{name}") for name in ("assigned", "ok"))
    if assigned is None:
        return _untold("cluster", "CLUSTER INFO", APPLIED)
    if assigned < SLOTS:
        holes = f"{SLOTS - assigned:,} of {SLOTS:,} slots have no server: their key groups can hold nothing"
        found = f"{holes}; see `redis-cli --cluster check`"
        return Check("cluster", "fail", found, APPLIED, may_be_allowed=False)
    state = told.cluster.get("cluster_state")
    if state != "ok" or served != SLOTS:
        down = (
            f"state {state}, {served} of {SLOTS:,} slots served: servers are down, or a failover is under way"
        )
        return Check("cluster", "warn", down, APPLIED)
    return Check("cluster", "pass", "every slot has its server", APPLIED)


def _no_cluster(told: Told) -> Check | None:
    if told.info.get("cluster_enabled") != "1":
        return None
    wrong = "this server is part of a Cluster and holds some of the keys only: write redis+cluster://"
    return Check("cluster", "fail", wrong, APPLIED, may_be_allowed=False)


# -- memory headroom for the next version, for `tidegate doctor` -------------------------------------------

LOOKED_AT = 20
"""The next version is assumed to be as large as the largest of this number of versions."""
SAMPLES = 64
"""The number of hashes of changes that are measured."""
WARN_BELOW = 2
"""The margin: rows need not spread evenly over servers, and a merge holds some of them twice for a moment."""


class Memory(NamedTuple):
    """The memory of one server, in bytes."""

    free: int
    address: str
    used: int
    limit: int
    by: str


def room(space: RedisNamespace, entries: Sequence[CatalogEntry]) -> Check:
    """Forecast the headroom of the fullest server. ``entries``: the last visible versions. Writes nothing."""
    found = []
    for address, (reply,) in ask_each(space, (b"INFO", b"memory")):
        memory = _memory(address, fields(reply))
        if memory is None:
            return _unknown_room(f"{address}: cannot be told: INFO memory is barred")
        found.append(memory)
    fullest = min(found)
    mib = fullest.used / 1024**2, fullest.limit / 1024**2
    has = f"{fullest.address}: {mib[0]:,.1f} of {mib[1]:,.1f} MiB used ({fullest.by})"
    rows = max((sum(entry.changes.values()) for entry in entries), default=0)
    if rows == 0:
        return Check("memory", "pass", f"{has}; no version yet to measure", APPLIED)
    per_row = _bytes_per_row(space)
    if per_row is None:
        return _unknown_room(f"{has}; how large rows are cannot be told: MEMORY is barred, or all are merged")
    needed = per_row * rows / len(found)
    outcome: Outcome = "warn" if fullest.free < WARN_BELOW * needed else "pass"
    fits = "may not fit: raise maxmemory or free some" if outcome == "warn" else "fits"
    takes = f"{rows:,} changes take about {needed / 1024**2:,.1f} MiB there"
    return Check("memory", outcome, f"{has}; {takes}: the next version {fits}", APPLIED)


def _memory(address: str, told: dict[str, str]) -> Memory | None:
    used, limit = number(told, "used_memory"), number(told, "maxmemory")
    most = limit or number(told, "total_system_memory")
    if used is None or not most:
        return None
    by = "maxmemory" if limit else "all that the machine has: set maxmemory"
    return Memory(most - used, address, used, most, by)


def _bytes_per_row(space: RedisNamespace) -> float | None:
    """Estimate the bytes per row from a sample of unmerged changes; None: nothing can be measured."""
    of_node: dict[Node, list[tuple[bytes, ...]]] = defaultdict(list)
    for key in itertools.islice(_layers(space), SAMPLES):
        commands = of_node[space.servers.node_of(key)]
        commands += [(b"MEMORY", b"USAGE", key), (b"HLEN", key)]
    taken = rows = 0
    for node, commands in of_node.items():
        replies = ask(node, *commands)
        for usage, length in zip(replies[::2], replies[1::2], strict=True):
            if isinstance(usage, int) and isinstance(length, int):
                taken, rows = taken + usage, rows + length
    return taken / rows if rows else None


def _layers(space: RedisNamespace) -> Iterator[bytes]:
    for group, header in headers(space).items():
        for table, versions in header.layers.items():
            for version in versions:
                yield changes_key(space.namespace, group, table, version, space.uuid)


def _unknown_room(found: str) -> Check:
    return Check("memory", "warn", found, APPLIED)
