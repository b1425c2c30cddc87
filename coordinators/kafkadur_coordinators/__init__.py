"""The shared state of subscriptions: Lua on Redis or Valkey, the journal in Kafka, and what joins them.

What is decided by rules alone lives in kafkadur_sharing; what an application holds, in kafkadur.
"""
