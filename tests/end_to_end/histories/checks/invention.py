"""I2: what is delivered, and what becomes a dead letter, is what Kafka holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.end_to_end.histories.findings import Finding
from tests.end_to_end.histories.history import History
from tests.end_to_end.histories.recording import OK


def check(history: History) -> Iterator[Finding]:
    """What was invented; and whether the truth itself is whole."""
    for delivery in history.deliveries:
        message = history.truth.get(delivery.place)
        if message is None:
            text = f"{delivery.place} was delivered, and Kafka holds no such message"
        elif (message.digest, message.key) != (delivery.digest, delivery.key):
            text = f"{delivery.place} was delivered with another content than Kafka holds"
        else:
            continue
        yield Finding(invariant="I2", kind="invented", text=text, lines=history.tell(delivery))
    for letter in history.dead:
        message = history.truth.get(letter.place)
        if message is None or message.digest != letter.digest:
            text = f"the dead letter of {letter.place} is not what Kafka holds there"
            yield Finding(invariant="I2", kind="invented dead letter", text=text)
    written = {message.digest for message in history.truth.values()}
    partitions: defaultdict[int | None, set[tuple[str, int]]] = defaultdict(set)
    for publication in history.published:
        partitions[publication.transaction].add((publication.topic, publication.partition))
    # A defect of Kafka, which docs/internals/reliability.md describes: these may be aborted later.
    unmarked = {each for each in partitions if each is not None and partitions[each] in history.unmarked}
    for publication in history.published:
        lost = publication.outcome == OK and publication.digest not in written
        if lost and publication.transaction not in unmarked:
            text = (
                f"message {publication.digest} was confirmed to its producer, and the scan has not found it"
            )
            yield Finding(invariant="run", kind="truth incomplete", text=text)
