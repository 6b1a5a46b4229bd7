"""The leases of a gate's open snapshots and scans, and the thread that renews them.

Snapshots of one version share a lease: the requests for leases grow with versions, not with snapshots.
``aio/leases.py`` has the task that renews those of an event loop.

An exception may end a call at any line: a signal, a soft limit, a killed greenlet. So no lock is held here.
A record is complete before others can find it, each change is one step of the interpreter, each wait has a
limit, and what a call cleans up is cleaned up twice.
"""
