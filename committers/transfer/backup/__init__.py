"""Backups: a chain of full exports and of increments from the log, and the restore of a namespace from it."""
