"""The cache of state for tests: its buffer, and a world of hosts around it."""
