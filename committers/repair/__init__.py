"""The repair of what a store lost.

``lost_store.py``: every row, ``lost_pointer.py`` of Redis. ``repair.py``: a part, from the horizon on;
``lost_groups.py`` and ``below_horizon.py``: below it. The log is read, and only what was compared is written.
"""
