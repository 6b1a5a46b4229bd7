"""What a driver does before it may write: preflight checks, the list of stores, recovery, lost attempts."""
