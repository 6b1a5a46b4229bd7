"""Random interleavings of repairs on Redis."""
