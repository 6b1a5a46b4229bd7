"""Whole tables of a namespace in a reader's process."""
