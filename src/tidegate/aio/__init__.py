"""Reading from an asyncio service: the readers of ``tidegate.connect``, with ``await``.

On Redis nothing blocks the event loop and no thread is started: requests of any number of tasks
share a few connections. Other stores are read in threads, and so are diffs, mirrors and the rows of a
version.

>>> import asyncio, tidegate.aio
>>> from tidegate.testing.example import write_flights
>>> write_flights(wal="memory://aio", store="memory://aio")  # three batches of a writer
>>> async def read():
...     async with await tidegate.aio.connect("memory://aio", namespace="flights") as gate:
...         print(await gate.version(), await gate.table("aircraft").get("N14228"))
...         async with gate.snapshot(version=2) as snap:
...             return sorted([key async for key, _ in snap.table("airports").scan()])
>>> asyncio.run(read())
3 {'carrier': 'UA', 'flights': 2}
['EWR', 'LGA']
"""

from tidegate.aio.gate import Gate
from tidegate.aio.in_threads import Changes, Diff
from tidegate.aio.mirror import Mirror
from tidegate.aio.open_gate import connect, connect_mirror
from tidegate.aio.snapshot import Scan, Snapshot, SnapshotContext, Table
from tidegate.reader.rules import VersionInfo

__all__ = [
    "Changes",
    "Diff",
    "Gate",
    "Mirror",
    "Scan",
    "Snapshot",
    "SnapshotContext",
    "Table",
    "VersionInfo",
    "connect",
    "connect_mirror",
]
