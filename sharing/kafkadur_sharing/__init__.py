"""The rules of kafkadur, without I/O: what a subscription is, who may attach and unsubscribe, the errors.

What does not live here: anything that talks to Kafka or Redis (the coordinators' room and `kafkadur` itself).
"""
