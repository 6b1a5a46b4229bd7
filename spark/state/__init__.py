"""State handling on executors.

No pyspark is imported here: it can be tested without a JVM.
"""
