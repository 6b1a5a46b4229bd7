"""Torture: recorded histories of what writers offered and readers saw, and the checker that judges them."""
