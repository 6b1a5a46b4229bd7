"""The reader, with threads: gates, snapshots, leases, aliases.

The asyncio half is `tidegate.aio`.
"""
