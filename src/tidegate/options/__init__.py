"""All options, in one frozen and validated dataclass; ``state_spill.py`` has those of the spill monitor."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from tidegate.base.durations import Duration, duration_us
from tidegate.base.local_dir import LocalDirs, check_local_dir
from tidegate.base.names import DELETED, LOCAL, UNLISTED, check_name, did_you_mean
from tidegate.base.urls import redact, scheme_of
from tidegate.errors import ConfigError
from tidegate.keys.groups import check_key_groups, check_parallelism, stride_for
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
DAY_S = 86_400
PORT_MAX, LOCALHOST = 65_535, "127.0.0.1"
WAL_RETAIN_S_MAX = 3_660 * DAY_S
WAL_RETAIN_APPLIES = 10
"""The log is kept for at least this number of apply deadlines: a process that still applies or
reads a version finds it there, and clocks may differ by that much.
"""


DURATIONS = (
    *("apply_deadline_s", "decide_deadline_s", "heartbeat_s", "max_lease_s", "behind_alarm_s"),
    *("function_deadline_s", "stuck_alarm_s"),
)
"""Options of less than a day."""
SPILL_EXAMPLE = "tidegate.StateSpill, as in StateSpill(spill_above=0.95)"
DELETED_TTL = "7 days"
"""How long the sequences of rows that ``apply_changes`` deleted are kept, unless ``ttl`` sets
another time.
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a sink or a command. A test compares the table in docs/configuration.md with this class.

    ``key_groups`` None means: when the namespace is created, the power of two above ten times its tasks, at
    least 128; afterwards its existing number.
    ``parallelism`` None means Spark's default parallelism, "executors" the number of tasks that the
    executors can run at once; both are read for each batch. ``keep_versions`` and ``max_layers``
    None mean the store's default; ``local_dir`` None the system's temporary folder. ``ttl`` is by
    table: rows written from now on expire after it; tables without one keep their rows.
    ``table_key_groups`` has the number of key groups of tables that are made with fewer than the
    namespace has. Durations are in seconds, sizes in bytes.

    Raises: ConfigError: a value is of the wrong type or out of range.
    """

    key_groups: int | None = None
    keep_versions: int | None = None
    max_layers: int | None = None
    max_lease_s: float = 600.0
    max_leases: int = LEASES_MAX
    apply_deadline_s: float = 300.0
    decide_deadline_s: float = 60.0
    parallelism: int | Literal["executors"] | None = None
    driver_apply_max_changes: int = 5_000
    driver_apply_max_bytes: int = 4 * 1024 * 1024
    driver_stage_max_rows: int = 5_000
    driver_stage_max_bytes: int = 4 * 1024 * 1024
    frame_bytes: int = 900_000
    key_bytes_max: int = KEY_BYTES_MAX
    value_bytes_max: int = VALUE_BYTES_MAX
    heartbeat_s: float = 5.0
    wal_retain_s: float = 86_400.0
    summary_every: int = 500
    on_bad_record: Literal["fail", "quarantine"] = "fail"
    allow_unsafe: bool = False
    wait_replicas: int = 0
    wait_aof: bool = False
    behind_alarm_s: float = 900.0
    function_deadline_s: float = 60.0
    local_dir: LocalDirs = None
    affinity: bool = True
    ttl: Mapping[str, Duration | None] | None = None
    table_key_groups: Mapping[str, int] | None = None
    state_cache_bytes: int = 256 * 1024 * 1024
    state_memory_bytes: int = 128 * 1024 * 1024
    state_spill: StateSpill | None = None
    commit: Literal["sync", "pipelined"] = "sync"
    commit_in_flight: int = 2
    stuck_alarm_s: float = 60.0
    metrics_port: int | str | None = None

    def __post_init__(self) -> None:
        if self.key_groups is not None:
            _whole("key_groups", self.key_groups, 1)
            check_key_groups(self.key_groups)
        self._check_parallelism()
        if self.keep_versions is not None:
            _whole("keep_versions", self.keep_versions, 1, KEEP_VERSIONS_MAX)
        _whole("max_leases", self.max_leases, 1, MOST_LEASES)
        _whole("wait_replicas", self.wait_replicas, 0)
        _whole("state_cache_bytes", self.state_cache_bytes, 0)
        _whole("state_memory_bytes", self.state_memory_bytes, 0)
        _whole("summary_every", self.summary_every, 1)
        _whole("commit_in_flight", self.commit_in_flight, 1, IN_FLIGHT_MAX)
        if self.max_layers is not None:
            _whole("max_layers", self.max_layers, 1, MAX_LAYERS_MAX)
        _whole("driver_apply_max_changes", self.driver_apply_max_changes, 0)
        _whole("driver_apply_max_bytes", self.driver_apply_max_bytes, 0)
        _whole("driver_stage_max_rows", self.driver_stage_max_rows, 0, DRIVER_ROWS_MAX)
        _whole("driver_stage_max_bytes", self.driver_stage_max_bytes, 0)
        _whole("frame_bytes", self.frame_bytes, 1)
        _whole("key_bytes_max", self.key_bytes_max, 1, KEY_BYTES_MAX)
        _whole("value_bytes_max", self.value_bytes_max, 1, VALUE_BYTES_MAX)
        if self.on_bad_record not in ("fail", "quarantine"):
            msg = f"on_bad_record is {self.on_bad_record!r}; it must be 'fail' or 'quarantine'"
            raise ConfigError(msg)
        if self.commit not in (SYNC, PIPELINED):
            msg = f"commit is {self.commit!r}; it must be {SYNC!r} or {PIPELINED!r}"
            raise ConfigError(msg)
        self._check_kept()
        for name in ("allow_unsafe", "wait_aof", "affinity"):
            if not isinstance(getattr(self, name), bool):
                msg = f"{name} is {getattr(self, name)!r}; it must be True or False"
                raise ConfigError(msg)
        if self.local_dir is not None:
            check_local_dir(self.local_dir)
        self._check_ttl()
        self._check_table_key_groups()
        if not isinstance(self.state_spill, StateSpill | None):
            msg = f"state_spill is {self.state_spill!r}; it must be a {SPILL_EXAMPLE}"
            raise ConfigError(msg)
        if self.metrics_port is not None:
            address_of(self.metrics_port)
        for name in DURATIONS:
            _seconds(name, getattr(self, name), DAY_S)
        _seconds("wal_retain_s", self.wal_retain_s, WAL_RETAIN_S_MAX)
        if self.wal_retain_s < WAL_RETAIN_APPLIES * self.apply_deadline_s:
            msg = (
                f"wal_retain_s is {self.wal_retain_s!r}; it must be at least {WAL_RETAIN_APPLIES} times"
                f" apply_deadline_s, which is {self.apply_deadline_s!r}"
            )
            raise ConfigError(msg)

    def _check_kept(self) -> None:
        """Check that the log can be trimmed: its state must know every version that is kept,
        decided or visible.
        """
        most = KEEP_VERSIONS_MAX - self.commit_in_flight
        if self.commit == PIPELINED and (self.keep_versions or 0) > most:
            msg = (
                f"keep_versions is {self.keep_versions}; with commit={PIPELINED!r} and commit_in_flight="
                f"{self.commit_in_flight} it must be at most {most}: else the log could never be trimmed"
            )
            raise ConfigError(msg)

    def _check_ttl(self) -> None:
        if self.ttl is not None and not isinstance(self.ttl, Mapping):
            msg = f"ttl is {self.ttl!r}; it must be a duration per table, as in ttl={{'sessions': '7 days'}}"
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
                f"table_key_groups is {self.table_key_groups!r}; it must be a number per table, as in"
                " table_key_groups={'airports': 4}"
            )
            raise ConfigError(msg)
        for table, key_groups in (self.table_key_groups or {}).items():
            if check_name("table", table).startswith("_"):
                msg = f"table_key_groups of {table}: a table of tidegate's own has the namespace's key groups"
                raise ConfigError(msg)
            _whole(f"table_key_groups of table {table}", key_groups, 1)
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
                f"parallelism is {self.parallelism!r}; it must be a whole number, 1 or more, or {EXECUTORS!r}"
            )
            raise ConfigError(msg)
        _whole("parallelism", self.parallelism, 1)
        if self.key_groups is not None:
            check_parallelism(self.parallelism, self.key_groups)

    @property
    def tasks(self) -> int | None:
        """The number of tasks that ``parallelism`` sets; None: Spark determines it, for each batch."""
        return self.parallelism if isinstance(self.parallelism, int) else None

    @classmethod
    def of(cls, options: dict[str, Any]) -> Options:
        """Build options from keyword arguments. Raises: ConfigError that names an unknown one and
        the known ones.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(options) - known)
        if unknown:
            listed = f"the options are {', '.join(sorted(known))}"
            msg = f"unknown option {', '.join(unknown)}; {listed}{did_you_mean(unknown[0], known)}"
            raise ConfigError(msg)
        return cls(**options)


class SinkOptions(TypedDict, total=False):
    """The options of ``VersionedSink`` as keywords, for type checkers and editors.

    A test compares them with ``Options``. ``ttl`` may also be the duration of the sink's one table.
    """

    key_groups: int | None
    """Units of routing, storage and rescaling, fixed for life. Default: ten a task or more, at least 128."""
    keep_versions: int | None
    """Number of readable versions, at most 1,000. Default: 100; on Redis 2."""
    max_layers: int | None
    """How many versions a lease may lag behind the visible one. Default: the store's."""
    max_lease_s: float
    """How long a lease can hold one version, in seconds. Default: 600."""
    max_leases: int
    """Limit above which a lease is refused, on Redis. Default: 4,000."""
    apply_deadline_s: float
    """How long apply and publish are tried again, in seconds. Default: 300."""
    decide_deadline_s: float
    """How long a decision is sent again, in seconds. Default: 60."""
    parallelism: int | Literal["executors"] | None
    """Tasks that stage and apply. Default: Spark's default parallelism."""
    driver_apply_max_changes: int
    """Largest version that the driver applies itself, in changes. Default: 5,000."""
    driver_apply_max_bytes: int
    """The same limit in bytes. Default: 4 MiB."""
    driver_stage_max_rows: int
    """Largest batch that the driver stages itself, in rows; 0: none. Default: 5,000."""
    driver_stage_max_bytes: int
    """The same limit in bytes. Default: 4 MiB."""
    frame_bytes: int
    """Approximate size of a frame in the log, in bytes. Default: 900,000."""
    key_bytes_max: int
    """Longest key, in bytes. Default: 32 KiB."""
    value_bytes_max: int
    """Longest value, in bytes. Default: 16 MiB."""
    heartbeat_s: float
    """Time between the writer's signs of life, in seconds. Default: 5."""
    wal_retain_s: float
    """How long the log is kept beyond what is needed, in seconds. Default: 86,400."""
    summary_every: int
    """Every N versions, write a Summary record and trim the log before it. Default: 500."""
    on_bad_record: Literal["fail", "quarantine"]
    """The treatment of a row that cannot be staged. Default: "fail"."""
    allow_unsafe: bool
    """Open despite failed checks of log or store. Default: False."""
    wait_replicas: int
    """Redis: how many replicas of every server have a version before it becomes visible. Default: 0."""
    wait_aof: bool
    """Redis 7.2 or Valkey: fsync a version before it becomes visible. Default: False."""
    behind_alarm_s: float
    """Alarm when a secondary store has lagged the log for N seconds. Default: 900."""
    function_deadline_s: float
    """Limit of one call of a function of ``update`` or ``local_state``, in seconds. Default: 60."""
    local_dir: LocalDirs
    """A folder, or several, on each host's own disk. Default: the system's temporary folder."""
    affinity: bool
    """Ask Spark to run tasks where their key groups' tasks ran last. Default: True."""
    ttl: Mapping[str, Duration | None] | Duration | None
    """Time to live by table, as in ``{"sessions": "7 days"}``, or of the one table. Default: none."""
    table_key_groups: Mapping[str, int] | None
    """Key groups of new tables with fewer than the namespace has, as in ``{"airports": 4}``. Default: all."""
    state_cache_bytes: int
    """State that a host keeps locally, in bytes; 0: none. Default: 256 MiB."""
    state_memory_bytes: int
    """The part of it that is in memory, in bytes. Default: 128 MiB."""
    state_spill: StateSpill | None
    """When state moves between memory and disks. Default: ``StateSpill()``."""
    commit: Literal["sync", "pipelined"]
    """End a batch when its version is visible, or when it is decided. Default: "sync"."""
    commit_in_flight: int
    """Pipelined: how many versions may be decided and not visible. Default: 2."""
    stuck_alarm_s: float
    """Alarm when a commit has spent N seconds in one phase. Default: 60."""
    metrics_port: int | str | None
    """Port for the driver's metrics, or "HOST:PORT"; 0: any that is free. Default: none."""


def address_of(metrics_port: int | str) -> tuple[str, int]:
    """Return host and port of a ``metrics_port``: a number is a port of this host alone, 0 any that is free.

    >>> address_of(9464), address_of("0.0.0.0:9464")
    (('127.0.0.1', 9464), ('0.0.0.0', 9464))
    """
    host, colon, port = str(metrics_port).rpartition(":")
    if isinstance(metrics_port, bool) or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > PORT_MAX:
        msg = (
            f"metrics_port is {metrics_port!r}; it must be a port, 0 to {PORT_MAX}, or text such as"
            " '0.0.0.0:9464' to listen for other machines"
        )
        raise ConfigError(msg)
    return (host.strip("[]") if colon and host else LOCALHOST), int(port)


@dataclasses.dataclass(frozen=True, slots=True)
class StoreRef:
    """One store: its name in the log, its URL, its client's options.

    Raises: ConfigError: the name is not allowed.
    """

    name: str
    url: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if STORE_NAME.fullmatch(self.name) is None:
            raise ConfigError(f"{self.name!r} cannot name a store: {_NO_NAME}")

    def __repr__(self) -> str:
        return f"StoreRef({self.name!r}, {redact(self.url)!r})"


STORE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_NAMED = re.compile(r"([^=:/]*)=([^:/]+:.*)", re.DOTALL)
"""``name=URL``: a URL has a colon before any equals sign."""
_NO_NAME = "use 1 to 40 of the characters a-z 0-9 _ and -, the first a letter or a digit"


def parse_store(text: str, options: dict[str, Any] | None = None) -> StoreRef:
    """Parse the store in ``URL`` or ``name=URL``.

    Without a name it is named after its kind, never after its host: servers move, and the log keeps
    the name.

    >>> parse_store("rediss+cluster://h1:6379,h2:6379").name, parse_store("copy=sqlite:///data/copy").name
    ('redis', 'copy')
    """
    if not isinstance(text, str):
        raise ConfigError(f"a store is {type(text).__name__}; it must be text: a URL, or name=URL")
    named = _NAMED.fullmatch(text)
    if named and scheme_of(named[2]):
        if STORE_NAME.fullmatch(named[1]) is None:  # not shown: it may be a piece of a login
            raise ConfigError(f"the text before = cannot name a store: {_NO_NAME}")
        return StoreRef(named[1], named[2], options or {})
    kind = scheme_of(text).partition("+")[0].lower()
    derived = re.sub(r"[^a-z0-9_-]", "", "redis" if kind == "rediss" else kind)[:40].lstrip("_-")
    return StoreRef(derived or "store", text, options or {})


def parse_stores(
    stores: str | Sequence[str | StoreRef], options: Mapping[str, Any] | None = None
) -> tuple[StoreRef, ...]:
    """Parse the stores that a user named, the primary first.

    A single one is a URL, and ``options`` are its client's. For a list, ``options`` are by the
    store's name. Raises: ConfigError: none, two of one name or at one location, or options of a
    store that is not listed.
    """
    if isinstance(stores, str):
        return (parse_store(stores, dict(options or {})),)
    if not isinstance(stores, Sequence):
        raise ConfigError(f"store is {type(stores).__name__}; it must be a URL, or a list of URL or name=URL")
    references = tuple(
        reference if isinstance(reference, StoreRef) else parse_store(reference) for reference in stores
    )
    names = [reference.name for reference in references]
    if not references:
        raise ConfigError("store=[]: name at least one store")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        msg = (
            f"two stores are called {twice[0]}: give each a name of its own, as in {twice[0]}=URL and"
            " copy=URL; the log keeps these names"
        )
        raise ConfigError(msg)
    _refuse_one_place(references)
    by_store = dict(options or {})
    unknown = sorted(
        name for name in by_store if name not in names or not isinstance(by_store[name], Mapping)
    )
    if unknown:
        msg = (
            f"store_options {', '.join(unknown)}: of several stores they are by name,"
            f" {{{names[0]!r}: {{option: value}}}}; the stores are {', '.join(names)}"
        )
        raise ConfigError(msg)
    return tuple(
        dataclasses.replace(reference, options={**reference.options, **by_store.get(reference.name, {})})
        for reference in references
    )


def _refuse_one_place(stores: Sequence[StoreRef]) -> None:
    """Raise ConfigError if two of them are one, as far as their URLs show."""
    by_place: dict[str, StoreRef] = {}
    for store in stores:
        kind, _, where = store.url.partition("://")
        other = by_place.setdefault(f"{kind}:{posixpath.normpath('/' + where.lstrip('/'))}", store)
        if other is not store:
            msg = (
                f"stores {other.name} and {store.name} are one, {redact(store.url)}: rows dropped from one of"
                " them are gone from the other; give each a place of its own. A store keeps the name that the"
                " log has"
            )
            raise ConfigError(msg)


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoints:
    """The location of a namespace: its name, the URLs of log and stores, and their clients' options.

    ``store`` and ``store_options`` are the primary's, ``also`` the other stores. Small and plain,
    so that it can travel to tasks. ``repr`` never shows a password.
    """

    namespace: str
    wal: str
    store: str
    wal_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    store_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    store_name: str = ""
    also: tuple[StoreRef, ...] = ()

    def __post_init__(self) -> None:
        check_name("namespace", self.namespace)

    @classmethod
    def of(
        cls,
        namespace: str,
        wal: str,
        stores: str | Sequence[str | StoreRef],
        wal_options: dict[str, Any] | None = None,
        store_options: Mapping[str, Any] | None = None,
    ) -> Endpoints:
        """Build it from a user's arguments. Raises: as ``parse_stores``."""
        if not isinstance(wal, str):
            raise ConfigError(f"the log's URL is {type(wal).__name__}; it must be text, as in file:///path")
        for name, options in (("wal_options", wal_options), ("store_options", store_options)):
            if not isinstance(options, Mapping | None):
                raise ConfigError(f"{name} is {type(options).__name__}; it must be a dict of options")
        primary, *also = parse_stores(stores, store_options)
        return cls(namespace, wal, primary.url, wal_options or {}, primary.options, primary.name, tuple(also))

    @property
    def stores(self) -> tuple[StoreRef, ...]:
        """All stores, the primary first."""
        name = self.store_name or parse_store(self.store).name
        return (StoreRef(name, self.store, self.store_options), *self.also)

    def only(self, at: StoreRef | None = None) -> Endpoints:
        """Return the same with one store alone: ``at``, or the primary."""
        at = at or self.stores[0]
        return dataclasses.replace(self, store=at.url, store_options=at.options, store_name=at.name, also=())

    def __repr__(self) -> str:
        also = f", also={list(self.also)!r}" * bool(self.also)
        return (
            f"Endpoints(namespace={self.namespace!r}, wal={redact(self.wal)!r},"
            f" store={redact(self.store)!r}{also})"
        )


def _whole(name: str, value: object, least: int, most: int | None = None) -> None:
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not fits or (most is not None and isinstance(value, int) and value > most):
        limit = f"{least} or more" + ("" if most is None else f", at most {most:,}")
        msg = f"{name} is {value!r}; it must be a whole number, {limit}"
        raise ConfigError(msg)


def _seconds(name: str, value: object, below: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < below:
        msg = f"{name} is {value!r}; it must be a number of seconds above 0 and below {below:,}"
        raise ConfigError(msg)
