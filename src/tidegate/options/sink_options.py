"""The options of ``VersionedSink`` as keywords: tools/option_tables.py writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

from tidegate.base.local_dir import LocalDirs
from tidegate.options.durations import Duration


class SinkOptions(TypedDict, total=False):
    """The options of ``VersionedSink`` as keywords, for type checkers and editors."""

    key_groups: int | None
    """Units of routing, storage and rescaling, at most 32,768, fixed when the namespace is made. Default:
    the power of two above 10 x the tasks, at least 128.
    """
    keep_versions: int | None
    """Number of readable versions, at most 1,000. Default: 100; Redis 2."""
    max_lease_s: float
    """How long a lease can hold one version, however often it is renewed. Default: 600 s."""
    parallelism: int | Literal["executors"] | None
    """Tasks that stage and apply: a number, or "executors". Default: Spark's default."""
    small_batch_rows: int
    """Largest batch that the driver stages and applies itself, in rows; at most 100,000; 0: none.
    Default: 50,000.
    """
    affinity: bool
    """Ask Spark to run tasks where their key groups' tasks ran last. Default: True."""
    value_bytes_max: int
    """Longest value, in bytes; 16 MiB at most. Default: 16 MiB."""
    on_bad_record: Literal["fail", "quarantine"]
    """fail or quarantine: the treatment of a row that cannot be staged. Default: fail."""
    table_key_groups: Mapping[str, int] | None
    """Key groups of tables that are made with fewer, as in {"airports": 4}; a divisor of key_groups,
    fixed when the table is made. Default: as many as the namespace.
    """
    ttl: Mapping[str, Duration | None] | Duration | None
    """Time to live by table, as in {"sessions": "7 days"}, or of the one table. Default: rows do not
    expire.
    """
    function_deadline_s: float
    """Limit of one call of a function, without the wait for its rows. Default: 60 s."""
    commit: Literal["sync", "pipelined"]
    """End a batch when its version is visible (sync) or decided (pipelined). Default: sync."""
    apply_deadline_s: float
    """How long apply and publish are tried again before StoreUnavailableError. Default: 300 s."""
    wait_replicas: int
    """Redis: how many replicas of every server have a version before it becomes visible. Default: 0."""
    wait_aof: bool
    """Redis 7.2 or Valkey: fsync a version before it becomes visible. Default: False."""
    wal_retain_s: float
    """How long the log is kept beyond what is needed: the reach of tidegate repair. Default: 86,400 s."""
    local_dir: LocalDirs
    """A folder, or a list of folders, on each host's own disk. Default: the system's temporary folder."""
    state_cache_bytes: int
    """State that a host keeps locally, in bytes; 0: none. Default: 256 MiB."""
    state_memory_bytes: int
    """The part of it that is in memory (/dev/shm), in bytes; the rest is in local_dir. Default: 128 MiB."""
    allow_unsafe: bool
    """Open despite failed checks of log or store; each is logged as a warning. Default: False."""
    alarm_s: float
    """Alarm when a commit has spent N seconds in one phase, and when another store has lagged the log for
    15 N seconds. Default: 60 s.
    """
    metrics_port: int | str | None
    """Port of 127.0.0.1 for the driver's metrics, 0 for any that is free. Default: none."""
