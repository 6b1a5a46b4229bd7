"""The work of one task on its rows: validate, order, expire, cut into frames.

Pure except for the log that it writes to: the same code runs in a Spark task, in the driver and in
tests.
"""
