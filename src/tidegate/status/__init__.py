"""What the log and the stores of a namespace look like, for `status`, `doctor` and the page.

Prints nothing.
"""
