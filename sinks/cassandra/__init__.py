"""The store on Cassandra. This package defines the meaning of the rows; `client` has sessions and
statements.
"""
