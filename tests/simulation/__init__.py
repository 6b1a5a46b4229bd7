"""The simulation: drivers, readers and stores in one thread, in random orders of their calls."""
