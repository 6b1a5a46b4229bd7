"""From the calls to acks: Spark's jobs, or the driver itself for small batches."""
