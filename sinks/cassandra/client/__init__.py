"""Statements to Cassandra: sessions, schema, prepared statements, packed batches.

No other files build on the driver's internals.
"""
