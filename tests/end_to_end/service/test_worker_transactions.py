"""Handlers of a worker whose messages, received and published, commit together."""

import signal
from collections import Counter

import pytest

import kafkadur
from kafkadur_sharing.errors import IllegalState
from tests.end_to_end.service.helpers import Shop, eventually
from tests.integration.transactions.helpers import committed

#: Publishes each number to OUT.
BOOKING = """
    app = kafkadur.App()

    @app.transacted(TOPIC, durable="d", type="serial", start="earliest", messages=5)
    async def book(messages, producer):
        for message in messages:
            producer.publish(OUT, message.value)
            await asyncio.sleep(0.01)
        note(messages[0], "booked")
"""


@pytest.fixture
def out(shop: Shop) -> str:
    """A topic for what handlers publish."""
    return shop.place.topic()


def booked(shop: Shop, out: str, count: int) -> list[int]:
    """The numbers that are committed, as soon as there are so many."""

    def look() -> list[int]:
        found = committed(shop.place, out)
        return found if len(found) >= count else []

    return eventually(look, f"{count} numbers")


def test_what_is_received_and_published_is_committed_together(shop: Shop, out: str) -> None:
    shop.place.publish(shop.topic, range(20))
    shop.write(
        """
        app = kafkadur.App()

        @app.transacted(TOPIC, durable="d", type="serial", start="earliest", messages=5)
        async def book(messages, producer):
            for message in messages:
                producer.publish(OUT, message.value)
                if message.value == b"7" and message.attempt == 1:
                    note(message, "failed")
                    raise ValueError("not yet")
            for message in messages:
                note(message)
    """.replace("OUT", repr(out))
    )
    worker = shop.start()
    shop.until(20)
    assert [note.value for note in shop.notes("failed")] == ["7"]
    assert sorted(booked(shop, out, 20)) == [*range(20)], "nothing of the transaction that failed"
    assert worker.stop() == 0
    assert shop.unsettled("d") == 0
    assert "they are rolled back and delivered again: ValueError: not yet" in worker.said
    assert "Traceback" not in worker.said


def test_one_that_always_fails_takes_no_other_along(shop: Shop, out: str) -> None:
    shop.place.publish(shop.topic, range(20))
    shop.write(
        """
        app = kafkadur.App()

        @app.transacted(
            TOPIC, durable="d", start="earliest", redelivery=kafkadur.Redelivery(max_attempts=3)
        )
        def book(messages, producer):
            for message in messages:
                producer.publish(OUT, message.value)
                note(message, "tried")
                if message.value == b"7":
                    raise ValueError("never")
    """.replace("OUT", repr(out))
    )
    worker = shop.start()
    assert sorted(booked(shop, out, 19)) == sorted({*range(20)} - {7})
    eventually(lambda: shop.unsettled("d") == 0, "the dead letter")
    assert worker.stop() == 0
    tried = Counter(int(note.value) for note in shop.notes("tried"))
    assert tried[7] == 3
    assert max(tried[number] for number in range(20) if number != 7) <= 2, "they failed once, with it"


@pytest.mark.long
def test_two_workers_take_no_other_message_along_either(shop: Shop, out: str) -> None:
    """What one of them rolled back may come to the other."""
    shop.place.publish(shop.topic, range(40))
    shop.write(
        """
        app = kafkadur.App()

        @app.transacted(
            TOPIC, durable="d", start="earliest", redelivery=kafkadur.Redelivery(max_attempts=4, backoff=0.2)
        )
        async def book(messages, producer):
            for message in messages:
                producer.publish(OUT, message.value)
                note(message, "tried")
            await asyncio.sleep(0.05)
            if any(message.value == b"7" for message in messages):
                raise ValueError("never")
    """.replace("OUT", repr(out))
    )
    workers = [shop.start(), shop.start()]
    assert sorted(booked(shop, out, 39)) == sorted({*range(40)} - {7})
    eventually(lambda: shop.unsettled("d") == 0, "the dead letter")
    assert [worker.stop() for worker in workers] == [0, 0]
    tried = Counter(int(note.value) for note in shop.notes("tried"))
    assert tried[7] == 4
    assert max(tried[number] for number in range(40) if number != 7) <= 2


def test_an_error_that_cancels_concerns_its_messages_only(shop: Shop, out: str) -> None:
    """The handler's own CancelledError does not end the worker, and what it left behind publishes nothing."""
    shop.place.publish(shop.topic, range(2))
    shop.write(
        """
        app = kafkadur.App()
        left = []

        async def late(message, producer):
            await asyncio.sleep(0.2)
            try:
                producer.publish(OUT, message.value)
            except kafkadur.IllegalState as error:
                note(message, "refused")

        @app.transacted(TOPIC, durable="d", type="serial", start="earliest")
        async def book(messages, producer):
            if messages[0].attempt == 1:
                left.append(asyncio.ensure_future(late(messages[0], producer)))
                raise asyncio.CancelledError
            await asyncio.sleep(0.4)
            producer.publish(OUT, messages[0].value)
    """.replace("OUT", repr(out))
    )
    worker = shop.start()
    assert sorted(booked(shop, out, 2)) == [0, 1]
    eventually(lambda: shop.unsettled("d") == 0, "the end")
    shop.until(1, "refused")
    assert worker.stop() == 0
    assert len(committed(shop.place, out)) == 2


@pytest.mark.long
def test_a_worker_that_is_killed_publishes_nothing_twice(shop: Shop, out: str) -> None:
    shop.place.publish(shop.topic, range(60))
    shop.write(BOOKING.replace("OUT", repr(out)))
    for number in range(1, 4):
        worker = shop.start("--log-format", "json", KAFKADUR_SESSION_TIMEOUT="2")
        shop.until(3 * number, "booked")
        worker.tell(signal.SIGKILL)
        worker.ended()
    last = shop.start(KAFKADUR_SESSION_TIMEOUT="2")
    assert sorted(booked(shop, out, 60)) == [*range(60)]
    eventually(lambda: shop.unsettled("d") == 0, "the end")
    assert last.stop() == 0
    assert len(committed(shop.place, out)) == 60


@pytest.mark.long
def test_a_transaction_that_runs_at_the_deadline_is_rolled_back(shop: Shop, out: str) -> None:
    shop.place.publish(shop.topic, range(3))
    shop.write(
        """
        app = kafkadur.App()

        @app.transacted(TOPIC, durable="d", start="earliest")
        async def book(messages, producer):
            for message in messages:
                producer.publish(OUT, message.value)
                note(message, "begun")
            await asyncio.sleep(600 if os.environ.get("SLOW") else 0)
    """.replace("OUT", repr(out))
    )
    slow = shop.start("--deadline", "0.5", SLOW="1")
    begun = len(shop.until(1, "begun"))
    slow.tell()
    assert slow.ended() == 1
    assert shop.unsettled("d") == 3
    worker = shop.start()
    assert sorted(booked(shop, out, 3)) == [0, 1, 2]
    again = shop.notes("begun")[begun:]
    assert {note.attempt for note in again} == {1}, "what was given back is no attempt"
    assert worker.stop() == 0


def test_what_cannot_be_a_transaction_is_refused_when_it_is_declared() -> None:
    app = kafkadur.App()
    with pytest.raises(IllegalState, match="is called with a batch of messages and a producer"):
        app.transacted("t", durable="d")(lambda _message: None)
    held = kafkadur.Redelivery(max_hold=5)
    with pytest.raises(IllegalState, match="leave max_hold out"):
        app.transacted("t", durable="d", redelivery=held)
    with pytest.raises(IllegalState, match="messages"):
        app.transacted("t", durable="d", messages=0)
    with pytest.raises(IllegalState, match="no option 'concurrency'"):
        app.transacted("t", durable="d", concurrency=2)  # type: ignore[call-arg]
