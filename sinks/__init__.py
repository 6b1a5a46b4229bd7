"""Versioned stores, and the interface that they share."""
