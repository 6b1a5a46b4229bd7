"""Small parts that all layers use: clocks, deadlines, names, durations, files.

Nothing here knows a log or a store.
"""
