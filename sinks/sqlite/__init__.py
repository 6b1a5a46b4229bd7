"""The store in SQLite files, one per shard. For one host, or a shared disk that locks files."""
