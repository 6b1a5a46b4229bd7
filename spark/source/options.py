"""The options of ``format("tidegate")``, validated.

No pyspark is imported here.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import json
from collections.abc import Mapping
from typing import Any

from tidegate.base.text import brief
from tidegate.errors import ConfigError
from tidegate.reader.redirects import Follow, Followed
from tidegate.reader.rules import LEASE_MAX_S
from tidegate.sinks.rules.version_ref import VersionRef

SHARED = ("namespace", "store", "table", "storeOptions", "leaseSeconds", "parallelism", "followRedirects")
BATCH = ("versionAsOf", "timestampAsOf")
STREAM = ("wal", "walOptions", "startingVersion", "maxVersionsPerTrigger", "onRetired", "changeTypes")
LEASE_S = 300.0
PARALLELISM = 16
EARLIEST, LATEST = "earliest", "latest"


@dataclasses.dataclass(frozen=True)
class SourceOptions:
    """The options of a read. ``starting``: from the version after it on; None: after the version visible at
    the start.
    """

    namespace: str
    store: str = dataclasses.field(repr=False)
    table: str
    store_options: dict[str, Any] = dataclasses.field(repr=False)
    lease_s: float
    parallelism: int
    follow_redirects: Follow
    version: int | None
    as_of: datetime.datetime | None
    wal: str = dataclasses.field(repr=False)
    wal_options: dict[str, Any] = dataclasses.field(repr=False)
    starting: VersionRef | None
    versions_max: int | None
    snapshot_when_retired: bool
    exact: bool

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> SourceOptions:
        """Parse Spark's options, whose names are case-insensitive. Raises: ConfigError, one is
        wrong, and why.
        """
        known = {name.lower(): name for name in (*SHARED, *BATCH, *STREAM)}
        options = {}
        for name, value in texts.items():
            if name.lower() == "path":
                raise ConfigError(
                    "format('tidegate') takes no path: name the options namespace, store and table"
                )
            if name.lower() not in known:
                close = difflib.get_close_matches(name.lower(), known, n=1)
                hint = f"; did you mean {known[close[0]]!r}?" if close else ""
                names = ", ".join(known.values())
                raise ConfigError(f"format('tidegate') has no option {brief(name)}; there are {names}{hint}")
            options[known[name.lower()]] = value
        missing = [name for name in ("namespace", "store", "table") if not options.get(name)]
        if missing:
            raise ConfigError(
                f"format('tidegate') needs the option {missing[0]!r}, as in"
                f" .option({missing[0]!r}, {_EXAMPLES[missing[0]]!r})"
            )
        if "versionAsOf" in options and "timestampAsOf" in options:
            raise ConfigError("give versionAsOf or timestampAsOf, not both")
        return cls(
            namespace=options["namespace"],
            store=options["store"],
            table=options["table"],
            store_options=_object(options, "storeOptions"),
            lease_s=_number(options, "leaseSeconds", LEASE_S, LEASE_MAX_S),
            parallelism=_whole(options, "parallelism") or PARALLELISM,
            follow_redirects=_follow(options),
            version=_whole(options, "versionAsOf"),
            as_of=_moment(options),
            wal=options.get("wal", ""),
            wal_options=_object(options, "walOptions"),
            starting=_starting(options),
            versions_max=_whole(options, "maxVersionsPerTrigger"),
            snapshot_when_retired=_one_of(options, "onRetired", ("fail", "snapshot")) == "snapshot",
            exact=_one_of(options, "changeTypes", ("upsert", "exact")) == "exact",
        )


_EXAMPLES = {"namespace": "flights", "store": "redis://cache:6379/0", "table": "aircraft"}


def _whole(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigError(f"option {name} is {brief(text)}; it must be a whole number, 1 or more")
    return number


def _number(options: Mapping[str, str], name: str, default: float, most: float) -> float:
    text = options.get(name)
    try:
        number = default if text is None else float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= most:
        raise ConfigError(f"option {name} is {brief(text)}; it must be seconds above 0, {most:,.0f} at most")
    return number


def _object(options: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        value = json.loads(options.get(name) or "{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f'option {name} must be a JSON object, as in {{"socket_timeout": 5}}')
    return value


def _moment(options: Mapping[str, str]) -> datetime.datetime | None:
    text = options.get("timestampAsOf")
    if text is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() is None:
        raise ConfigError(
            f"option timestampAsOf is {brief(text)}; write it with its zone, as in 2026-11-21T14:00:00Z"
        )
    return moment


def _starting(options: Mapping[str, str]) -> VersionRef | None:
    text = options.get("startingVersion", EARLIEST)
    if text in (EARLIEST, LATEST):
        return VersionRef(0) if text == EARLIEST else None
    if ":" in text:  # the last version that was given, with its history
        return VersionRef.parse(text)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"option startingVersion is {brief(text)}; it must be {EARLIEST!r}, {LATEST!r}, the first version"
            " to give, 1 or more, or VERSION:UUID:DIGEST, the version before it"
        )
    return VersionRef(int(text) - 1)


def _follow(options: Mapping[str, str]) -> Follow:
    """Return the servers to follow to; ``true``: those of the store's URL alone. Raises: ConfigError."""
    text = options.get("followRedirects", "false")
    if text in ("false", "true"):
        return text == "true"
    follow = [name.strip() for name in text.split(",")]
    Followed.of(options["store"], follow, "option followRedirects")
    return follow


def _one_of(options: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    text = options.get(name, known[0])
    if text not in known:
        raise ConfigError(f"option {name} is {brief(text)}; it must be {' or '.join(map(repr, known))}")
    return text
