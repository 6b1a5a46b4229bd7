"""Patches: some columns of a row are set, the others stay as they are at the base version.

The columns are taken over as their JSON stands, whatever their types: nothing is decoded and
written anew, so what a patch does not name stays byte for byte. No pyspark is imported here.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from tidegate.decoders import json_decoder
from tidegate.errors import CorruptError

_decoder = json_decoder(dict[str, msgspec.Raw])
_NULL = b"null"


class PatchedTable(msgspec.Struct, frozen=True):
    """A table written by ``patch`` in this batch: its index, name, start at the base, all its columns."""

    index: int
    name: str
    start: int
    columns: tuple[str, ...]


def patched(held: Any, table: PatchedTable, rows: Any) -> Any:
    """Stored values: ``held`` (null: no state) under the columns that the rows' values name."""
    names = [(name, msgspec.json.encode(name) + b":") for name in table.columns]
    values = []
    for state, value in zip(held.to_pylist(), rows["v"].to_pylist(), strict=True):
        try:
            fields = {} if state is None else _decoder.decode(state)
        except msgspec.MsgspecError as error:
            msg = f"table {table.name}: the stored value {state[:60]!r} is no JSON object: {error}"
            raise CorruptError(msg) from error
        fields.update(_decoder.decode(memoryview(value)[1:]))
        pieces = [lead + bytes(fields[name]) if name in fields else lead + _NULL for name, lead in names]
        values.append(b"+{" + b",".join(pieces) + b"}")
    return pa.array(values, pa.binary())
