"""Rows as a Parquet file: streamed, and there only when it is whole."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tidegate.errors import ConfigError
from tidegate.values import Value, Values

ROWS_AT_ONCE = 10_000


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A place to write to, which becomes ``path`` at the end; nothing is left there after an error.

    ConfigError: it cannot be made.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield beside
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        beside.replace(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {os.strerror(error.errno) if error.errno else error}"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def write_parquet(path: Path, values: Values, rows: Iterable[tuple[Any, Value]]) -> int:
    """Write these rows, so many at a time; how many they were. ConfigError: it cannot be written."""
    from pyarrow import parquet

    given, written = iter(rows), 0
    with whole_file(path) as place, parquet.ParquetWriter(place, values.arrow_schema) as file:
        while some := list(itertools.islice(given, ROWS_AT_ONCE)):
            file.write_table(values.to_arrow(some))
            written += len(some)
    return written
