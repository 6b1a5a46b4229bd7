"""Commands that look at the log and the stores, and change nothing."""
