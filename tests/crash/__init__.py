"""Drivers that die: at every I/O, at power cuts, with a log that loses its last records."""
