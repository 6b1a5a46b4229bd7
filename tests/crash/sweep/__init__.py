"""The crash sweep: a driver killed at every I/O, and its remains finished in every way."""
