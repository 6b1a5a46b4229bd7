"""Source offsets in the form of Spark's offset log, and whether they have passed a record. Pure.

A batch's offsets are printed as ``[{"orders":{"0":42}}, -, 7]``, one for each source: ``-`` where a
source has none yet. A Kafka source's are, by topic and partition, the offset of the next record to
read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

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


def checked_offsets(value: object) -> dict[tuple[str, int], int]:
    """Return the records' offsets by topic and partition. Raises: ConfigError: they have another form.

    >>> checked_offsets({"orders": {0: 41}})
    {('orders', 0): 41}
    """
    offsets = {}
    if isinstance(value, Mapping):
        for topic, partitions in value.items():
            for partition, offset in partitions.items() if isinstance(partitions, Mapping) else ():
                number = int(partition) if str(partition).isdecimal() else -1
                if isinstance(topic, str) and number >= 0 and type(offset) is int and offset >= 0:
                    offsets[topic, number] = offset
        if offsets and len(offsets) == sum(map(len, value.values())):
            return offsets
    raise ConfigError(
        f"offsets is {value!r}; it must be the records' offsets by topic and partition, as in"
        ' {"orders": {0: 41}}'
    )


def passed(text: str, wanted: Mapping[tuple[str, int], int]) -> bool:
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
                    at = topic, int(partition)
                    ends[at] = min(end, ends.get(at, end))
    return all(ends.get(at, 0) > offset for at, offset in wanted.items())
