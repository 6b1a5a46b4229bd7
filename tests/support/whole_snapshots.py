"""A reader beside a writer that is killed: it takes snapshot after snapshot, and none may be torn."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tidegate

EVERY_S, AGAIN_S = 0.005, 0.05


@contextlib.contextmanager
def whole_snapshots(store: str, namespace: str, is_whole: Callable[[Any], bool]) -> Iterator[list[int]]:
    """Read snapshots until the end; yields the list of their versions, and prints how many there were.

    Each is asked of ``is_whole``. Versions only grow, also over starts of the writer.
    """
    versions: list[int] = []
    torn: list[int] = []
    ended = threading.Event()

    def read(gate: tidegate.Gate) -> None:
        with gate.snapshot() as snapshot:
            versions.append(snapshot.version)
            if not is_whole(snapshot):
                torn.append(snapshot.version)

    def poll() -> None:
        while not ended.is_set():
            with (
                contextlib.suppress(tidegate.ConfigError),  # the namespace is not there yet
                tidegate.connect(store, namespace) as gate,
            ):
                while not ended.wait(EVERY_S):
                    read(gate)
            ended.wait(AGAIN_S)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield versions
    finally:
        ended.set()
        thread.join()
        print(f"{len(versions)} snapshots of {len(set(versions))} versions, {len(torn)} torn")
    assert not torn
    assert versions == sorted(versions)
