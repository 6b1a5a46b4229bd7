"""Commands that inspect the log and the stores, and change nothing."""
