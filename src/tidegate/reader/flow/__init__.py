"""The control flow of gates and snapshots, written once for threads and for event loops.

``reader/gate.py`` runs it in threads, ``aio/gate.py`` on an event loop. ``reader/table.py`` has ``Steps``.
"""
