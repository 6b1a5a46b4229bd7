"""Exports and stores that are changed at random."""
