"""A host's memory and disks for bytes that may be lost (FLIP-50).

Not part of the log: the cache is its only user.
"""
