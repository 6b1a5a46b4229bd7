"""The locations of tasks and executors, remembered from batch to batch and from driver to driver.

After Samza's proposal (SAMZA-1554): a location is a place whose processes share their local files, such
as a host. A process there finds its location's name by a ``LocationIdProvider``; the ``LocalityManager``
stores it in a ``MetadataStore``. All of it is a hint: a lost or wrong entry costs a cache, never a result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.base.text import brief
from tidegate.errors import ConfigError
from tidegate.spark.placement.assignment import RanAt

logger = logging.getLogger("tidegate")

LOCATION_VARIABLE = "TIDEGATE_LOCATION_ID"
"""The environment variable of executors with their location, for hosts without a useful name (containers)."""
ANCESTORS = 6
"""The number of parent processes in which the executor of a Python worker is searched."""


# -- the location of this process -------------------------------------------------------------


class LocationIdProvider(Protocol):
    """A function that names the location of its process: all of one location share their ``local_dir``.

    It is called in tasks on executors, so Spark must be able to send it there. It must always return the same
    in one process. An error is logged as one warning, and the host's name is used instead.
    """

    def location_id(self) -> str:
        """Return the location's name: text that is not empty."""
        ...


class HostLocation:
    """The provider of the executor's host, as Spark names it; the machine's name outside executors."""

    def location_id(self) -> str:
        return executor_here()[1] or socket.gethostname()


class EnvironmentLocation:
    """The provider of an executors' environment variable, such as the name of a pod's node. The default."""

    def __init__(self, variable: str = LOCATION_VARIABLE) -> None:
        self.variable = variable

    def location_id(self) -> str:
        return os.environ.get(self.variable, "") or HostLocation().location_id()


def location_by(provider: LocationIdProvider) -> str:
    """Return the provider's location; if it fails or has none, the host, with one warning in this process."""
    try:
        location: Any = provider.location_id()
        if isinstance(location, str) and location:
            return location
        why = f"it returned {brief(location)}, not a text of one or more characters"
    except Exception as error:  # noqa: BLE001 - a user's own; its answer is a hint
        why = f"{type(error).__name__}: {error}"
    kind = type(provider).__name__
    if kind not in _warned:
        _warned.add(kind)
        logger.warning(
            "%s did not return the location of this process, its host is used instead: %s", kind, why
        )
    return HostLocation().location_id()


_warned: set[str] = set()
"""The kinds of providers for which this process has logged a warning."""


def executor_here() -> tuple[str, str]:
    """Find the id and the host of this Python worker's executor; both '' if there is none.

    Spark does not pass them to its Python workers. Every cluster manager passes them to the executor on its
    command line (``--executor-id``, ``--hostname``), and the executor is one of this process's parents.
    """
    process = os.getppid()
    for _ in range(ANCESTORS):
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
            parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break  # not Linux, or the parent ended just now
        named = dict(itertools.pairwise(words))
        if "--executor-id" in named:
            return named["--executor-id"], named.get("--hostname", "")
        process = parent
    return "", ""


# -- the store of locations -------------------------------------------------------------------


class MetadataStore(Protocol):
    """A store of a few small values (64 KB and less, for some hundred tasks) by key, for the driver alone.

    A value is replaced at once or not at all. Repeatable: every call. Nothing depends on its values: an error
    is logged as one warning, and then tasks are placed as if none ran before.
    """

    def put(self, key: bytes, value: bytes) -> None:
        """Store the value under the key, in place of an earlier one."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """Return the key's value; None: there is none."""
        ...

    def remove(self, key: bytes) -> None:
        """Remove the key; an absent one is no error."""
        ...

    def all(self) -> dict[bytes, bytes]:
        """Return all values, by key."""
        ...


class MemoryMetadataStore:
    """A metadata store in this process's memory."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self._values[key] = value

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def remove(self, key: bytes) -> None:
        self._values.pop(key, None)

    def all(self) -> dict[bytes, bytes]:
        return dict(self._values)


class FileMetadataStore:
    """A metadata store in a folder, with a file for each key.

    Files are named by the key's hex digits, so keys have at most 100 bytes. A value is replaced at once or
    not at all, also by concurrent processes; it is not synced to the disk.
    """

    KEY_BYTES_MAX = 100

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def put(self, key: bytes, value: bytes) -> None:
        path = self._path(key)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole = path.with_name(f".{secrets.token_hex(8)}")
        try:
            whole.write_bytes(value)
            whole.replace(path)
        except OSError:
            whole.unlink(missing_ok=True)
            raise

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def remove(self, key: bytes) -> None:
        self._path(key).unlink(missing_ok=True)

    def all(self) -> dict[bytes, bytes]:
        values = {}
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(self._folder.iterdir()):
                with contextlib.suppress(ValueError, FileNotFoundError):  # a foreign file; removed just now
                    values[bytes.fromhex(path.name)] = path.read_bytes()
        return values

    def _path(self, key: bytes) -> Path:
        if not 0 < len(key) <= self.KEY_BYTES_MAX:
            raise ValueError(f"a key has 1 to {self.KEY_BYTES_MAX} bytes, this one has {len(key)}")
        return self._folder / key.hex()


@dataclasses.dataclass(frozen=True)
class Locality:
    """The configuration of a sink's task placement: the provider of locations, and the store of them.

    It is the argument ``VersionedSink(locality=...)``. ``metadata`` None: the manifests in the log,
    from which a driver on any host knows where tasks ran. Raises: ConfigError: one of them lacks a method.
    """

    provider: LocationIdProvider = dataclasses.field(default_factory=EnvironmentLocation)
    metadata: MetadataStore | None = None

    def __post_init__(self) -> None:
        required: dict[str, tuple[str, ...]] = {"provider": ("location_id",)}
        if self.metadata is not None:
            required["metadata"] = ("put", "get", "remove", "all")
        for name, methods in required.items():
            value = getattr(self, name)
            missing = [method for method in methods if not callable(getattr(value, method, None))]
            if missing or isinstance(value, type):
                what = f"has no method {missing[0]}" if missing else "is a class: give an object of it"
                raise ConfigError(f"locality: {name} {brief(value)} {what}")


# -- the stored values ------------------------------------------------------------------------

TASKS, PROCESSORS = b"task-locality/", b"processor-locality/"

_encoder = msgspec.json.Encoder(order="deterministic")
_tasks_decoder = json_decoder(list[tuple[str, str] | None])
_processors_decoder = json_decoder(dict[str, str])
Value = TypeVar("Value")


class LocalityManager:
    """The last places of one lineage's tasks, and the location of each host of executors.

    Another lineage starts without any, since it may read other state; values of an older one are removed
    at its first write. An error of the store is logged as one warning, and then nothing is known.
    """

    def __init__(self, store: MetadataStore, lineage: str) -> None:
        self._store, self._lineage = store, lineage
        self._warned = self._swept = False

    def task_locality(self) -> list[RanAt | None]:
        """Read the last place of each task; empty when unknown."""
        last_places = self._decoded(TASKS, _tasks_decoder, [])
        return [None if place is None else RanAt(*place) for place in last_places]

    def write_task_locality(self, tasks: Sequence[RanAt | None]) -> None:
        """Store the place of each task."""
        self._put(TASKS, _encoder.encode(list(tasks)))

    def processor_locality(self) -> dict[str, str]:
        """Read the location of each host of executors; empty when unknown."""
        return self._decoded(PROCESSORS, _processors_decoder, {})

    def write_processor_locality(self, locations: Mapping[str, str]) -> None:
        """Store the location of each host of executors."""
        self._put(PROCESSORS, _encoder.encode(dict(locations)))

    def _decoded(self, kind: bytes, decoder: msgspec.json.Decoder[Value], nothing: Value) -> Value:
        content = self._get(kind)
        try:
            return decoder.decode(content) if content else nothing
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._trouble(error)
            return nothing

    def _get(self, kind: bytes) -> bytes | None:
        try:
            return self._store.get(kind + self._lineage.encode())
        except Exception as error:  # noqa: BLE001 - a user's store may raise anything
            self._trouble(error)
            return None

    def _put(self, kind: bytes, content: bytes) -> None:
        try:
            if not self._swept:
                self._sweep()
            self._store.put(kind + self._lineage.encode(), content)
        except Exception as error:  # noqa: BLE001 - as above
            self._trouble(error)

    def _sweep(self) -> None:
        mine = {kind + self._lineage.encode() for kind in (TASKS, PROCESSORS)}
        for key in self._store.all().keys() - mine:
            if key.startswith((TASKS, PROCESSORS)):
                self._store.remove(key)
        self._swept = True

    def _trouble(self, error: Exception) -> None:
        if not self._warned:
            logger.warning("the places of tasks are not stored, other executors may get them: %s", error)
        self._warned = True
