"""Handlers that do what handlers should not: no message is acknowledged unprocessed, no worker ends by it."""

import functools
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest

import kafkadur
import kafkadur.sync
from kafkadur.handlers.results import check_handler, check_result
from kafkadur_sharing.definition import SubscriptionType
from kafkadur_sharing.errors import IllegalState, KafkadurError
from tests.end_to_end.service.helpers import Shop, eventually


def yields(message: object) -> Iterator[object]:
    yield message


async def yields_too(message: object) -> AsyncIterator[object]:
    yield message


async def coroutine(message: object) -> None:
    raise AssertionError(message)


class Yields:
    def __call__(self, message: object) -> Iterator[object]:
        yield message


UNRUN = {
    "generator": yields,
    "asynchronous generator": yields_too,
    "partial generator": functools.partial(yields),
    "partial asynchronous generator": functools.partial(yields_too),
    "object": Yields(),
}


@pytest.mark.parametrize("handler", UNRUN.values(), ids=UNRUN)
def test_a_generator_function_is_refused(handler: Callable[[Any], Any]) -> None:
    with pytest.raises(IllegalState, match="would run nothing of it"):
        check_handler(handler)
    with pytest.raises(IllegalState, match="plain function that returns"):
        kafkadur.App().subscription("t", durable="d")(handler)


@pytest.mark.parametrize("handler", ["handler", None, 5])
def test_what_is_no_function_is_refused(handler: Any) -> None:
    with pytest.raises(IllegalState, match="is no function"):
        check_handler(handler)


def test_a_misspelt_option_of_an_app_is_refused_where_it_is_written() -> None:
    misspelt: Any = {"concurency": 3}
    with pytest.raises(IllegalState, match="no option 'concurency'") as refused:
        kafkadur.App().subscription("t", durable="d", **misspelt)
    assert "concurrency" in (refused.value.remedy or "")


def test_limits_of_an_app_are_checked_where_they_are_written() -> None:
    wrong: Any = 5
    with pytest.raises(IllegalState, match=r"use RateLimit\(\.\.\.\)"):
        kafkadur.App().subscription("t", durable="d", rate_limit=wrong)
    with pytest.raises(IllegalState, match=r"use CircuitBreaker\(\.\.\.\)"):
        kafkadur.App().subscription("t", durable="d", breaker=wrong)
    with pytest.raises(IllegalState, match="A rate limit is above 0"):
        kafkadur.RateLimit(per_second=cast("Any", "5"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"type": "sahred"}, "sahred"),
        ({"type": "shared", "priority": 5}, "type shared has no priority"),
        ({"type": "priority", "priority": "high"}, "priority"),
        ({"key_lanes": 2}, "type shared has no key_lanes"),
        ({"type": "key-ordered", "key_lanes": 0}, "key_lanes"),
        ({"window": 0}, "window"),
        ({"unconfirmed": 2.5}, "unconfirmed"),
        ({"selector": "price >"}, "selector"),
        ({"start": "yesterday"}, "yesterday"),
        ({"redelivery": 3}, "redelivery"),
        ({"ack_level": "disk"}, "disk"),
        ({"on_change": "ignore"}, "ignore"),
        ({"on_event": 5}, "on_event"),
    ],
    ids=str,
)
def test_values_of_options_of_an_app_are_checked_where_they_are_written(options: Any, words: str) -> None:
    with pytest.raises(KafkadurError, match=words):
        kafkadur.App().subscription("t", durable="d", **options)


def test_right_values_of_options_of_an_app_are_accepted() -> None:
    app = kafkadur.App()
    app.subscription("t", durable="a", type="priority", priority=5, preempt=True, window=1)(print)
    app.subscription("t", durable="b", type=SubscriptionType.SHARED, no_local=True, start="earliest")(print)
    assert [each.name for each in app.declared] == ["a", "b"]


@pytest.mark.parametrize("handler", [*UNRUN.values(), coroutine], ids=[*UNRUN, "coroutine function"])
def test_what_a_call_gives_instead_of_working_is_refused(handler: Callable[[Any], Any]) -> None:
    with pytest.raises(IllegalState, match="acknowledge every message"):
        check_result(handler("m"), handler)


@pytest.mark.parametrize("result", [None, 1, "done", [1]])
def test_any_other_result_is_none_of_our_business(result: object) -> None:
    check_handler(lambda _message: result)
    check_result(result, check_handler)


def test_a_coroutine_function_on_the_synchronous_surface_acknowledges_nothing(shop: Shop) -> None:
    shop.place.publish(shop.topic, [1])
    with (
        shop.place.connect_sync() as connection,
        connection.subscribe(shop.topic, durable="d", start="earliest") as subscription,
    ):

        def stop_at_the_second(message: kafkadur.sync.Delivery[Any, Any]) -> object:
            if message.attempt == 2:
                subscription.stop()
                return None
            return coroutine(message)

        subscription.run(stop_at_the_second, retry_delay=0)


def test_a_coroutine_function_is_refused_by_run_of_the_synchronous_surface(shop: Shop) -> None:
    with (
        shop.place.connect_sync() as connection,
        connection.subscribe(shop.topic, durable="d", start="earliest") as subscription,
        pytest.raises(IllegalState, match="would run nothing of it"),
    ):
        subscription.run(coroutine)


#: What a handler may raise, by how it is written. With two attempts each becomes a dead letter.
RAISING = {
    "StopIteration in a thread": "def handle(message):\n    note(message, 'begun')\n    next(iter([]))",
    "SystemExit in a thread": "def handle(message):\n    note(message, 'begun')\n    raise SystemExit(0)",
    "KeyboardInterrupt in a thread": (
        "def handle(message):\n    note(message, 'begun')\n    raise KeyboardInterrupt"
    ),
    "what is no Exception, in a thread": (
        "class Panic(BaseException): ...\ndef handle(message):\n    note(message, 'begun')\n    raise Panic"
    ),
    "what is no Exception": (
        "class Panic(BaseException): ...\n"
        "async def handle(message):\n    note(message, 'begun')\n    raise Panic"
    ),
    "SystemExit": "async def handle(message):\n    note(message, 'begun')\n    raise SystemExit(0)",
    "CancelledError": (
        "async def handle(message):\n    note(message, 'begun')\n"
        "    task = asyncio.ensure_future(asyncio.sleep(600))\n    task.cancel()\n    await task"
    ),
    "a generator": "def handle(message):\n    note(message, 'begun')\n    return (1 for _ in 'a')",
}


@pytest.mark.parametrize(
    "kind",
    [
        kind
        if kind in {"StopIteration in a thread", "SystemExit", "CancelledError"}
        else pytest.param(kind, marks=pytest.mark.long)
        for kind in RAISING
    ],
)
def test_whatever_it_raises_is_a_failure_of_its_message(shop: Shop, kind: str) -> None:
    shop.place.publish(shop.topic, [1])
    before, _, handler = RAISING[kind].rpartition("...\n")
    head = (
        f"{before}...\napp = kafkadur.App()\n"
        '@app.subscription(TOPIC, durable="d", start="earliest", retry_delay=0,'
        " redelivery=kafkadur.Redelivery(max_attempts=2))\n"
    )
    shop.write(head + handler)
    worker = shop.start("--log-format", "json")
    shop.until(2, "begun")
    eventually(lambda: shop.unsettled("d") == 0, "the dead letter")
    assert [note.attempt for note in shop.notes("begun")] == [1, 2]
    worker.ready()
    assert worker.stop() == 0
    told = [json.loads(line) for line in worker.said.splitlines() if line.startswith("{")]
    failed = [each for each in told if "handler failed" in each["message"]]
    assert len(failed) == 2
    assert {each["topic"] for each in failed} == {shop.topic}
    assert all("d" in each["subscription"] for each in failed)


def test_a_level_that_is_not_reached_is_told_and_the_worker_goes_on(shop: Shop) -> None:
    """There is no replica: what is acknowledged is settled all the same."""
    shop.place.publish(shop.topic, range(2))
    shop.write("""
        app = kafkadur.App()

        @app.subscription(TOPIC, durable="d", start="earliest", ack_level="replicated")
        async def handle(message):
            note(message)
    """)
    worker = shop.start(KAFKADUR_LEVEL_TIMEOUT="1")
    shop.until(2)
    eventually(lambda: shop.unsettled("d") == 0, "that all is settled")
    worker.ready()
    assert worker.stop() == 0
    assert "Remedy: look at the replicas, or Kafka; it comes again only" in worker.said


@pytest.mark.parametrize("policy", ["restricted", pytest.param("unrestricted", marks=pytest.mark.long)])
def test_a_worker_that_stood_still_stands_by_behind_its_successor(shop: Shop, policy: str) -> None:
    shop.write("""
        app = kafkadur.App()

        @app.subscription(TOPIC, durable="d", type="exclusive", start="earliest")
        async def handle(message):
            note(message)
    """)
    settings = {
        "KAFKADUR_CLIENT_ID": "c",
        "KAFKADUR_CLIENT_ID_POLICY": policy,
        "KAFKADUR_SESSION_TIMEOUT": "2",
    }
    first = shop.start(**settings)
    first.ready()
    shop.place.publish(shop.topic, [1])
    shop.until(1)
    second = shop.start(**settings)
    second.ready()
    first.tell(signal.SIGSTOP)
    try:
        eventually(lambda: second.states() == {"d": "attached"}, "the successor")
    finally:
        first.tell(signal.SIGCONT)
    eventually(lambda: first.states() == {"d": "standing by"}, f"that it stands by: {first.said}")
    first.ready()
    shop.place.publish(shop.topic, [2])
    assert [note.pid for note in shop.until(2)] == [first.pid, second.pid]
    assert second.stop() == 0
    shop.place.publish(shop.topic, [3])
    assert [note.pid for note in shop.until(3)] == [first.pid, second.pid, first.pid]
    assert first.stop() == 0


def test_the_port_has_an_address_of_either_family(shop: Shop) -> None:
    shop.write("""
        app = kafkadur.App()

        @app.subscription(TOPIC, durable="d")
        async def handle(message):
            note(message)
    """)
    worker = shop.start("--host", "::1")
    assert worker.address.startswith("[::1]:")
    worker.ready()
    assert worker.stop() == 0
