"""All options, in one frozen and validated dataclass."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from tidegate.errors import ConfigError
from tidegate.key_groups import check_key_groups
from tidegate.names import check_name

KEY_BYTES_MAX = 32 * 1024
VALUE_BYTES_MAX = 16 * 1024 * 1024
KEEP_VERSIONS_MAX = 1_000
"""Versions are retired by the facts that the fold keeps, of so many versions."""
DAY_S = 86_400
WAL_RETAIN_S_MAX = 3_660 * DAY_S
WAL_RETAIN_APPLIES = 10
"""The log is kept at least so many apply deadlines: whoever still applies or reads a version
finds it there, and clocks may differ by that much."""
LAYERS_MORE = 1_000
"""So many versions beyond ``keep_versions`` may leases hold, unless ``max_layers`` says otherwise: what
a file costs grows with its rows only, so the limit is there for the disk, not for the reads."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a sink or a command. The table in docs/operations.md is made from this class.

    ``key_groups`` None means: 128 when the namespace is made, afterwards what it was made
    with. ``parallelism`` None means Spark's default parallelism, ``max_layers`` None
    ``keep_versions`` and 1,000 more. Durations are in seconds, sizes in bytes.

    ConfigError: a value is of the wrong type or out of range.
    """

    key_groups: int | None = None
    keep_versions: int = 100
    max_layers: int | None = None
    max_lease_s: float = 600.0
    apply_deadline_s: float = 300.0
    decide_deadline_s: float = 60.0
    parallelism: int | None = None
    driver_apply_max_changes: int = 5_000
    driver_apply_max_bytes: int = 4 * 1024 * 1024
    frame_bytes: int = 900_000
    key_bytes_max: int = KEY_BYTES_MAX
    value_bytes_max: int = VALUE_BYTES_MAX
    heartbeat_s: float = 5.0
    wal_retain_s: float = 86_400.0
    summary_every: int = 500
    on_bad_record: str = "fail"
    allow_unsafe: bool = False

    def __post_init__(self) -> None:
        if self.key_groups is not None:
            _whole("key_groups", self.key_groups, 1)
            check_key_groups(self.key_groups)
        if self.parallelism is not None:
            _whole("parallelism", self.parallelism, 1)
        _whole("keep_versions", self.keep_versions, 1, KEEP_VERSIONS_MAX)
        _whole("summary_every", self.summary_every, 1)
        if self.max_layers is not None:
            _whole("max_layers", self.max_layers, 1)
        _whole("driver_apply_max_changes", self.driver_apply_max_changes, 0)
        _whole("driver_apply_max_bytes", self.driver_apply_max_bytes, 0)
        _whole("frame_bytes", self.frame_bytes, 1)
        _whole("key_bytes_max", self.key_bytes_max, 1, KEY_BYTES_MAX)
        _whole("value_bytes_max", self.value_bytes_max, 1, VALUE_BYTES_MAX)
        if self.on_bad_record not in ("fail", "quarantine"):
            msg = f"on_bad_record is {self.on_bad_record!r}; it must be 'fail' or 'quarantine'"
            raise ConfigError(msg)
        if not isinstance(self.allow_unsafe, bool):
            msg = f"allow_unsafe is {self.allow_unsafe!r}; it must be True or False"
            raise ConfigError(msg)
        for name in ("apply_deadline_s", "decide_deadline_s", "heartbeat_s", "max_lease_s"):
            _seconds(name, getattr(self, name), DAY_S)
        _seconds("wal_retain_s", self.wal_retain_s, WAL_RETAIN_S_MAX)
        if self.wal_retain_s < WAL_RETAIN_APPLIES * self.apply_deadline_s:
            msg = (
                f"wal_retain_s is {self.wal_retain_s!r}; it must be at least {WAL_RETAIN_APPLIES} times"
                f" apply_deadline_s, which is {self.apply_deadline_s!r}"
            )
            raise ConfigError(msg)

    @property
    def layers_max(self) -> int:
        """How many versions behind the visible one a lease may hold."""
        return self.keep_versions + LAYERS_MORE if self.max_layers is None else self.max_layers

    @classmethod
    def of(cls, given: dict[str, Any]) -> Options:
        """Options from keyword arguments; ConfigError names an unknown one and those there are."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            msg = f"unknown option {', '.join(unknown)}; the options are {', '.join(sorted(known))}"
            raise ConfigError(msg)
        return cls(**given)


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a namespace lives: its name, the URLs of log and store, and their clients' options.

    Small and plain, so that it can travel to tasks. ``repr`` never shows a password.
    """

    namespace: str
    wal: str
    store: str
    wal_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    store_options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("namespace", self.namespace)

    def __repr__(self) -> str:
        return (
            f"Endpoints(namespace={self.namespace!r}, wal={redact(self.wal)!r}, store={redact(self.store)!r})"
        )


def redact(url: str) -> str:
    """The URL with its password, if any, replaced by ``***`` (T48).

    Rather too much is hidden than too little: a password may hold ``/`` and ``@`` that nobody
    encoded, and clients also take it from the query.

    >>> redact("redis://user:secret@cache:6379/0")
    'redis://user:***@cache:6379/0'
    """
    hidden = re.sub(r"(?<=://)([^/@:]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"(?i)([?&][^=&]*(?:pass|secret|token|key)[^=&]*=)[^&]*", r"\1***", hidden)


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
