"""The batch that runs, read from the files of its query's checkpoint, without Spark.

Spark passes a data source the checkpoint's path and a batch's number, and no offsets. It writes
``offsets/<number>`` before it plans a batch, and ``commits/<number>`` after the batch was committed.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import fs

from tidegate.base.source_offsets import file_offsets, fingerprint_of
from tidegate.errors import ConfigError
from tidegate.spark.batch import BatchContext

NOTE_BYTES = 64 * 1024
"""The bytes of a file source's note that are read at first; more are read if one batch took more files."""
SAFE = "Nothing was written. Put the query's own checkpoint back, or start the query with a new one"


def planned_batch(checkpoint: str) -> BatchContext:
    """Read the newest batch of this checkpoint, which is the one that runs. Its run is unknown here.

    The fingerprint is that of ``foreachBatch``, so that a query can move between the two. Raises:
    ConfigError: the files cannot be read, or are not those of a query that runs a batch now.
    """
    files, root = _files_at(checkpoint)
    try:
        lineage = json.loads(_text(files, f"{root}/metadata"))["id"]
        entries = files.get_file_info(fs.FileSelector(f"{root}/offsets"))
        number = max(int(file.base_name) for file in entries if file.base_name.isdecimal())
        version, _, *each = _text(files, f"{root}/offsets/{number}").split("\n")
        (committed,) = files.get_file_info([f"{root}/commits/{number}"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the checkpoint {checkpoint} has no batch that runs, as far as this process can read it"
            f" ({type(error).__name__}: {error}). {SAFE}; foreachBatch reads checkpoints by Spark"
        ) from None
    if committed.type != fs.FileType.NotFound:
        raise ConfigError(
            f"the checkpoint {checkpoint} has the file commits/{number} of its newest batch, so no batch of"
            f" it runs now. {SAFE}"
        )
    if version != "v1":
        raise ConfigError(
            f"{checkpoint} has offsets in the form {version}, of which tidegate knows v1 alone: nothing was"
            " written. Start a new checkpoint with spark.sql.streaming.offsetLog.formatVersion=1"
        )
    offsets = f"[{', '.join(each)}]"
    notes = [line for offset in file_offsets(offsets) for line in _noted(files, root, *offset)]
    return BatchContext(lineage, "", number, offsets, fingerprint_of(offsets, notes))


def _files_at(checkpoint: str) -> tuple[Any, str]:
    """Return the file system of a checkpoint, and its path there. Raises: ConfigError."""
    scheme, colon, path = checkpoint.partition(":")
    if not colon or "/" in scheme:
        return fs.LocalFileSystem(), posixpath.normpath(checkpoint)
    if scheme == "file":
        return fs.LocalFileSystem(), posixpath.normpath("/" + path.lstrip("/"))
    try:
        files, root = fs.FileSystem.from_uri(re.sub("^s3[an]:", "s3:", checkpoint))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(
            f"the checkpoint {checkpoint} cannot be read by PyArrow in the driver's Python: {error}."
            " Nothing was written. Take a checkpoint at a place that it reads, or foreachBatch, which reads"
            " it by Spark"
        ) from None
    return files, root.rstrip("/")


def _text(files: Any, path: str) -> str:
    with files.open_input_file(path) as file:
        return str(file.read().decode())


def _noted(files: Any, root: str, place: int, number: int) -> Iterator[str]:
    """Yield a file source's note of this offset: one line of JSON per file."""
    names = [f"{root}/sources/{place}/{number}", f"{root}/sources/{place}/{number}.compact"]
    for info in files.get_file_info(names):  # every tenth note repeats all earlier ones
        if info.type == fs.FileType.File:
            with files.open_input_file(info.path) as file:
                yield from _last_lines(file, info.size, number)


def _last_lines(file: Any, length: int, number: int) -> list[str]:
    """Read the lines of this offset: the last ones, so that earlier lines cost nothing (I11)."""
    window = NOTE_BYTES
    while True:
        start = max(length - window, 0)
        file.seek(start)
        text = file.read().decode(errors="replace")
        lines = text.rstrip("\n").split("\n")[1:]  # the first is the format's version, or torn
        mine = [line for line in lines if json.loads(line).get("batchId") == number]
        if start == 0 or len(mine) < len(lines):
            return mine
        window *= 4
