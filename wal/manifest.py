"""The manifest: all acks of the winning attempt, everything an apply needs to know; its bytes.

``TGM1``, 8 bytes XXH3-64 of what follows, big-endian, then MessagePack (published in
docs/storage-format.md). A Decided record names it by its address and digest. It is plain data:
reading it never runs code, even if an attacker wrote it.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from tidegate.base.decoders import msgpack_decoder
from tidegate.errors import ConfigError, CorruptError, TidegateError
from tidegate.wal.record import (
    CHECKSUM_BYTES,
    MEND,
    UNREADABLE,
    Count,
    Dropped,
    FrameRef,
    KeyGroups,
    TableAt,
    TableName,
    TableSchema,
    checksum,
)

MANIFEST_MAGIC = b"TGM1"
ROW_BYTES_MIN = 8
"""Each row takes more bytes than this in a frame: Arrow keeps two offsets of 4 bytes for it."""

StepName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]{1,96}\Z")]
"""A name of the user's, of at most 64 characters, or a kind of call and a table."""
PLACE_MAX = 1_000
PlaceName: TypeAlias = Annotated[str, msgspec.Meta(max_length=PLACE_MAX)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]


class Component(msgspec.Struct, frozen=True):
    """One parallel step of the topology: its parallelism, and the frames of each instance from 0 on."""

    parallelism: Count
    instances: dict[str, tuple[FrameRef, ...]]


class Step(msgspec.Struct, frozen=True):
    """One call of the transaction that made the version: its name, its kind, its tables, and its measures.

    ``tables`` begins with its own; the others are those to which it may emit. ``parallelism`` is the number
    of its tasks, 0 if the driver staged it by itself. ``rows`` are the changes that it gave to be staged,
    before the last one of each key counted, and ``bytes`` those of their keys and values. ``seconds`` is the
    time that all its tasks took together in the merge with its state, or in its function; 0 for other calls.
    ``frames`` is the number of frames that have changes of its tables. ``ties`` is how often a row of
    ``apply_changes`` lost to a delete of its key with the same sequence; left out if there was none.
    """

    name: StepName
    call: str
    tables: tuple[TableName, ...]
    parallelism: Count
    rows: Count
    bytes: Count
    seconds: Seconds
    frames: Count
    ties: Count | msgspec.UnsetType = msgspec.UNSET


class TaskPlace(msgspec.Struct, frozen=True, array_like=True):
    """The executor in which a task ran, and its location: a hint for the placement of the next tasks."""

    executor: PlaceName
    location: PlaceName


class TableChange(NamedTuple):
    """The change of a table by a version that writes it, beside those of its rows.

    ``starts``: it empties the table first. ``expires``: its rows come as they are stored, and may have an
    expiry. ``stride``: that of rows which come with their key groups, if the version makes the table; 0: the
    options give it. ``follows``: it keeps a derived table equal to its base
    (``wal/staging/derived_guard.py``); of any other table it says nothing.
    """

    schema: TableSchema
    starts: bool = False
    expires: bool = False
    stride: int = 0
    follows: bool = False


class Manifest(msgspec.Struct, frozen=True):
    """All acks of the winning attempt: everything an apply needs to know.

    ``topology -> component -> instance -> frames``; ``tables`` are in index order, ``schemas`` by
    schema id. ``dropped`` are the tables that the version drops. ``state_calls`` has the call
    (``reduce``, ``update``) of each table that the batch continued from its state; it is left out if
    there is none, and earlier releases never wrote it. ``steps`` are the transaction's calls, in their order;
    likewise. ``places`` is where each task ran of the last version that executors staged; likewise.
    """

    namespace: str
    attempt: str
    version: Count
    key_groups: KeyGroups
    tables: tuple[TableName, ...]
    schemas: dict[str, TableSchema]
    table_schemas: dict[TableName, TableAt]
    topology: dict[str, dict[str, Component]]
    source_offsets: str
    dropped: Dropped = msgspec.UNSET
    state_calls: dict[TableName, str] | msgspec.UnsetType = msgspec.UNSET
    steps: tuple[Step, ...] | msgspec.UnsetType = msgspec.UNSET
    places: tuple[TaskPlace | None, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def has_rows(self) -> bool:
        """Whether the log had the version's rows: one that began from a backup has older versions without."""
        return bool(self.topology)

    def frames(self) -> list[FrameRef]:
        """Return all frames. A frame's index in this list is its ordinal within the version."""
        return [frame for *_, frame in self.placed()]

    def placed(self) -> Iterator[tuple[str, str, int, FrameRef]]:
        """Yield (topology, component, instance, frame) of every frame, in the order of ``frames``."""
        for topology, components in sorted(self.topology.items()):
            for name, component in sorted(components.items()):
                for instance, frames in sorted((int(i), f) for i, f in component.instances.items()):
                    for frame in frames:
                        yield topology, name, instance, frame

    def changes(self) -> dict[str, int]:
        """Count the changes per table."""
        changes = dict.fromkeys(self.tables, 0)
        for frame in self.frames():
            for table, rows in zip(frame.tables, frame.rows, strict=True):
                changes[self.tables[table]] += rows
        return changes

    def counts(self) -> dict[int, dict[str, int]]:
        """Count the changes per key group and table: what each seal must find."""
        counts: dict[int, dict[str, int]] = {}
        for frame in self.frames():
            for group, table, rows in zip(frame.groups, frame.tables, frame.rows, strict=True):
                of_group = counts.setdefault(group, {})
                name = self.tables[table]
                of_group[name] = of_group.get(name, 0) + rows
        return counts


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgpack_decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest's bytes, as they are staged.

    Raises: TidegateError when the manifest could not be applied. Nothing is decided from it.
    """
    if why := _impossible(manifest):
        msg = f"the manifest of version {manifest.version} cannot be right: {why}; nothing was decided"
        raise TidegateError(msg)
    body = _encoder.encode(manifest)
    return MANIFEST_MAGIC + checksum(body) + body


def manifest_digest(content: bytes) -> str:
    """Return BLAKE2b-128 of the manifest's bytes, hex: the digest by which Decided names it."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def decode_manifest(content: bytes, digest: str, where: str) -> Manifest:
    """Decode a manifest; ``where`` names the bytes' location in messages.

    A manifest that is returned can be listed, planned and applied. Raises: CorruptError, the bytes
    are not those that ``digest`` names, or their content is one that no writer produces;
    ConfigError, a newer release wrote it.
    """
    if manifest_digest(content) != digest:
        msg = f"{where}: these {len(content)} bytes are not the manifest {digest} that was decided"
        raise CorruptError(msg)
    start = len(MANIFEST_MAGIC) + CHECKSUM_BYTES
    body = content[start:]
    if content[: len(MANIFEST_MAGIC)] != MANIFEST_MAGIC:
        msg = f"{where}: manifest format {content[:4]!r} is not known to this release; upgrade tidegate"
        raise ConfigError(msg)
    if checksum(body) != content[len(MANIFEST_MAGIC) : start]:
        msg = f"{where}: the manifest's checksum does not fit its {len(body)} bytes"
        raise CorruptError(msg)
    try:
        manifest = _decoder.decode(body)
    except UNREADABLE as error:
        msg = f"{where}: the manifest cannot be read: {error}; {MEND}"
        raise CorruptError(msg) from error
    if why := _impossible(manifest):
        msg = f"{where}: the manifest of version {manifest.version} cannot be right: {why}; {MEND}"
        raise CorruptError(msg)
    return manifest


def _impossible(manifest: Manifest) -> str:
    """Return why no writer makes such a manifest, or ''. Queries and applies rely on this check."""
    if len(set(manifest.tables)) < len(manifest.tables):
        return "it names a table twice"
    for name in manifest.tables:
        table_at = manifest.table_schemas.get(name)
        if table_at is None or table_at.schema_id not in manifest.schemas:
            return f"table {name} has no schema"
    for name in manifest.dropped or ():
        if name in manifest.table_schemas:
            return f"it drops table {name} and has it"
    for name, table_at in manifest.table_schemas.items():
        if why := _impossible_table(manifest, table_at):
            return f"table {name} {why}"
    for topology, components in manifest.topology.items():
        for name, component in components.items():
            instances, parallelism = len(component.instances), component.parallelism
            if set(component.instances) != set(map(str, range(instances))):
                return f"component {topology}/{name} has instances that are not numbered from 0 on"
            if parallelism != instances:
                return f"component {topology}/{name} has parallelism {parallelism} and {instances} instances"
    steps = [step.name for step in manifest.steps or ()]
    if len(set(steps)) < len(steps):
        return "it names a step twice"
    strides = [manifest.table_schemas[name].apart for name in manifest.tables]
    seen = set()
    for topology, of, instance, frame in manifest.placed():
        why = _impossible_frame(frame, strides, manifest.key_groups)
        if frame.address in seen:
            why = "is listed twice"
        if why:
            return f"the frame at {frame.address} of {topology}/{of}/{instance} {why}"
        seen.add(frame.address)
    return ""


def _impossible_table(manifest: Manifest, at: TableAt) -> str:
    """Return why a table cannot be as its entry describes, or ''."""
    if at.start > manifest.version:
        return f"starts at version {at.start}"
    if manifest.key_groups % at.apart:
        return f"has the stride {at.stride}, and there are {manifest.key_groups} key groups"
    schema = manifest.schemas.get(at.schema_id)
    if schema is not None and schema != schema.grouped(at.apart):
        return f"has the stride {at.apart}, and values of format {schema.stored_format}"
    return ""


def _impossible_frame(frame: FrameRef, strides: Sequence[int], key_groups: int) -> str:
    """Return why a frame cannot be as its entry describes, or ''."""
    if not len(frame.groups) == len(frame.tables) == len(frame.rows):
        return (
            f"has {len(frame.groups)} key groups, {len(frame.tables)} tables and {len(frame.rows)} counts"
            " for its runs"
        )
    if max(frame.groups, default=0) >= key_groups:
        return f"has rows of key group {max(frame.groups)}, there are {key_groups}"
    if max(frame.tables, default=-1) >= len(strides):
        return f"has rows of table number {max(frame.tables)}, the version has {len(strides)}"
    if 0 in frame.rows:
        return "has a run without rows"
    runs = list(zip(frame.groups, frame.tables, strict=True))
    if not all(map(operator.lt, runs, runs[1:])):
        return "has runs that are not in the order of their key groups and tables"
    if any(group % strides[table] for group, table in runs):
        return "has runs of a table in key groups that are no multiple of its stride"
    if frame.changes * ROW_BYTES_MIN > frame.bytes:
        return f"has {frame.changes} rows in {frame.bytes} bytes"
    return ""
