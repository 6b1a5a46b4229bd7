"""The log in files: the format of its bytes, and the log itself.

Not for several hosts without a shared disk.
"""
