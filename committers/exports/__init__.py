"""Export and import: a version as checked files, and files as a version.

An export may have been written by anyone, so nothing in it is trusted.
"""
