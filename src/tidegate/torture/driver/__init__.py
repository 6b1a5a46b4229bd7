"""The driver under torture: workloads, faults, upkeep, timeouts."""
