"""Checks that the servers of a store in Redis are set up as its guarantees require.

On open, each primary gets one round trip here, without CONFIG, and one in ``upkeep/limits.py``. `tidegate
doctor` checks more. Managed services bar some commands: a check without its data is a warning with
that reason.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tidegate.base.checks import Check, Outcome, by_server, number_of
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.redis.client.functions import call_head
from tidegate.sinks.redis.client.replies import pack
from tidegate.sinks.redis.client.servers import Node
from tidegate.sinks.redis.client.settings import RedisSettings
from tidegate.sinks.redis.keys import SLOTS, changes_key
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.redis.seals import headers

STEPS = "a version is read and made visible in one step (I1, I7)"
KEPT = "visible versions stay (I3, I10)"
DURABLE = "durable before visible (I3)"
AWAY = "readers and the stream continue when a server is lost"
APPLIED = "decided versions can be applied (I4)"
PRIVATE = "password and rows go to this server alone"

VERSION_MIN, WAITAOF_MIN = (7, 0), (7, 2)
LAG_WARN_S = 10
REPAIR = "`tidegate repair` puts back what the log still holds (wal_retain_s)"
EVAL_BARRED = (
    "this user may use neither Functions nor EVAL: nothing can be read or written; allow one of them"
)

Fields = Mapping[str, str]


class ServerInfo(NamedTuple):
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
    servers = _ask_all(space, thorough=thorough)
    looks: list[Callable[[ServerInfo], Check | None]] = [
        _version,
        lambda server: _functions(server, enabled=settings.functions),
        _eviction,
        lambda server: _persistence(server, thorough=thorough),
        lambda server: _replicas(server, required=settings.kind != "one"),
        _slots if settings.kind == "cluster" else _no_cluster,
    ]
    return [*_tls(settings), *(check for look in looks for check in _by_server(servers, look))]


def _tls(settings: RedisSettings) -> list[Check]:
    """Warn where TLS is on but verifies nothing."""
    if not settings.trusts_any_server:
        return []
    unsafe = (
        "unsafe: ssl_check_hostname or ssl_cert_reqs switches the check of the server's certificate off, so"
        " that another server may take the password and the rows; leave both out, and give the authority that"
        " signed it as ssl_ca_certs"
    )
    return [Check("TLS", "warn", unsafe, PRIVATE)]


def fsync(space: RedisNamespace) -> list[Check]:
    """Check that every primary supports WAITAOF; empty if so. A server that hides its version passes."""
    replies = ask_each(space, (b"INFO",))
    servers = [_server_info(address, info, None, None, None) for address, (info,) in replies]
    return list(_by_server(servers, _fsync))


def _fsync(server: ServerInfo) -> Check | None:
    numbers = _numbers(server.info.get("redis_version", ""))
    if numbers and numbers < WAITAOF_MIN:
        old = f"Redis {server.info['redis_version']}; wait_aof needs 7.2 or later, or Valkey: leave it out"
        return Check("fsync", "fail", old, DURABLE, may_be_allowed=False)
    if server.info.get("aof_enabled") == "0":
        off = "wait_aof needs appendonly yes: set it, or leave wait_aof out"
        return Check("fsync", "fail", off, DURABLE, may_be_allowed=False)
    return None


# -- sending --------------------------------------------------------------------------------------


def ask_each(space: RedisNamespace, *commands: tuple[bytes, ...]) -> list[tuple[str, list[Any]]]:
    """Return every primary's address and replies. Raises: StoreUnavailableError: one did not answer
    in time.
    """
    contents = [pack(command) for command in commands]
    return list(space.calls.on_each_primary(lambda node: node.ask(contents)).items())


def fields(reply: Any) -> dict[str, str]:
    """Parse the ``name:value`` lines of INFO and similar replies; empty for a refusal."""
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
    return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)


def _ask_all(space: RedisNamespace, *, thorough: bool) -> list[ServerInfo]:
    by_function, by_eval = (call_head("present", functions=each)[:2] for each in (True, False))
    commands: list[tuple[bytes, ...]] = [
        (b"INFO",),
        (*by_function, b"0"),
        (*by_eval, b"0", b"present"),
        (b"CLUSTER", b"INFO"),
    ]
    settings = (b"appendfsync", b"save") if thorough else ()
    commands += [(b"CONFIG", b"GET", name) for name in settings]
    return [_server_info(address, *replies) for address, replies in ask_each(space, *commands)]


def _server_info(
    address: str, info: Any, by_function: Any, by_eval: Any, cluster: Any, *settings: Any
) -> ServerInfo:
    known = [reply for reply in settings if isinstance(reply, list) and len(reply) == 2]
    config = {name.decode(): value.decode() for name, value in known}
    barred = len(known) < len(settings)
    return ServerInfo(address, fields(info), fields(cluster), config, barred, by_function, by_eval)


def _by_server(servers: Iterable[ServerInfo], look: Callable[[ServerInfo], Check | None]) -> Iterator[Check]:
    checks = ((server.address, look(server)) for server in servers)
    return by_server((address, check) for address, check in checks if check is not None)


# -- evaluation of the replies ----------------------------------------------------------------------


def _untold(check: str, barred: str, promise: str) -> Check:
    return Check(check, "warn", f"not known: {barred} is barred", promise)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _version(server: ServerInfo) -> Check:
    version, valkey = server.info.get("redis_version"), server.info.get("valkey_version")
    if version is None:
        return _untold("version", "INFO server", STEPS)
    numbers = _numbers(version)
    named = f"Valkey {valkey}, as Redis {version}" if valkey else f"Redis {version}"
    if numbers < VERSION_MIN:
        old = f"{named}: 7.0 or later is needed, or Valkey"
        return Check("version", "fail", old, STEPS, may_be_allowed=False)
    return Check("version", "pass", f"{named}{'; wait_aof needs 7.2' * (numbers < WAITAOF_MIN)}", STEPS)


def _functions(server: ServerInfo, *, enabled: bool) -> Check:
    if enabled and _may(server.by_function):
        return Check("functions", "pass", "Functions", STEPS)
    if _may(server.by_eval):
        why = "are barred" if enabled else "are switched off by an option"
        return Check("functions", "pass", f"EVAL: Functions {why}", STEPS)
    return Check("functions", "fail", EVAL_BARRED, STEPS, may_be_allowed=False)


def _may(reply: Any) -> bool:
    """Return whether a call is allowed; a library that is not loaded yet is no refusal."""
    said = str(reply).lower() if isinstance(reply, Exception) else ""
    return not said or "not found" in said or "no matching script" in said


def _eviction(server: ServerInfo) -> Check:
    policy, limit = server.info.get("maxmemory_policy"), number_of(server.info, "maxmemory")
    if policy is None or limit is None:
        return _untold("eviction", "INFO memory", KEPT)
    if policy == "noeviction":
        return Check("eviction", "pass", policy, KEPT)
    outcome: Outcome
    if policy.startswith("volatile-"):
        outcome = "warn" if limit else "pass"
        finding = "tidegate's keys have no time to live, so none of them is evicted today; set noeviction"
    else:
        outcome = "fail" if limit else "warn"
        finding = "rows and whole versions vanish when memory is full; set noeviction"
    return Check("eviction", outcome, f"maxmemory-policy {policy}: {finding}", KEPT)


def evicts(info: Fields) -> str:
    """Return what the server's policy does to rows, with the way out; empty: it drops none of them."""
    policy, limit = info.get("maxmemory_policy", ""), number_of(info, "maxmemory")
    evicted = number_of(info, "evicted_keys") or 0
    if not policy.startswith("allkeys-") or not (limit or evicted):
        return ""
    so_far = f", {evicted:,} keys so far" if evicted else ""
    return (
        f"maxmemory-policy {policy} drops rows when memory is full{so_far}: set maxmemory-policy noeviction,"
        " and raise maxmemory where it is full"
    )


def may_evict(space: RedisNamespace) -> str | None:
    """Return the primaries that may evict rows, with the way out; None where one bars INFO."""
    commands = (b"INFO", b"memory"), (b"INFO", b"stats")
    primaries = []
    for address, replies in ask_each(space, *commands):
        info = {name: value for reply in replies for name, value in fields(reply).items()}
        if "maxmemory_policy" not in info:
            return None
        if why := evicts(info):
            primaries.append(f"{address}: {why}")
    return "; ".join(primaries)


def _persistence(server: ServerInfo, *, thorough: bool) -> Check:
    appends = server.info.get("aof_enabled")
    if appends is None:
        return _untold("persistence", "INFO persistence", DURABLE)
    if appends == "1":
        return _appending(server)
    if not thorough:
        lost = "appendonly is off: a restart loses the writes after the last snapshot, if there is one"
    elif "save" not in server.config:
        lost = "appendonly is off; whether snapshots are saved is not known: CONFIG is barred"
    elif server.config["save"]:
        lost = (
            f"snapshots alone (save {server.config['save']}): a restart loses the writes after the last one"
        )
    else:
        lost = "neither appendonly nor save: a restart loses everything"
    return Check("persistence", "warn", f"{lost}; {REPAIR}", DURABLE)


def _appending(server: ServerInfo) -> Check:
    status = server.info.get("aof_last_write_status", "ok")
    if status != "ok":
        failing = f"appendonly, but its last write failed ({status}): check the server's disk"
        return Check("persistence", "warn", failing, DURABLE)
    if server.config_barred:
        untold = "appendonly; appendfsync is not known: CONFIG is barred"
        return Check("persistence", "warn", untold, DURABLE)
    fsync = server.config.get("appendfsync")
    if fsync in (None, "always"):
        return Check("persistence", "pass", f"appendonly{', appendfsync always' * bool(fsync)}", DURABLE)
    outcome: Outcome = "pass" if fsync == "everysec" else "warn"
    lost = "its last second of writes" if fsync == "everysec" else "the writes not flushed yet"
    finding = f"appendonly, appendfsync {fsync}: a machine that fails loses {lost}; {REPAIR}"
    return Check("persistence", outcome, finding, DURABLE)


def _replicas(server: ServerInfo, *, required: bool) -> Check:
    count = number_of(server.info, "connected_slaves")
    if count is None:
        return _untold("replicas", "INFO replication", AWAY)
    if server.info.get("role") != "master":
        return Check(
            "replicas", "warn", "a replica answered for its primary: a failover is in progress", AWAY
        )
    if count == 0:
        none = "none: readers and the stream wait while this server is away"
        return Check("replicas", "warn" if required else "pass", none, AWAY)
    behind = list(_behind(server.info))
    if behind:
        late = f"{count}; {', '.join(behind)}: if promoted, it lacks the writes since then; {REPAIR}"
        return Check("replicas", "warn", late, AWAY)
    return Check("replicas", "pass", f"{count}, none lags", AWAY)


def _behind(info: Fields) -> Iterator[str]:
    for name, value in info.items():
        if re.fullmatch(r"slave\d+", name):
            of = dict(part.split("=", 1) for part in value.split(",") if "=" in part)
            lag_s = number_of(of, "lag")
            if of.get("state") != "online" or lag_s is None or lag_s > LAG_WARN_S:
                yield f"{of.get('ip')}:{of.get('port')} is {of.get('state')} and lags by {lag_s} s"


def _slots(server: ServerInfo) -> Check:
    assigned, served = (number_of(server.cluster, f"cluster_slots_{name}") for name in ("assigned", "ok"))
    if assigned is None:
        return _untold("cluster", "CLUSTER INFO", APPLIED)
    if assigned < SLOTS:
        holes = f"{SLOTS - assigned:,} of {SLOTS:,} slots have no server: their key groups cannot store rows"
        finding = f"{holes}; see `redis-cli --cluster check HOST:PORT`"
        return Check("cluster", "fail", finding, APPLIED, may_be_allowed=False)
    state = server.cluster.get("cluster_state")
    if state != "ok" or served != SLOTS:
        down = f"state {state}, {served} of {SLOTS:,} slots served: a server is down or fails over"
        return Check("cluster", "warn", down, APPLIED)
    return Check("cluster", "pass", "every slot has its server", APPLIED)


def _no_cluster(server: ServerInfo) -> Check | None:
    if server.info.get("cluster_enabled") != "1":
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
    servers = []
    for address, (reply,) in ask_each(space, (b"INFO", b"memory")):
        memory = _memory(address, fields(reply))
        if memory is None:
            return _unknown_room(f"{address}: not known: INFO memory is barred")
        servers.append(memory)
    fullest = min(servers)
    mib = fullest.used / 1024**2, fullest.limit / 1024**2
    has = f"{fullest.address}: {mib[0]:,.1f} of {mib[1]:,.1f} MiB used ({fullest.by})"
    rows = max((sum(entry.changes.values()) for entry in entries), default=0)
    if rows == 0:
        return Check("memory", "pass", f"{has}; no version yet to measure", APPLIED)
    per_row = _bytes_per_row(space)
    if per_row is None:
        return _unknown_room(f"{has}; the size of rows is not known: MEMORY is barred, or all are merged")
    needed = per_row * rows / len(servers)
    outcome: Outcome = "warn" if fullest.free < WARN_BELOW * needed else "pass"
    fits = "may not fit: raise maxmemory or free some" if outcome == "warn" else "fits"
    takes = f"{rows:,} changes take about {needed / 1024**2:,.1f} MiB there"
    return Check("memory", outcome, f"{has}; {takes}: the next version {fits}", APPLIED)


def used_shares(space: RedisNamespace) -> dict[str, float]:
    """Return the used share of each primary's memory; empty where one bars INFO."""
    servers = [_memory(address, fields(reply)) for address, (reply,) in ask_each(space, (b"INFO", b"memory"))]
    shares = {memory.address: memory.used / memory.limit for memory in servers if memory is not None}
    return shares if len(shares) == len(servers) else {}


def _memory(address: str, info: dict[str, str]) -> Memory | None:
    used, limit = number_of(info, "used_memory"), number_of(info, "maxmemory")
    most = limit or number_of(info, "total_system_memory")
    if used is None or not most:
        return None
    by = "maxmemory" if limit else "the machine's memory: set maxmemory"
    return Memory(most - used, address, used, most, by)


def _bytes_per_row(space: RedisNamespace) -> float | None:
    """Estimate the bytes per row from a sample of unmerged changes; None: nothing can be measured."""
    of_node: dict[Node, list[bytes]] = defaultdict(list)
    for key in itertools.islice(_layers(space), SAMPLES):
        commands = of_node[space.servers.node_of(key)]
        commands += [pack((b"MEMORY", b"USAGE", key)), pack((b"HLEN", key))]
    taken = rows = 0
    for node, commands in of_node.items():
        replies = node.ask(commands)
        for usage, length in zip(replies[::2], replies[1::2], strict=True):
            if isinstance(usage, int) and isinstance(length, int):
                taken, rows = taken + usage, rows + length
    return taken / rows if rows else None


def _layers(space: RedisNamespace) -> Iterator[bytes]:
    for group, header in headers(space).items():
        for table, versions in header.layers.items():
            for version in versions:
                yield changes_key(space.namespace, group, table, version, space.uuid)


def _unknown_room(finding: str) -> Check:
    return Check("memory", "warn", finding, APPLIED)
