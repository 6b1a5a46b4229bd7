"""Where tasks ran and where executors are, kept from batch to batch and from driver to driver.

After Samza's proposal (SAMZA-1554): a location is a place whose processes share their local files, such
as a host; who runs there says which one it is (``LocationIdProvider``); the ``LocalityManager`` keeps it
in a ``MetadataStore``. All of it is a hint: what is lost or wrong costs a cache, never a result.
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
from typing import Any, Protocol

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.errors import ConfigError
from tidegate.spark.placement.assignment import RanAt

logger = logging.getLogger("tidegate")

LOCATION_VARIABLE = "TIDEGATE_LOCATION_ID"
"""Set on executors, it is their location: where a host's name says too little, as in containers."""
ANCESTORS = 6
"""So far up the executor of a Python worker is looked for."""


# -- who am I ---------------------------------------------------------------------------------


class LocationIdProvider(Protocol):
    """Says at which location this process runs: all of one location share their ``local_dir``.

    It is asked in tasks on executors, so it has to be one that Spark can send there. The same process
    always says the same. What it raises is one warning, and the host's name stands for its answer.
    """

    def location_id(self) -> str:
        """The location's name: text that is not empty."""
        ...


class HostLocation:
    """The executor's host, as Spark names it; the machine's name outside executors. The default."""

    def location_id(self) -> str:
        return executor_here()[1] or socket.gethostname()


class EnvironmentLocation:
    """What an environment variable of the executors says, such as the name of a pod's node."""

    def __init__(self, variable: str = LOCATION_VARIABLE) -> None:
        self.variable = variable

    def location_id(self) -> str:
        return os.environ.get(self.variable, "") or HostLocation().location_id()


def location_by(provider: LocationIdProvider) -> str:
    """What the provider says; where it raises or says nothing, the host, and one warning in this process."""
    why = "it said nothing"
    try:
        told: Any = provider.location_id()
        if isinstance(told, str) and told:
            return told
        why = f"it said {told!r}, which is no text with letters"
    except Exception as error:  # noqa: BLE001 - a user's own; what it says is a hint
        why = f"{type(error).__name__}: {error}"
    kind = type(provider).__name__
    if kind not in _told:
        _told.add(kind)
        logger.warning("%s does not say the location of this process, its host stands for it: %s", kind, why)
    return HostLocation().location_id()


_told: set[str] = set()
"""The kinds of providers that were told of in this process."""


def executor_here() -> tuple[str, str]:
    """(id, host) of the executor that this Python worker belongs to; empty where there is none.

    Spark does not tell its Python workers; every cluster manager tells the executor on its command
    line (``--executor-id``, ``--hostname``), and that is one of this process's parents.
    """
    process = os.getppid()
    for _ in range(ANCESTORS):
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
            parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break  # no Linux, or the parent ended just now
        named = dict(itertools.pairwise(words))
        if "--executor-id" in named:
            return named["--executor-id"], named.get("--hostname", "")
        process = parent
    return "", ""


# -- where it is kept -------------------------------------------------------------------------


class MetadataStore(Protocol):
    """A few small values (64 KB and less, for some hundred tasks) by key, used by the driver alone.

    A value is replaced at once or not at all; any call may be repeated; nobody rests on what it keeps.
    Whatever it raises is one warning, and then nothing is known: tasks are placed anew.
    """

    def put(self, key: bytes, value: bytes) -> None:
        """Keep the value under the key, in the place of what was there."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """The key's value; None: there is none."""
        ...

    def remove(self, key: bytes) -> None:
        """Forget the key; one that is not there is no error."""
        ...

    def all(self) -> dict[bytes, bytes]:
        """All values by key."""
        ...


class MemoryMetadataStore:
    """In this process only."""

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
    """In a folder, a file for each key, named by its hex digits (so keys have at most 100 bytes).

    A value is replaced at once or not at all, by one process or another; it is not synced to the disk.
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
        found = {}
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(self._folder.iterdir()):
                with contextlib.suppress(ValueError, FileNotFoundError):  # another's file; removed just now
                    found[bytes.fromhex(path.name)] = path.read_bytes()
        return found

    def _path(self, key: bytes) -> Path:
        if not 0 < len(key) <= self.KEY_BYTES_MAX:
            raise ValueError(f"a key has 1 to {self.KEY_BYTES_MAX} bytes, this one has {len(key)}")
        return self._folder / key.hex()


@dataclasses.dataclass(frozen=True)
class Locality:
    """How a sink knows where its tasks run, and where it remembers that. ``VersionedSink(locality=...)``.

    ``metadata`` None: files in the ``local_dir`` of the driver's host; a driver on another host starts
    with nothing. ConfigError: one of them has not the methods that are asked for.
    """

    provider: LocationIdProvider = dataclasses.field(default_factory=EnvironmentLocation)
    metadata: MetadataStore | None = None

    def __post_init__(self) -> None:
        asked: dict[str, tuple[str, ...]] = {"provider": ("location_id",)}
        if self.metadata is not None:
            asked["metadata"] = ("put", "get", "remove", "all")
        for name, methods in asked.items():
            given = getattr(self, name)
            missing = [one for one in methods if not callable(getattr(given, one, None))]
            if missing or isinstance(given, type):
                what = f"has no method {missing[0]}" if missing else "is a class: give an object of it"
                raise ConfigError(f"locality: {name} {given!r} {what}")


# -- what is kept -----------------------------------------------------------------------------

TASKS, PROCESSORS = b"task-locality/", b"processor-locality/"

_encoder = msgspec.json.Encoder(order="deterministic")
_tasks_decoder = json_decoder(list[tuple[str, str] | None])
_processors_decoder = json_decoder(dict[str, str])


class LocalityManager:
    """Where the tasks of one lineage ran last, and at which location each executor is.

    Another lineage starts with none: it may read other state, and what an older one left is removed
    when it first writes. Trouble with the store is one warning; then nothing is known.
    """

    def __init__(self, store: MetadataStore, lineage: str) -> None:
        self._store, self._lineage = store, lineage
        self._told = self._swept = False

    def task_locality(self) -> list[RanAt | None]:
        """Where each task ran last; empty when that is not known."""
        content = self._get(TASKS)
        try:
            found = _tasks_decoder.decode(content) if content else []
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._trouble(error)
            found = []
        return [None if was is None else RanAt(*was) for was in found]

    def write_task_locality(self, tasks: Sequence[RanAt | None]) -> None:
        """Remember where each task ran."""
        self._put(TASKS, _encoder.encode(list(tasks)))

    def processor_locality(self) -> dict[str, str]:
        """The location of each executor that said so."""
        content = self._get(PROCESSORS)
        try:
            return _processors_decoder.decode(content) if content else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._trouble(error)
            return {}

    def write_processor_locality(self, locations: Mapping[str, str]) -> None:
        """Remember at which location each executor is."""
        self._put(PROCESSORS, _encoder.encode(dict(locations)))

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
        if not self._told:
            logger.warning("where tasks ran is not kept, they may be placed anew: %s", error)
        self._told = True
