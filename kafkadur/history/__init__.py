"""The delivery history of a subscription: which member had each message, when, and what became of it.

`entries.py` is the format, `notes.py` is what a member notes, `writer.py` writes it to a topic of Kafka, and
`reading.py` reads it again.
"""
