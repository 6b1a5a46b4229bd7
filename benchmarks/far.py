"""A server some way off: a relay on this machine keeps every byte for half of the time there and back."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import Iterator
from typing import Any

READ_BYTES = 64 * 1024


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Pass on every byte unchanged, ``delay_s`` later."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, content = await waiting.get()
            await asyncio.sleep(due - loop.time())
            writer.write(content)
            await writer.drain()

    delivery = asyncio.create_task(deliver())
    with contextlib.suppress(OSError):
        while content := await reader.read(READ_BYTES):
            waiting.put_nowait((loop.time() + delay_s, content))
    delivery.cancel()
    writer.close()


def _relay(host: str, port: int, way_s: float, listen_port: int, told: Any) -> None:
    async def serve() -> None:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection(host, port)
            await asyncio.gather(_pass_on(reader, back, way_s / 2), _pass_on(there, writer, way_s / 2))

        server = await asyncio.start_server(accepted, "127.0.0.1", listen_port)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


@contextlib.contextmanager
def relayed(address: tuple[str, int], way_ms: float, listen_port: int = 0) -> Iterator[int]:
    """Yield the port, on 127.0.0.1, of the same server, ``way_ms`` off."""
    ours, theirs = multiprocessing.Pipe()
    arguments = (*address, way_ms / 1e3, listen_port, theirs)
    process = multiprocessing.Process(target=_relay, args=arguments, daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()
