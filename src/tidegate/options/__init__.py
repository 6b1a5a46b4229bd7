"""All options, in one frozen and validated dataclass: checks, types and pages are made from its fields."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from tidegate.base.local_dir import LocalDirs, check_local_dir
from tidegate.base.names import DELETED, LOCAL, UNLISTED, check_name, did_you_mean
from tidegate.base.text import brief
from tidegate.errors import ConfigError
from tidegate.keys.groups import check_key_groups, check_parallelism, stride_for
from tidegate.options.durations import Duration, duration_us
from tidegate.options.fields import DAY_S, fixed, flag, of_kind, one_of, option, seconds, whole
from tidegate.options.sink_options import SinkOptions as SinkOptions
from tidegate.options.state_spill import StateSpill

KEY_BYTES_MAX = 32 * 1024
VALUE_BYTES_MAX = 16 * 1024 * 1024
KEEP_VERSIONS_MAX = 1_000
MAX_LAYERS_MAX = 10_000
"""A read of a key that no newer layer holds searches each: on Redis 1.1 us of the server a layer."""
LEASES_MAX, MOST_LEASES = 4_000, 8_000
"""``KEEP_VERSIONS_MAX``: versions are retired by the fold's facts, which cover this number of versions."""
DRIVER_ROWS_MAX = 100_000
"""More rows do not count as few: their number bounds their memory in the driver."""
SYNC, PIPELINED = "sync", "pipelined"
"""When a batch ends: once its version is visible, or once it is decided."""
IN_FLIGHT_MAX = 100
"""The most versions that may be decided and not yet visible."""
EXECUTORS = "executors"
"""The ``parallelism`` that follows the number of executors."""
PORT_MAX, LOCALHOST = 65_535, "127.0.0.1"
WAL_RETAIN_S_MAX = 3_660 * DAY_S
MIB = 1024 * 1024
WAL_RETAIN_APPLIES = 10
"""The log is kept for at least this number of apply deadlines: a process that still applies or
reads a version finds it there, and clocks may differ by that much.
"""


DELETED_TTL = "7 days"
"""How long the sequences of rows that ``apply_changes`` deleted are kept, unless ``ttl`` sets
another time.
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a sink or a command: for each its default, the text of its documentation, and its check.

    ``SinkOptions`` and the tables of docs/configuration.md are written from these fields by
    tools/option_tables.py. Durations are in seconds, sizes in bytes. A field of ``fixed`` is no option: a
    sink takes its default, and only tests and ``tidegate torture`` set another value.

    Raises: ConfigError: a value is of the wrong type or out of range.
    """

    # -- versions and readers --
    key_groups: int | None = option(
        None,
        "Units of routing, storage and rescaling, at most 32,768, fixed when the namespace is made",
        whole(1),
        default="the power of two above 10 x the tasks, at least 128",
    )
    keep_versions: int | None = option(
        None,
        "Number of readable versions, at most 1,000",
        whole(1, KEEP_VERSIONS_MAX),
        default="100; Redis 2",
    )
    max_lease_s: float = option(
        600.0, "How long a lease can hold one version, however often it is renewed", seconds()
    )
    # -- tasks --
    parallelism: int | Literal["executors"] | None = option(
        None,
        'Tasks that stage and apply: a number, or `"executors"` ([rescaling](writing.md#rescaling))',
        default="Spark's default",
    )
    small_batch_rows: int = option(
        50_000,
        "Largest batch that the driver stages and applies itself, in rows; at most 100,000; 0: none"
        " ([small batches](writing.md#small-batches))",
        whole(0, DRIVER_ROWS_MAX),
    )
    affinity: bool = option(
        value=True,
        text="Ask Spark to run tasks where their key groups' tasks ran last ([affinity](#affinity))",
        check=flag(),
    )
    # -- rows --
    value_bytes_max: int = option(
        VALUE_BYTES_MAX, "Longest value, in bytes; 16 MiB at most", whole(1, VALUE_BYTES_MAX)
    )
    on_bad_record: Literal["fail", "quarantine"] = option(
        "fail",
        "`fail` or `quarantine`: the treatment of a row that cannot be staged"
        " ([refused rows](writing.md#refused-rows))",
        one_of("fail", "quarantine"),
    )
    table_key_groups: Mapping[str, int] | None = option(
        None,
        'Key groups of tables that are made with fewer, as in `{"airports": 4}`; a divisor of `key_groups`,'
        " fixed when the table is made ([sizing](sizing.md#small-tables))",
        default="as many as the namespace",
    )
    ttl: Mapping[str, Duration | None] | None = option(
        None,
        'Time to live by table, as in `{"sessions": "7 days"}`, or of the one table'
        " ([rows that expire](writing.md#rows-that-expire))",
        default="rows do not expire",
    )
    function_deadline_s: float = option(
        60.0,
        "Limit of one call of a function, without the wait for its rows"
        " ([functions](writing.md#functions-of-update))",
        seconds(),
    )
    # -- commits --
    commit: Literal["sync", "pipelined"] = option(
        SYNC,
        "End a batch when its version is visible (`sync`) or decided (`pipelined`)"
        " ([pipelined commits](writing.md#pipelined-commits))",
        one_of(SYNC, PIPELINED),
    )
    apply_deadline_s: float = option(
        300.0, "How long apply and publish are tried again before StoreUnavailableError", seconds()
    )
    wait_replicas: int = option(
        0, "Redis: how many replicas of every server have a version before it becomes visible", whole(0)
    )
    wait_aof: bool = option(
        value=False, text="Redis 7.2 or Valkey: fsync a version before it becomes visible", check=flag()
    )
    wal_retain_s: float = option(
        86_400.0,
        "How long the log is kept beyond what is needed: the reach of `tidegate repair`",
        seconds(WAL_RETAIN_S_MAX),
    )
    # -- state on hosts --
    local_dir: LocalDirs = option(
        None,
        "A folder, or a list of folders, on each host's own disk ([the local folder](#the-local-folder))",
        default="the system's temporary folder",
    )
    state_cache_bytes: int = option(
        256 * MIB,
        "State that a host keeps locally, in bytes ([the cache of state](#the-cache-of-state)); 0: none",
        whole(0),
    )
    state_memory_bytes: int = option(
        128 * MIB,
        "The part of it that is in memory (`/dev/shm`), in bytes; the rest is in `local_dir`"
        " ([memory and disks](#memory-and-disks-of-a-host))",
        whole(0),
    )
    # -- safety and alarms --
    allow_unsafe: bool = option(
        value=False,
        text="Open despite failed checks of log or store; each is logged as a warning",
        check=flag(),
    )
    alarm_s: float = option(
        60.0,
        "Alarm when a commit has spent N seconds in one phase, and when another store has lagged the log"
        " for 15 N seconds ([alarms](monitoring.md#alarms))",
        seconds(),
    )
    metrics_port: int | str | None = option(
        None,
        "Port of 127.0.0.1 for the driver's metrics, 0 for any that is free"
        " ([metrics](monitoring.md#metrics))",
        default="none",
    )

    # -- no options: constants that tests set, each with the reason for its value --
    driver_stage_max_rows: int | None = fixed(None, whole(0, DRIVER_ROWS_MAX), optional=True)
    """None: ``small_batch_rows``."""
    driver_apply_max_changes: int | None = fixed(None, whole(0), optional=True)
    """None: ``small_batch_rows``. A batch that the driver staged may still be applied by a Spark job."""
    driver_stage_max_bytes: int = fixed(16 * MIB, whole(0))
    """Also few rows may be large: their bytes are in the driver's memory several times."""
    driver_apply_max_bytes: int = fixed(16 * MIB, whole(0))
    """The same bound for the rows that the driver applies."""
    frame_bytes: int = fixed(900_000, whole(1))
    """A frame is a message of the log: below the 1 MB that Kafka's brokers and clients take by default."""
    key_bytes_max: int = fixed(KEY_BYTES_MAX, whole(1, KEY_BYTES_MAX))
    """A key is in many records and messages as a whole; 32 KiB is above every key of the cases in tests."""
    summary_every: int = fixed(500, whole(1))
    """A Summary has the fold's state, and a log is trimmed up to one: 500 decisions are read in a moment."""
    heartbeat_s: float = fixed(5.0, seconds())
    """Commands that fence a writer take it for gone after 30 s without a sign of life."""
    max_layers: int | None = fixed(None, whole(1, MAX_LAYERS_MAX), optional=True)
    """None: ``keep_versions`` + 1,000, on Redis + 14: a read there may have to search each layer."""
    max_leases: int = fixed(LEASES_MAX, whole(1, MOST_LEASES))
    """A lease takes some hundred bytes of Redis, and each announcement passes over all of them."""
    commit_in_flight: int = fixed(2, whole(1, IN_FLIGHT_MAX))
    """One version is applied while the next is staged. More only give a restart more to complete."""
    decide_deadline_s: float | None = fixed(None, seconds(), optional=True)
    """None: a fifth of ``apply_deadline_s``. After it a fencing record settles the decision."""
    stuck_alarm_s: float | None = fixed(None, seconds(), optional=True)
    """None: ``alarm_s``."""
    behind_alarm_s: float | None = fixed(None, seconds(), optional=True)
    """None: 15 times ``alarm_s``: a store that is filled lags for minutes without a fault."""
    state_spill: StateSpill = fixed(StateSpill(), of_kind(StateSpill))
    """The bands of the spill monitor."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if check := field.metadata["check"]:
                check(field.name, getattr(self, field.name))
        if self.key_groups is not None:
            check_key_groups(self.key_groups)
        self._check_parallelism()
        self._check_kept()
        if self.local_dir is not None:
            check_local_dir(self.local_dir)
        self._check_ttl()
        self._check_table_key_groups()
        if self.metrics_port is not None:
            address_of(self.metrics_port)
        if self.wal_retain_s < WAL_RETAIN_APPLIES * self.apply_deadline_s:
            msg = (
                f"wal_retain_s is {brief(self.wal_retain_s)}; it must be at least {WAL_RETAIN_APPLIES} times"
                f" apply_deadline_s, which is {brief(self.apply_deadline_s)}"
            )
            raise ConfigError(msg)

    @property
    def stage_max_rows(self) -> int:
        """The rows of the largest batch that the driver stages itself."""
        return _first_set(self.driver_stage_max_rows, self.small_batch_rows)

    @property
    def apply_max_changes(self) -> int:
        """The changes of the largest version that the driver applies itself."""
        return _first_set(self.driver_apply_max_changes, self.small_batch_rows)

    @property
    def decide_s(self) -> float:
        """How long a decision is sent again, in seconds."""
        return _first_set(self.decide_deadline_s, self.apply_deadline_s / 5)

    @property
    def stuck_s(self) -> float:
        """The time in one phase after which a commit raises an alarm, in seconds."""
        return _first_set(self.stuck_alarm_s, self.alarm_s)

    @property
    def behind_s(self) -> float:
        """The lag of a store after which it raises an alarm, in seconds."""
        return _first_set(self.behind_alarm_s, 15 * self.alarm_s)

    def _check_kept(self) -> None:
        """Check that the log can be trimmed: its state must know every version that is kept,
        decided or visible.
        """
        most = KEEP_VERSIONS_MAX - self.commit_in_flight
        if self.commit == PIPELINED and (self.keep_versions or 0) > most:
            limit = f"with commit={PIPELINED!r} it must be at most {most}: else the log is never trimmed"
            raise ConfigError(f"keep_versions is {self.keep_versions}; {limit}")

    def _check_ttl(self) -> None:
        if self.ttl is not None and not isinstance(self.ttl, Mapping):
            msg = (
                f"ttl is {brief(self.ttl)}; it must be a duration per table, as in"
                f" ttl={{'sessions': '7 days'}}"
            )
            raise ConfigError(msg)
        for table in self.ttl or {}:
            check_name("table", table)
            if table.partition(".")[0] == LOCAL:
                msg = f"ttl of {table}: a local state does not expire; let its function drop old items"
                raise ConfigError(msg)
            if table.startswith(UNLISTED):
                msg = f"ttl of {table}: due times do not expire; leave it out"
                raise ConfigError(msg)
            self.ttl_us(table)

    def _check_table_key_groups(self) -> None:
        if self.table_key_groups is not None and not isinstance(self.table_key_groups, Mapping):
            msg = (
                f"table_key_groups is {brief(self.table_key_groups)}; it must be a number per table, as in"
                " table_key_groups={'airports': 4}"
            )
            raise ConfigError(msg)
        for table, key_groups in (self.table_key_groups or {}).items():
            if check_name("table", table).startswith("_"):
                msg = f"table_key_groups of {table}: a table of tidegate's own has the namespace's key groups"
                raise ConfigError(msg)
            whole(1)(f"table_key_groups of table {table}", key_groups)
            if self.key_groups is not None:
                stride_for(table, key_groups, self.key_groups)

    def ttl_us(self, table: str) -> int:
        """Return how long rows of a table live after they were written, in microseconds; 0: permanently."""
        ttl = None if self.ttl is None else self.ttl.get(table)
        if ttl is None and table.partition(".")[0] == DELETED:
            ttl = DELETED_TTL
        return 0 if ttl is None else duration_us(f"ttl of table {table}", ttl)

    def _check_parallelism(self) -> None:
        if self.parallelism is None or self.parallelism == EXECUTORS:
            return
        if isinstance(self.parallelism, str):
            msg = (
                f"parallelism is {brief(self.parallelism)}; it must be a whole number, 1 or more, or"
                f" {EXECUTORS!r}"
            )
            raise ConfigError(msg)
        whole(1)("parallelism", self.parallelism)
        if self.key_groups is not None:
            check_parallelism(self.parallelism, self.key_groups)

    @property
    def tasks(self) -> int | None:
        """The number of tasks that ``parallelism`` sets; None: Spark determines it, for each batch."""
        return self.parallelism if isinstance(self.parallelism, int) else None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Options:
        """Build options from keyword arguments. Raises: ConfigError that names an unknown one and
        the known ones, without the fields that are no options.
        """
        known = {field.name for field in dataclasses.fields(cls) if "text" in field.metadata}
        unknown = sorted(set(options) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            listed = f"the options are {', '.join(sorted(known))}"
            msg = f"unknown option {', '.join(unknown)}; {listed}{did_you_mean(unknown[0], known)}"
            raise ConfigError(msg)
        return cls(**options)


Number = TypeVar("Number", int, float)


def _first_set(value: Number | None, otherwise: Number) -> Number:
    return otherwise if value is None else value


def address_of(metrics_port: int | str) -> tuple[str, int]:
    """Return host and port of a ``metrics_port``: a number is a port of this host alone, 0 any that is free.

    >>> address_of(9464), address_of("0.0.0.0:9464")
    (('127.0.0.1', 9464), ('0.0.0.0', 9464))
    """
    is_number = isinstance(metrics_port, int) and 0 <= metrics_port <= PORT_MAX
    text = str(metrics_port) if is_number or isinstance(metrics_port, str) else ""
    host, colon, port = text.rpartition(":")
    if isinstance(metrics_port, bool) or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > PORT_MAX:
        msg = (
            f"metrics_port is {brief(metrics_port)}; it must be a port, 0 to {PORT_MAX}, or text such as"
            " '0.0.0.0:9464' to listen for other machines"
        )
        raise ConfigError(msg)
    return (host.strip("[]") if colon and host else LOCALHOST), int(port)
