"""The rules that all stores share, as pure functions without I/O.

They define the bytes of a value, the rows visible at a version, the rows that may be dropped, and the attempt
that may write.
"""
