"""Source offsets in the form of Spark's offset log, and whether they have passed a record. Pure.

A batch's offsets are printed as ``[{"orders":{"0":42}}, -, 7]``, one for each source: ``-`` where a
source has none yet. A Kafka source's are, by topic and partition, the offset of the next record to
read.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tidegate.base.text import brief
from tidegate.errors import ConfigError

Offsets = Mapping[str, Mapping[int, int] | Mapping[str, int]]
"""A record's offset by topic and partition, as a Kafka producer gets it after the write."""


def offsets_in(text: str) -> Iterator[Any]:
    """Yield the sources' offsets in order; None where a source has none yet. Stops where it is not JSON."""
    decoder, rest = json.JSONDecoder(), text.strip().removeprefix("[")
    while rest and not rest.startswith("]"):
        if rest.startswith("-") and not rest[1:2].isdigit():
            offset, end = None, 1
        else:
            try:
                offset, end = decoder.raw_decode(rest)
            except ValueError:
                return
        yield offset
        rest = rest[end:].lstrip(", ")


def file_offsets(offsets: str) -> Iterator[tuple[int, int]]:
    """Yield the place of each file source, and its newest offset.

    A file source's offset is a counter, with the same numbers for other files (T5). The file
    ``sources/<place>/<offset>`` of the checkpoint notes the files that it stands for.
    """
    for place, offset in enumerate(offsets_in(offsets)):
        if isinstance(offset, dict) and list(offset) == ["logOffset"]:
            yield place, offset["logOffset"]


def fingerprint_of(offsets: str, notes: Iterable[str]) -> str:
    """Return the digest of a batch's source offsets, and of the notes of the files that they stand for."""
    return hashlib.blake2b("\n".join([offsets, *notes]).encode(), digest_size=16).hexdigest()


class SourceKind(enum.Enum):
    """The kind of a streaming source, as far as the form of its offsets shows it."""

    KAFKA = "a Kafka source"
    FILES = "a file source"
    DELTA = "a Delta table"
    TIDEGATE = "a stream of tidegate's"
    NUMBER = "a source that counts, such as rate"
    OTHER = "a source of another kind"


def kind_of(offset: object) -> SourceKind:
    """Return the kind of source that has such an offset.

    >>> kind_of({"orders": {"0": 42}}).name, kind_of({"logOffset": 3}).name, kind_of(7).name
    ('KAFKA', 'FILES', 'NUMBER')
    """
    if isinstance(offset, int):
        return SourceKind.NUMBER
    if not isinstance(offset, dict) or not offset:
        return SourceKind.OTHER
    for number, history, kind in (
        ("logOffset", set(), SourceKind.FILES),
        ("version", {"uuid", "digest"}, SourceKind.TIDEGATE),
    ):
        if set(offset) - history == {number} and type(offset[number]) is int:
            return kind
    if "reservoirId" in offset and "reservoirVersion" in offset:
        return SourceKind.DELTA
    of_topics = all(
        isinstance(partitions, dict)
        and partitions
        and all(str(number).isdecimal() and type(end) is int for number, end in partitions.items())
        for partitions in offset.values()
    )
    return SourceKind.KAFKA if of_topics else SourceKind.OTHER


def sources_in(text: str) -> list[Any] | None:
    """Return the offset of each source, None for one without; None: the text is not all in that form.

    >>> sources_in('[{"orders":{"0":42}}, -, 7]'), sources_in("[Offset(7)]")
    ([{'orders': {'0': 42}}, None, 7], None)
    """
    sources = list(offsets_in(text))
    parts = ("-" if each is None else json.dumps(each, separators=(",", ":")) for each in sources)
    whole = "".join(text.split()) == f"[{','.join(parts)}]"
    return sources if whole and sources else None


def _partition_of(partition: object) -> int:
    """Return the number of a partition, given as a number or a text of digits; -1: it is none."""
    if isinstance(partition, str):
        return int(partition) if partition.isdecimal() and len(partition) <= 10 else -1
    return partition if type(partition) is int and partition < 2**31 else -1


def checked_offsets(value: object) -> dict[tuple[str, int], int]:
    """Return the records' offsets by topic and partition. Raises: ConfigError: they have another form.

    >>> checked_offsets({"orders": {0: 41}})
    {('orders', 0): 41}
    """
    offsets = {}
    if isinstance(value, Mapping):
        for topic, partitions in value.items():
            for partition, offset in partitions.items() if isinstance(partitions, Mapping) else ():
                number = _partition_of(partition)
                if isinstance(topic, str) and number >= 0 and type(offset) is int and 0 <= offset < 2**63:
                    offsets[topic, number] = offset
        if offsets and len(offsets) == sum(map(len, value.values())):
            return offsets
    raise ConfigError(
        f"offsets is {brief(value)}; it must be the records' offsets by topic and partition, as in"
        ' {"orders": {0: 41}}'
    )


def passed(text: str, offsets: Mapping[tuple[str, int], int]) -> bool:
    """Return whether a batch that ended at these offsets, or one before it, has read all the records.

    Where several sources read one topic, each of them must have.

    >>> ends = '[{"orders":{"0":42}}]'
    >>> passed(ends, {("orders", 0): 41}), passed(ends, {("orders", 0): 42})
    (True, False)
    """
    ends: dict[tuple[str, int], int] = {}
    for source in offsets_in(text):
        for topic, partitions in source.items() if isinstance(source, dict) else ():
            for partition, end in partitions.items() if isinstance(partitions, dict) else ():
                if str(partition).isdecimal() and type(end) is int:
                    topic_partition = topic, int(partition)
                    ends[topic_partition] = min(end, ends.get(topic_partition, end))
    return all(ends.get(topic_partition, 0) > offset for topic_partition, offset in offsets.items())
