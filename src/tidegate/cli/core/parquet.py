"""Rows as a Parquet file: streamed, and visible only once it is whole."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tidegate.base.files import NotRegularError, open_private, open_regular
from tidegate.base.text import first_line
from tidegate.errors import ConfigError
from tidegate.values.decode import Value, Values

ROWS_AT_ONCE = 10_000
MAGIC = b"PAR1"
"""The first bytes of a Parquet file."""


def refuse_another(path: Path, begins: bytes, kind: str) -> None:
    """Refuse to write over a file that is not of this kind, such as a store's own. Raises: ConfigError."""
    is_another = False
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            is_another = file.read(len(begins)) not in (begins, b"")
    except NotRegularError:
        is_another = True
    except OSError:
        pass  # there is none, or the write says why it cannot be made
    if is_another:
        raise ConfigError(f"{path} is there and is no {kind}; nothing was written: give another path")


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that is renamed to ``path`` at the end; nothing is left there after an error.

    Raises: ConfigError, it cannot be created, or is there and is no Parquet file.
    """
    if not path.name or path.is_dir():
        raise ConfigError(f"{path} is a folder: give the path of a file")
    refuse_another(path, MAGIC, "Parquet file")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        fd = open_private(beside, os.O_WRONLY | os.O_TRUNC)
        with os.fdopen(fd, "wb") as file:  # not by its name, which pyarrow may take for a URL
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise ConfigError(f"{path} cannot be written: {why}; give another path") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def write_parquet(path: Path, values: Values, rows: Iterable[tuple[Any, Value]]) -> int:
    """Write these rows in batches; return their number. Raises: ConfigError, it cannot be written."""
    return write_tables(path, values.arrow_schema, values.to_arrow, rows)


def write_tables(path: Path, schema: Any, to_arrow: Callable[[list[Any]], Any], rows: Iterable[Any]) -> int:
    """Write rows of any kind, which ``to_arrow`` converts to a table of ``schema``.

    Raises: ConfigError, as ``whole_file``; or Parquet has no form for a column, such as a struct of no field.
    """
    from pyarrow import ArrowException, parquet

    given, written = iter(rows), 0
    try:
        with whole_file(path) as place, parquet.ParquetWriter(place, schema) as file:
            while some := list(itertools.islice(given, ROWS_AT_ONCE)):
                file.write_table(to_arrow(some))
                written += len(some)
    except ArrowException as error:
        msg = f"{path} was not written, Parquet cannot hold these columns: {first_line(error)}; see --json"
        raise ConfigError(msg) from None
    return written


def read_column(path: Path, name: str) -> list[str]:
    """Return the values of the column of this name, or with the most underscores before it.

    Raises: ConfigError, it cannot be read, or has no such column, as text.
    """
    from pyarrow import ArrowException, parquet, types

    try:
        with os.fdopen(open_regular(path), "rb") as content, parquet.ParquetFile(content) as file:
            schema = file.schema_arrow
            like = [each for each in schema.names if each.lstrip("_") == name]
            found_as = max(like, key=len, default="")
            if not like or not types.is_string(schema.field(found_as).type):
                raise ConfigError(f"{path} has no column _{name} or {name}: is it a file of refused rows?")
            if not file.num_row_groups:  # pyarrow 19 cannot read a column of a file without rows
                return []
            values: list[str] = file.read([found_as])[found_as].drop_null().to_pylist()
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise ConfigError(
            f"{path} cannot be read: {why}; give a file of `tidegate quarantine export`"
        ) from None
    except ArrowException as error:
        raise ConfigError(
            f"{path} is no whole Parquet file ({error}): give a file of `tidegate quarantine export`"
        ) from None
    return values
