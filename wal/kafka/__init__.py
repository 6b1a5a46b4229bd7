"""The log on Kafka: clients, settings, topics, producer and consumer.

The only files that import Kafka's client.
"""
