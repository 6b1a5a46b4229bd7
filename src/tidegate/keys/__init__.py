"""Keys: their bytes, their key group, and keys as Arrow columns. Part of the storage format."""
