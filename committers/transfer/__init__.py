"""Copies of a namespace: backups and the restore from them, and another number of key groups."""
