"""What executors do with state. No pyspark is imported here: it can be tested without a JVM."""
