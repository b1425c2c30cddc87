"""The AMQP 1.0 gateway: clients such as Apache Qpid JMS use subscriptions on Kafka like those of a broker.

`gateway.py` listens, `engine.py` connects the protocol engine Proton with a socket, `client.py` serves one
connection. `identity.py`, `conditions.py` and `records.py` are the rules of the mapping, without I/O.
"""
