"""The log on Kafka: clients, settings, topics, producer and consumer.

No other files import Kafka's client.
"""
