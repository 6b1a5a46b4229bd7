"""What all stores must agree on, as pure functions: the bytes of a value, what is visible at a version, what
may be dropped, which attempt may write. No I/O.
"""
