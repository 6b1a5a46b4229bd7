"""Events of the writer and the reader, and what they become: metrics, spans, log lines, progress.

No other layer is imported.
"""
