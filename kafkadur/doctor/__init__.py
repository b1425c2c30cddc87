"""Checks Kafka and Redis with the settings of a connection, and says what to change. It changes nothing.

The checks of Redis are in `of_redis.py`, those of Kafka in `of_kafka.py`.
"""

from kafkadur.doctor.examination import examine
from kafkadur.doctor.finding import Finding, Level

__all__ = ["Finding", "Level", "examine"]
