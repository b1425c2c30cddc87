"""The shared state of subscriptions: Lua on Redis or Valkey, the journal in Kafka, and what joins them.

kafkadur_sharing holds the pure rules, kafkadur the clients of applications.
"""
