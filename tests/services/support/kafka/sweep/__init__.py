"""The crash sweep with the log on Kafka."""
