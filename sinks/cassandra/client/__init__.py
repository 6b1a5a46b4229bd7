"""Sending statements to Cassandra: sessions, schema, prepared statements, packed batches.

The only files that build on the driver's internals.
"""
