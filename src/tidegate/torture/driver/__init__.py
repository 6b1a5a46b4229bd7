"""The driver under torture: its workloads, faults, background work, timeouts."""
