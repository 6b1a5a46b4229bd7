"""Kafka brokers, their proxy, and queries on them."""
