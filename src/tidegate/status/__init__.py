"""The state of a namespace's log and stores, for `status`, `doctor` and the page.

Prints nothing.
"""
