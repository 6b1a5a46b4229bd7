"""Fixtures and hooks that every test may use."""
