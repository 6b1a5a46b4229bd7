"""Putting back what a store lost: from the horizon on, below it, by keys.

Reads the log, and writes only what it has compared.
"""
