"""Whole tables of a namespace in a reader's process: the mirror, its views, its places (memory, a file), and
the gate that it follows before its store answers.
"""
