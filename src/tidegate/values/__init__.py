"""Columns to the bytes of keys and values, and back, for readers and writers."""
