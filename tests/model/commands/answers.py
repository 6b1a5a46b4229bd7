"""Answers that are kept: of checks, and of functions of production that compute and write nothing.

A key holds all that the answer depends on, so that a kept answer is the one that would be computed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tidegate.base import failpoints
from tidegate.committers.transfer.backup import backup, check
from tidegate.reader.leases.keeper import LeaseKeeper
from tidegate.spark.state import update
from tidegate.wal.staging import quarantine, validate

ANSWERS_MAX = 30_000


class Answers:
    """Answers by key. All are forgotten when there are too many. An error is no answer."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._kept:
            if len(self._kept) >= ANSWERS_MAX:
                self._kept.clear()
            self._kept[key] = make()
        return self._kept[key]


_bad_rows, _rehearse = validate.bad_rows, check.rehearse
_of_rows, _of_backups = Answers(), Answers()


def bad_rows(batch: Any, spec: Any) -> list[Any]:
    """As in production, by the rows and those fields of the specification that it reads."""
    key = (
        *(tuple(batch.schema.names), batch.serialize().to_pybytes(), spec.key_types, spec.key_names),
        *(spec.key_bytes_max, spec.value_bytes_max, spec.quarantine, spec.time_columns),
    )
    return list(_of_rows.get(key, lambda: _bad_rows(batch, spec)))


def files_in(folder: str | Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, by path."""
    paths = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]  # noqa: PTH118
    return {path: Path(path).read_bytes() for path in sorted(paths)}


def rehearsing(clock: Any) -> Callable[..., None]:
    """As in production, by the backup's files and the time. Its ids are not used afterwards.

    A rehearsal that may be killed is not kept: each of its failpoints has to be passed.
    """

    def rehearse(folder: Path, chain: Any, version: int, *, sample: bool) -> None:
        ids = clock.ids
        try:
            if failpoints._armed is not None and failpoints._armed.listener is not None:
                _rehearse(folder, chain, version, sample=sample)
            else:
                key = (repr(chain), version, sample, clock.us, repr(files_in(folder)))
                _of_backups.get(key, lambda: _rehearse(folder, chain, version, sample=sample))
        finally:
            clock.ids = ids

    return rehearse


@contextlib.contextmanager
def kept(clock: Any) -> Iterator[None]:
    """Keep answers of production's functions. No lease is renewed: time stands still while it is held."""
    with contextlib.ExitStack() as patched:
        for module in (validate, quarantine, update):
            patched.enter_context(mock.patch.object(module, "bad_rows", bad_rows))
        for module in (check, backup):
            patched.enter_context(mock.patch.object(module, "rehearse", rehearsing(clock)))
        patched.enter_context(mock.patch.object(LeaseKeeper, "_renew_later", return_value=None))
        yield
