"""The AMQP 1.0 gateway: clients such as Apache Qpid JMS use subscriptions on Kafka like those of a broker.

`gateway.py` listens, `engine.py` connects the protocol engine Proton with a socket, `client.py` serves one
connection by its links: `publishing.py`, `consuming.py`, `browsing.py` and `transactions.py`.
`destinations.py`, `identity.py`, `outcomes.py`, `conditions.py` and `records.py` are the rules of the
mapping, without I/O.
"""
