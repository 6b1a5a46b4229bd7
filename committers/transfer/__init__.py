"""Export and import: a version as checked files, and files as a version.

An export has an author: nothing in it is trusted.
"""
