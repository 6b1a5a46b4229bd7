"""Evidence: histories of what writers offered and readers saw, recorded and judged."""
