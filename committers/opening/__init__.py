"""The opening of a namespace: preflight checks, the list of stores, recovery, lost attempts."""
