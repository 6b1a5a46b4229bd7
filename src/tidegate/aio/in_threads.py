"""The reads of an event loop's gate that run in threads: diffs, and the rows that a version wrote.

Both read in long steps and compute with Arrow. A gate of threads makes them (``tidegate.connect``). It is
connected at the first of them, and each step runs in a thread of the loop (``asyncio.to_thread``).
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tidegate.errors import ConfigError, proven_final
from tidegate.reader.changes import Changes as BlockingChanges
from tidegate.reader.changes import WrittenRow
from tidegate.reader.diff import Change, DiffCounts
from tidegate.reader.diff import Diff as BlockingDiff
from tidegate.reader.gate import Gate as BlockingGate
from tidegate.reader.table import OfProcess

if TYPE_CHECKING:
    from typing_extensions import Self

ROWS_AT_ONCE = 500
"""The number of rows that one step gives at most."""


async def to_the_end(closing: Coroutine[Any, Any, None]) -> None:
    """Close all of it, even if the closing task is cancelled: nobody can close it again."""
    task = asyncio.get_running_loop().create_task(closing)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])  # each part of it has its own limit
        raise


class GateInThreads:
    """The gate of threads behind one of an event loop. It is connected at its first use, once.

    Calls that come while it is connected share the result, or the error, as in ``reader/spaces.py``.
    """

    def __init__(self, connect: Callable[[], BlockingGate]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._opening: Future[BlockingGate] | None = None
        self._gate: BlockingGate | None = None
        self._closed = False

    def gate(self) -> BlockingGate:
        """Return the gate. Blocks: call it in a thread. Raises: as ``tidegate.connect``."""
        own: Future[BlockingGate] | None = None
        with self._lock:
            if self._closed:
                raise self._was_closed()
            if self._opening is None:
                own = self._opening = Future()
            opening = self._opening
        if own is not None:
            self._open(own)
        return opening.result()

    def _open(self, own: Future[BlockingGate]) -> None:
        try:
            gate = self._connect()
            with self._lock:
                if not self._closed:
                    self._gate = gate
            if self._gate is not gate:
                gate.close()
                raise self._was_closed()
        except BaseException as error:  # noqa: BLE001 - it is raised to each caller
            with self._lock:
                self._opening = None
            own.set_exception(error)
        else:
            own.set_result(gate)

    def _was_closed(self) -> ConfigError:
        return proven_final(ConfigError("the gate was closed: connect again"))

    def close(self) -> None:
        """Close the gate, if it was connected. Blocks. Repeatable."""
        with self._lock:
            self._closed = True
        if self._gate is not None:
            self._gate.close()


class Closing(Protocol):
    """Rows that are read on demand, and released by ``close``."""

    def __next__(self) -> Any: ...

    def close(self) -> None: ...


Row = TypeVar("Row")
Rows = TypeVar("Rows", bound=Closing)
Result = TypeVar("Result")


class InThreads(OfProcess, AsyncIterator[Row], Generic[Row, Rows]):
    """Rows of an iterator of threads, which is opened and stepped through in threads. One task at a time."""

    def __init__(self, open_rows: Callable[[], Rows]) -> None:
        self._open = open_rows
        self._rows: Rows | None = None
        self._ready: deque[Row] = deque()
        self._step: asyncio.Future[Any] | None = None
        self._closed = False

    async def __anext__(self) -> Row:
        if not self._ready and not self._closed:
            self._ready.extend(await self._run(lambda rows: list(itertools.islice(rows, ROWS_AT_ONCE))))  # type: ignore[call-overload]
            if not self._ready:
                await self.close()
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()

    async def _run(self, step: Callable[[Rows], Result]) -> Result:
        """Do one step in a thread. If the task is cancelled, the step ends there, and the rows are closed."""
        if self._closed:
            raise ConfigError("it was closed, or read to its end: ask the gate for another one")

        def in_thread() -> Result:
            if self._rows is None:
                self._rows = self._open()
            return step(self._rows)

        self._step = asyncio.ensure_future(asyncio.to_thread(in_thread))
        try:
            return await asyncio.shield(self._step)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Release what is read; no more rows are returned. A step that runs is awaited. Repeatable."""
        self._closed = True
        self._ready.clear()
        if self._step is not None:
            await asyncio.wait([self._step])
            self._step.cancelled() or self._step.exception()  # the caller has it, or was cancelled
        if self._rows is not None:
            await asyncio.to_thread(self._rows.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Diff(InThreads[Change, BlockingDiff]):
    """The rows that differ between two versions, as of ``tidegate.Gate.diff``, for ``async for``."""

    async def counts(self) -> dict[str, DiffCounts]:
        """Count the differing rows not yet returned, per table; no value is decoded."""
        return await self._run(BlockingDiff.counts)

    async def tables(self) -> list[str]:
        """List the tables that are compared. Raises: ConfigError: a requested table is in neither version."""
        return await self._run(BlockingDiff.tables)


class Changes(InThreads[WrittenRow, BlockingChanges]):
    """The rows that a version wrote, as of ``tidegate.Gate.changes``, for ``async for``."""

    async def to_arrow(self) -> Any:
        """Return the remaining rows as a ``pyarrow.Table``, as ``tidegate.Changes.to_arrow``."""
        return await self._run(BlockingChanges.to_arrow)
