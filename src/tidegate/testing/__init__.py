"""Suites that every log and every store has to pass."""
