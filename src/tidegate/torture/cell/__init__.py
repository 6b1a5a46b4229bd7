"""One cell of a run: its processes, readers, faults from outside, and the expectations at its end."""
