"""The records of the decision log, with the schemas of tables: their fields and their bytes.

A record's bytes (published in docs/storage-format.md)::

    1 byte   format, 1
    8 bytes  XXH3-64 of the body, big-endian
    n bytes  body: one JSON object; its field "kind" names the record

Records are plain data: reading one never runs code, even if an attacker wrote it. The types of the
fields bound their values: a value out of bounds cannot be decoded, so no later code has to check
(``wal/manifest.py`` has the manifests, ``wal/staging/acks.py`` the acks of tasks).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec
import xxhash

from tidegate.base.decoders import json_decoder
from tidegate.base.names import NAME
from tidegate.errors import ConfigError, CorruptError
from tidegate.keys.groups import KEY_GROUPS_MAX
from tidegate.wal.tokens import Tokens

FORMAT = 1
DECIDED_BYTES_MAX = 64 * 1024
"""A Decided record is always one record of at most this size."""
OFFSETS_BYTES_MAX = 16 * 1024
"""Longer source offsets are only in the manifest, and so are those for which the tables leave no room; the
fingerprint represents them in the record.
"""

COMPONENT = "sink"
"""The component of the tasks that stage a version: they share its key groups. Others are local states."""

UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""The errors of msgspec on hostile bytes: too deep nesting and bad UTF-8 are not DecodeErrors (T49)."""

CHECKSUM_BYTES = 8
HEAD_BYTES = 1 + CHECKSUM_BYTES
MEND = "restore the log from a copy, or save what the store shows: `tidegate relog`"
"""The remedy for a record or manifest that cannot be right, though its checksum fits."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A count, number or time (microseconds, to the year 2255): up to what JSON and Lua hold exactly."""
KeyGroups: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=KEY_GROUPS_MAX)]
TableName: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{NAME.pattern}\Z")]
"""Names become those of SQL tables, topics and keys: a log never yields any other character (T49)."""
Dropped: TypeAlias = tuple[TableName, ...] | msgspec.UnsetType
"""The tables that a version drops, sorted; unset if there are none."""


# -- origins of versions ----------------------------------------------------------------------


class BatchOrigin(msgspec.Struct, frozen=True, tag="batch", tag_field="from"):
    """One micro-batch of one checkpoint. Order within a lineage is (generation, batch_id)."""

    lineage: str
    generation: Count
    batch_id: Count
    fingerprint: str


class LoadOrigin(msgspec.Struct, frozen=True, tag="load", tag_field="from"):
    """A static DataFrame, once per token."""

    token: str


class ImportOrigin(msgspec.Struct, frozen=True, tag="import", tag_field="from"):
    """An exported version, once per digest."""

    digest: str


class RestoreOrigin(msgspec.Struct, frozen=True, tag="restore", tag_field="from"):
    """An older version's content, restored as a new version."""

    version: Count


Origin: TypeAlias = BatchOrigin | LoadOrigin | ImportOrigin | RestoreOrigin


# -- records ----------------------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """The fields of every record.

    ``prev_digest`` is the digest of the fold that the writer saw ('' for none).
    """

    namespace: str
    writer: str
    epoch: Count
    prev_digest: str


class Genesis(Record, frozen=True, kw_only=True, tag="genesis"):
    """The start of a namespace, whose uuid is ``namespace``."""

    key_groups: KeyGroups
    name: str
    created_at_us: Count


class Open(Record, frozen=True, kw_only=True, tag="open"):
    """A driver's takeover of the namespace at ``epoch``. ``lineage`` is the current one, or None if
    none is set.
    """

    lineage: str | None


class TableAt(msgspec.Struct, frozen=True):
    """A table at a version: its schema, and the version at which it was last emptied (0: never).

    ``expires`` is set, and true, from the first version on that gave the table's rows an expiry:
    rows with an expiry may remain after the table has lost its time to live. ``stride`` is that of a table
    with fewer key groups than the namespace: a key's is the namespace's, rounded down to a multiple of it.
    ``of`` is the base table of a derived one; its schema has the definition.
    """

    schema_id: str
    start: Count = 0
    expires: bool | msgspec.UnsetType = msgspec.UNSET
    stride: Annotated[int, msgspec.Meta(ge=2, le=KEY_GROUPS_MAX)] | msgspec.UnsetType = msgspec.UNSET
    of: TableName | msgspec.UnsetType = msgspec.UNSET

    @property
    def apart(self) -> int:
        """The distance between two key groups of the table: its stride, or 1."""
        return self.stride or 1


class Decided(Record, frozen=True, kw_only=True, tag="decided"):
    """The commit point of one version. ``dropped``: the tables that it drops, and that ``tables`` lacks."""

    attempt: str
    version: Count
    origin: Origin
    base_version: Count
    manifest_address: str
    manifest_digest: str
    tables: dict[TableName, TableAt]
    parallelism: dict[str, dict[str, Count]]
    source_offsets: str
    decided_at_us: Count
    dropped: Dropped = msgspec.UNSET


class Adopted(Record, frozen=True, kw_only=True, tag="adopted"):
    """A takeover by a new checkpoint, at an operator's request."""

    lineage: str


class Rewound(Record, frozen=True, kw_only=True, tag="rewound"):
    """The permission, after a restore, to replay the undone batches of this lineage."""

    lineage: str
    generation: Count


class StoreAdded(Record, frozen=True, kw_only=True, tag="store_added"):
    """The addition of a store that follows this log."""

    store: str


class StoreRemoved(Record, frozen=True, kw_only=True, tag="store_removed"):
    """The removal of a store that followed this log."""

    store: str


class DecidedVersion(msgspec.Struct, frozen=True):
    """The fold's entry for one decided version.

    ``digest`` is the digest of the fold just after its Decided; the store's pointer carries it.
    """

    version: Count
    attempt: str
    origin: Origin
    base_version: Count
    manifest_address: str
    manifest_digest: str
    decided_at_us: Count
    digest: str


if TYPE_CHECKING:
    Once: TypeAlias = Collection[str]
else:
    Once = tuple[str, ...]  # what a decoder makes


class Folded(msgspec.Struct, frozen=True):
    """The state of the decision log: ``wal/fold.py`` computes it and a Summary holds it.

    ``recent`` holds the last 1,000 decided versions, oldest first. ``batches`` holds, for each
    lineage that ever was the current one, (generation, batch_id) of its last decided batch.
    ``dropped_at`` is the last version that dropped a table: no row of it or of an older version is of a table
    that ``tables`` lacks and that is made later. Unset: no version has dropped a table.
    """

    namespace: str
    name: str
    key_groups: KeyGroups
    digest: str
    epoch: Count = 0
    writer: str = ""
    lineage: str | None = None
    generation: Count = 0
    batches: dict[str, tuple[Count, Count]] = {}
    last_version: Count = 0
    decided_at_us: Count = 0
    tables: dict[TableName, TableAt] = {}
    once: Once = ()
    stores: tuple[str, ...] = ()
    recent: tuple[DecidedVersion, ...] = ()
    dropped_at: Count | msgspec.UnsetType = msgspec.UNSET

    @property
    def first_start(self) -> int:
        """The start of a table that is made next: rows of a dropped table of its name do not count."""
        return self.dropped_at or 0

    @property
    def last_batch(self) -> tuple[int, int] | None:
        """(generation, batch_id) of the last batch decided in the current lineage."""
        return None if self.lineage is None else self.batches.get(self.lineage)

    @property
    def is_rewound(self) -> bool:
        """Whether no batch of any lineage was decided since the last Rewound."""
        return all(generation < self.generation for generation, _ in self.batches.values())


class Summary(Record, frozen=True, kw_only=True, tag="summary"):
    """The folded state at its own position, so that opening costs only the recent records."""

    state: Folded


AnyRecord: TypeAlias = Genesis | Open | Decided | Adopted | Rewound | StoreAdded | StoreRemoved | Summary


def _plain(value: object) -> object:
    if isinstance(value, Tokens):
        return list(value)
    raise NotImplementedError(type(value))


_json = msgspec.json.Encoder(order="deterministic", enc_hook=_plain)
_record_decoder: msgspec.json.Decoder[AnyRecord] = json_decoder(AnyRecord)


class _Kind(msgspec.Struct):
    kind: str


_kind_decoder = json_decoder(_Kind)
KINDS = frozenset(
    str(cls.__struct_config__.tag)
    for cls in (Genesis, Open, Decided, Adopted, Rewound, StoreAdded, StoreRemoved, Summary)
)


def checksum(content: bytes | memoryview) -> bytes:
    """Return XXH3-64 of the content, 8 bytes, big-endian."""
    return xxhash.xxh3_64_digest(content)


def decided_bytes(record: Decided) -> int:
    """Return the length of the record's encoding, which may be above the limit."""
    return HEAD_BYTES + len(_json.encode(record))


def encode_record(record: AnyRecord) -> bytes:
    """Encode a record; the same record always gives the same bytes.

    Raises: ConfigError when a Decided is larger than one log message may be (too many tables).
    """
    body = _json.encode(record)
    size = HEAD_BYTES + len(body)
    if isinstance(record, Decided) and size > DECIDED_BYTES_MAX:
        msg = (
            f"the decision of version {record.version} takes {size} bytes, {DECIDED_BYTES_MAX} are"
            f" allowed: {len(record.tables)} tables are too many for one namespace, use several"
        )
        raise ConfigError(msg)
    return bytes([FORMAT]) + checksum(body) + body


def decode_record(content: bytes, where: str) -> AnyRecord:
    """Decode a record; ``where`` names the bytes' location in messages.

    Raises: CorruptError, the checksum or the body does not fit; ConfigError, a format or a kind of
    record that this release does not know (never ignored: a newer release wrote it).
    """
    if len(content) <= 1 + CHECKSUM_BYTES:
        msg = f"{where}: a record of {len(content)} bytes is too short"
        raise CorruptError(msg)
    body = content[1 + CHECKSUM_BYTES :]
    # The checksum first: a record of any format has one that fits. The bytes of another program have none.
    if checksum(body) != content[1 : 1 + CHECKSUM_BYTES]:
        msg = f"{where}: the record's checksum does not fit its {len(body)} bytes"
        raise CorruptError(msg)
    if content[0] != FORMAT:
        msg = f"{where}: record format {content[0]} is not known to this release; upgrade tidegate"
        raise ConfigError(msg)
    try:
        kind = _kind_decoder.decode(body).kind
        if kind not in KINDS:
            msg = f"{where}: record kind {kind!r} is not known to this release; upgrade tidegate"
            raise ConfigError(msg)
        record = _record_decoder.decode(body)
    except UNREADABLE as error:
        msg = f"{where}: the record cannot be read: {error}; {MEND}"
        raise CorruptError(msg) from error
    return record


def digest_after(digest: str, content: bytes) -> str:
    """Return the digest of the fold after one more valid record: BLAKE2b-128 over both, hex."""
    return hashlib.blake2b(digest.encode() + content, digest_size=16).hexdigest()


# -- schemas and frames --------------------------------------------------------------------------


STATE_VERSION_MAX = 2**31 - 1
"""The largest version of a state."""
JSON_RENAMED = "json_renamed"
"""The format of ``json`` values with a renamed column: releases that know no ``stored`` stop at it."""
GROUPED = "grouped_"
"""The start of the format of a table with a stride."""
JSON_STATES = "json_states"
"""The format of a table with rows of ``older`` state versions: releases that know none stop at it."""


class Column(msgspec.Struct, frozen=True):
    """A column's name and its type in Spark's simple form (``bigint``, ``decimal(10,2)``).

    ``stored`` is the first name of a renamed column, which the rows have.
    """

    name: str
    type: str
    stored: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def field(self) -> str:
        """The column's field in the objects of stored ``json`` values."""
        return self.stored or self.name


class StateColumns(msgspec.Struct, frozen=True):
    """The value columns of an older state version. Their fields are in no other version's rows."""

    version: Annotated[int, msgspec.Meta(ge=1, le=STATE_VERSION_MAX)]
    value: tuple[Column, ...]


class Aggregate(msgspec.Struct, frozen=True):
    """One value column of a derived table. ``column`` '': a count of rows.

    Of the rows in the order of column ``by`` (missing: of ``column``), ``top`` takes the last ``rows``.
    """

    name: str
    kind: Literal["count", "sum", "avg", "min", "max", "first", "last", "distinct", "top"]
    column: str = ""
    by: str | msgspec.UnsetType = msgspec.UNSET
    rows: Annotated[int, msgspec.Meta(ge=1)] | msgspec.UnsetType = msgspec.UNSET

    @property
    def order(self) -> tuple[str, ...]:
        """The columns in whose order the group's rows are kept, the last one ``column``; () without one."""
        if self.kind in ("count", "sum", "avg"):
            return ()
        return (self.by, self.column) if self.by and self.by != self.column else (self.column,)


class Definition(msgspec.Struct, frozen=True):
    """``of`` is the base table, ``key`` the columns that group its rows, ``where`` a boolean column or ''.

    Rows with a null in ``key``, and with a ``where`` those for which it is not true, take no part.
    """

    of: TableName
    key: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    where: str = ""

    @property
    def values(self) -> tuple[str, ...]:
        """The columns whose values are added up or counted, each once, in the order of their totals."""
        return tuple(dict.fromkeys(each.column for each in self.aggregates if each.column and not each.order))

    @property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """The orders in which a group's rows are kept, each once."""
        return tuple(dict.fromkeys(each.order for each in self.aggregates if each.order))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the base table that the definition uses."""
        ordered = [column for order in self.orders for column in order]
        return tuple(dict.fromkeys([*self.key, *self.values, *ordered, *filter(None, [self.where])]))


class TableSchema(msgspec.Struct, frozen=True):
    """The encoding of a table's keys and values.

    ``value_format`` is ``json`` (an object of ``value`` columns), ``json_renamed`` (the same, where a
    column is ``stored`` under another name), ``json_states`` (the same, with rows of ``older`` state
    versions) or ``bytes`` (one column, unchanged). ``state_version`` is missing if it is 1.

    ``stored_format`` begins with ``GROUPED`` if the table has a stride (``TableAt``), and is ``value_format``
    otherwise: releases that know no stride would look for keys in other key groups, and stop at it.
    ``derived`` is the definition of a derived table.
    """

    key: tuple[Column, ...]
    value: tuple[Column, ...]
    stored_format: str = msgspec.field(default="json", name="value_format")
    state_version: Annotated[int, msgspec.Meta(ge=2, le=STATE_VERSION_MAX)] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    older: tuple[StateColumns, ...] | msgspec.UnsetType = msgspec.UNSET
    derived: Definition | msgspec.UnsetType = msgspec.UNSET

    @property
    def value_format(self) -> str:
        return self.stored_format.removeprefix(GROUPED)

    def grouped(self, stride: int) -> TableSchema:
        """Return the schema as it is stored for a table with this stride."""
        stored = self.value_format if stride == 1 else GROUPED + self.value_format
        return self if stored == self.stored_format else msgspec.structs.replace(self, stored_format=stored)

    @property
    def key_types(self) -> list[str]:
        return [column.type for column in self.key]

    @property
    def version(self) -> int:
        """The version of the state that calls write."""
        return self.state_version or 1

    @property
    def states(self) -> dict[int, tuple[Column, ...]]:
        """The value columns of each state version that rows may have, this one last."""
        return {one.version: one.value for one in self.older or ()} | {self.version: self.value}

    @property
    def columns(self) -> tuple[Column, ...]:
        """The value columns of all rows: column ``n`` of an older version 1 is called ``n@1``."""
        older = (
            Column(f"{column.name}@{one.version}", column.type, column.field)
            for one in self.older or ()
            for column in one.value
        )
        return (*self.value, *older)

    @property
    def schema_id(self) -> str:
        """16 hex digits, the same for the same schema everywhere."""
        return hashlib.blake2b(_json.encode(self), digest_size=8).hexdigest()


class FrameRef(msgspec.Struct, frozen=True, array_like=True):
    """One durable frame: its address, its size, the runs it holds.

    ``groups[i], tables[i], rows[i]`` describe run i: the number of changes of one table (an index
    into the manifest's tables) in one key group, in row order.
    """

    address: str
    bytes: Count
    checksum: str
    groups: tuple[Count, ...]
    tables: tuple[Count, ...]
    rows: tuple[Count, ...]

    @property
    def changes(self) -> int:
        return sum(self.rows)
