"""The repair of what a store lost: from the horizon on, below it, by keys.

It reads the log, and writes only what it has compared.
"""
