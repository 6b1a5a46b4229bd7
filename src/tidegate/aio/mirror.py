"""A mirror on an event loop: its start, its waits and its close are awaited, its reads are plain calls.

It follows a mirror of threads (``tidegate.Mirror``), of a gate of threads (``in_threads.py``), whose thread
reads the store and moves the content. The loop is called when the content has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

from tidegate.aio.in_threads import to_the_end
from tidegate.errors import ConfigError, TidegateError
from tidegate.reader.mirror.mirror import Followed, Switched
from tidegate.reader.mirror.mirror import Mirror as BlockingMirror
from tidegate.reader.mirror.view import MirrorReads, MirrorView
from tidegate.reader.rules import awaited
from tidegate.sinks.rules.version_ref import Version, VersionRef

if TYPE_CHECKING:
    from typing_extensions import Self


class Mirror(MirrorReads):
    """Whole tables of a namespace, in memory or in a file: ``tidegate.Mirror`` with ``await``.

    ``Gate.mirror`` makes it. ``async with gate.mirror(...) as mirror:`` starts it and closes it at the end;
    ``mirror = await gate.mirror(...)`` leaves the close to the caller. Reads are plain calls, also from
    threads: in memory they do no I/O, in a file each is a look-up by SQLite, which may read the disk. The end
    of its gate is its end.
    """

    def __init__(
        self, gate: Callable[[], Followed], tables: Iterable[str], on_version: Switched | None, **options: Any
    ) -> None:
        self._gate, self._tables, self._options = gate, tables, options
        self._on_version = on_version
        self._mirror: BlockingMirror | None = None
        self._is_starting = False
        self._changed = asyncio.Event()

    # -- reads -----------------------------------------------------------------------------------------

    def _started(self) -> BlockingMirror:
        if self._mirror is None:
            raise ConfigError("this mirror was not started: use `async with`, or await it")
        return self._mirror

    def view(self) -> MirrorView:
        return self._started().view()

    @property
    def age_s(self) -> float:
        """The seconds since the content was last known to be the newest version's."""
        return self._started().age_s

    @property
    def error(self) -> TidegateError | None:
        """Why the last look at the store failed; None: it did not."""
        return self._started().error

    @property
    def moves(self) -> int:
        """How often the mirror moved by changes."""
        return self._started().moves

    @property
    def full_reads(self) -> int:
        """How often the tables were read whole."""
        return self._started().full_reads

    async def wait_for(self, version: Version, timeout: float = 30.0) -> int:
        """Wait until the mirror has this version or a later one; return which. No thread waits.

        ``version`` and errors as ``tidegate.Mirror.wait_for``.
        """
        loop, mirror = asyncio.get_running_loop(), self._started()
        awaited(version, None, timeout)
        end = loop.time() + timeout
        while True:
            changed = self._changed
            left = end - loop.time()
            if mirror.has_reached(version):
                if isinstance(version, VersionRef):
                    return await asyncio.to_thread(mirror.compared, version)
                return self.version
            if left <= 0:
                raise mirror.waited(version, timeout)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), left)

    # -- the start and the end -------------------------------------------------------------------------

    async def _start(self) -> Self:
        if self._is_starting or self._mirror is not None:
            raise ConfigError("this mirror was started before: ask the gate for another one")
        if inspect.iscoroutinefunction(self._on_version):
            raise ConfigError("on_version must be a plain function; start a task in it to await something")
        self._is_starting = True
        try:
            self._mirror = await self._made()
        finally:
            self._is_starting = False
        return self

    async def _made(self) -> BlockingMirror:
        loop, ended = asyncio.get_running_loop(), threading.Event()

        def in_loop(call: Callable[..., object], *arguments: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody waits there
                loop.call_soon_threadsafe(call, *arguments)

        def made() -> BlockingMirror:
            on_version = self._on_version
            return BlockingMirror(
                self._gate(),
                self._tables,
                on_version=None if on_version is None else lambda view: in_loop(on_version, view),
                changed=lambda: in_loop(self._wake),
                **self._options,
            )

        def start() -> None:
            try:
                mirror.start()
            finally:
                ended.set()

        def undo() -> None:
            ended.wait()
            mirror.close()

        mirror = await asyncio.to_thread(made)
        starting = asyncio.ensure_future(asyncio.to_thread(start))
        try:
            await asyncio.shield(starting)
        except BaseException:
            mirror.stop()
            await to_the_end(asyncio.to_thread(undo))
            starting.cancelled() or starting.exception()  # nobody else asks for it
            raise
        return mirror

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def close(self) -> None:
        """End the mirror, as ``tidegate.Mirror.close``. Repeatable. The gate stays open."""
        if self._mirror is not None:
            await to_the_end(asyncio.to_thread(self._mirror.close))

    def __await__(self) -> Generator[Any, None, Self]:
        return self._start().__await__()

    async def __aenter__(self) -> Self:
        return await self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
