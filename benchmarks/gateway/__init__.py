"""Qpid JMS with one gateway process, and with Apache ActiveMQ Artemis: ``python -m benchmarks gateway``.

Both get the same load of one connection: messages of 200 bytes are published with many under way, received by
a durable subscription with an acknowledgement each, and sent one by one. Kafka and Artemis have one copy of a
message; Artemis writes it to its disk at once, Kafka leaves that to the operating system. Maven fetches the
client and Artemis, and needs a JDK.
"""
