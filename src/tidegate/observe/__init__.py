"""Events of the writer and the reader, and their consumers: metrics, spans, log lines, progress.

No other layer is imported.
"""
