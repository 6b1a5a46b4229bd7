"""Reading versions from a store with threads: gates, snapshots, leases, aliases.

The asyncio half is `tidegate.aio`.
"""
