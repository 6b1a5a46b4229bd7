"""The store in dictionaries of one process: the smallest one, and the reference for the others."""
