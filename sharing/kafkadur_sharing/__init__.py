"""The rules of kafkadur: definitions, keys and names of subscriptions, attaching, selectors, errors.

Nothing here does I/O; `kafkadur_coordinators` and `kafkadur` use Kafka and Redis.
"""
