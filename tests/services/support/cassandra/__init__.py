"""Cassandra nodes, their proxy, and queries on them."""
