"""A Spark application as the driver under torture: its queries, the rows of its batches, its own faults."""
