"""A standalone Spark, and the jars of its Kafka source."""
