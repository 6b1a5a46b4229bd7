"""The report of a run, as text and as a page."""
