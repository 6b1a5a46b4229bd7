"""The crash sweep: a driver killed at every I/O, and what is left finished in every way."""
