"""Baselines: other ways to write the same rows, one file a store."""
