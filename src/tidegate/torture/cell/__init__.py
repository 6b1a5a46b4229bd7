"""One cell of a run: its jobs, readers, faults from outside, and what has to hold at its end."""
