"""The compiled client of Kafka."""
