"""Looks at Kafka and Redis as a connection would find them, and says what to change. It changes nothing.

What is looked at in Redis stands in `of_redis.py`, what in Kafka in `of_kafka.py`.
"""

from kafkadur.doctor.examination import examine
from kafkadur.doctor.finding import Finding, Level

__all__ = ["Finding", "Level", "examine"]
