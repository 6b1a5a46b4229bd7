"""The reference reader over ``tidegate.aio.connect``, on an event loop in a thread of its own.

It is a program: ``python -m services.support.aio_reader``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any

from tidegate import aio
from tidegate.base.steps import Steps, run_async
from tidegate.testing.conformance.canonical import canonical_key, canonical_value
from tidegate.testing.conformance.reader import ReferenceReader, main


class AsyncReferenceReader(ReferenceReader):
    """One reader under test, whose calls run on the loop."""

    connecting = staticmethod(aio.connect)

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="loop", daemon=True).start()

    def done(self, result: Awaitable[Any]) -> Any:
        """Return what the awaitable gives."""

        async def awaited() -> Any:
            return await result

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result()

    def steps(self, steps: Steps[Any]) -> Any:
        return self.done(run_async(steps))

    def scan(self, table: str, snapshot: str | None = None) -> dict[str, Any]:
        return dict(self.done(self._scanned(table, snapshot)))

    async def _scanned(self, table: str, snapshot: str | None) -> dict[str, Any]:
        scan = self._source(snapshot).table(table).scan()
        try:
            view = (await scan._start()).view
            schema = view.values.schema
            rows = [
                [canonical_key(schema.key_types, key), canonical_value(schema, value)]
                async for key, value in scan
            ]
            return {"version": view.at.version, "rows": rows}
        finally:
            await scan.close()


if __name__ == "__main__":
    main(AsyncReferenceReader())
