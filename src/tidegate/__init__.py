"""Numbered, atomic versions of Spark's micro-batches in external stores; here, their readers.

The names below need neither Spark nor Java, and are imported on first use. Writers import
``tidegate.spark``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate import errors as errors
    from tidegate.errors import BadRecordError as BadRecordError
    from tidegate.errors import ConfigError as ConfigError
    from tidegate.errors import ConflictError as ConflictError
    from tidegate.errors import CorruptError as CorruptError
    from tidegate.errors import FencedError as FencedError
    from tidegate.errors import FunctionError as FunctionError
    from tidegate.errors import LineageError as LineageError
    from tidegate.errors import OutcomeUnknownError as OutcomeUnknownError
    from tidegate.errors import SnapshotExpiredError as SnapshotExpiredError
    from tidegate.errors import StoreLostError as StoreLostError
    from tidegate.errors import StoreNotVerifiedError as StoreNotVerifiedError
    from tidegate.errors import StoreRemovedError as StoreRemovedError
    from tidegate.errors import StoreUnavailableError as StoreUnavailableError
    from tidegate.errors import TidegateError as TidegateError
    from tidegate.errors import VersionRegressedError as VersionRegressedError
    from tidegate.errors import WaitTimeoutError as WaitTimeoutError
    from tidegate.errors import WalGapError as WalGapError
    from tidegate.errors import WalUnavailableError as WalUnavailableError
    from tidegate.options import Options as Options
    from tidegate.options import SinkOptions as SinkOptions
    from tidegate.reader.changes import Changes as Changes
    from tidegate.reader.changes import WrittenRow as WrittenRow
    from tidegate.reader.diff import Change as Change
    from tidegate.reader.diff import Diff as Diff
    from tidegate.reader.diff import DiffCounts as DiffCounts
    from tidegate.reader.gate import Gate as Gate
    from tidegate.reader.mirror.mirror import Mirror as Mirror
    from tidegate.reader.mirror.view import MirroredTable as MirroredTable
    from tidegate.reader.mirror.view import MirrorView as MirrorView
    from tidegate.reader.open_gate import connect as connect
    from tidegate.reader.open_gate import connect_mirror as connect_mirror
    from tidegate.reader.rules import VersionInfo as VersionInfo
    from tidegate.reader.snapshot import Snapshot as Snapshot
    from tidegate.reader.table import Scan as Scan
    from tidegate.reader.table import Table as Table
    from tidegate.sinks.rules.version_ref import VersionRef as VersionRef
    from tidegate.wal.manifest import Step as Step

    __version__: str

_HOME = {
    "Gate": "tidegate.reader.gate",
    **dict.fromkeys(("connect", "connect_mirror"), "tidegate.reader.open_gate"),
    **dict.fromkeys(("Changes", "WrittenRow"), "tidegate.reader.changes"),
    **dict.fromkeys(("Change", "Diff", "DiffCounts"), "tidegate.reader.diff"),
    "Mirror": "tidegate.reader.mirror.mirror",
    **dict.fromkeys(("MirroredTable", "MirrorView"), "tidegate.reader.mirror.view"),
    **dict.fromkeys(("Scan", "Table"), "tidegate.reader.table"),
    "Snapshot": "tidegate.reader.snapshot",
    **dict.fromkeys(("Options", "SinkOptions"), "tidegate.options"),
    "Step": "tidegate.wal.manifest",
    "VersionInfo": "tidegate.reader.rules",
    "VersionRef": "tidegate.sinks.rules.version_ref",
    **dict.fromkeys(
        (
            *("BadRecordError", "ConfigError", "ConflictError", "CorruptError", "FencedError"),
            *("FunctionError", "LineageError", "OutcomeUnknownError", "SnapshotExpiredError"),
            *("StoreLostError", "StoreNotVerifiedError", "StoreRemovedError"),
            *("StoreUnavailableError", "TidegateError", "VersionRegressedError", "WaitTimeoutError"),
            *("WalGapError", "WalUnavailableError"),
        ),
        "tidegate.errors",
    ),
}
"""The module of each public name."""

__all__ = [*sorted(_HOME), "__version__", "errors"]  # noqa: PLE0604 - all are text


if not TYPE_CHECKING:  # a type checker would take any name for a public one

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            value = getattr(importlib.import_module(_HOME[name]), name)
        elif name == "errors":
            value = importlib.import_module("tidegate.errors")
        elif name == "__version__":
            value = importlib.import_module("importlib.metadata").version("tidegate")
        else:
            raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
