"""Of several services one leads, and does what no consumer does while none is attached."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import cast

import pytest

import kafkadur.sync
from kafkadur.admin.changes import Admin
from kafkadur.admin.subscription_info import SubscriptionInfo
from kafkadur.service.housekeeping import Housekeeper
from kafkadur.settings import Settings
from kafkadur.testing.pytest_plugin import TopicFactory
from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.keys import SubscriptionKey
from tests.integration.subscriptions.helpers import wait_until
from tests.integration.subscriptions.workers import Worker
from tests.serving import Api, served


@contextlib.contextmanager
def keeping(place: Settings, seen: Callable[[], list[SubscriptionInfo]] = list) -> Generator[Housekeeper]:
    keeper = Housekeeper(place, seen, every=0.1)
    keeper.start()
    try:
        yield keeper
    finally:
        keeper.close()


def plain(place: Settings) -> dict[str, object]:
    """The settings of a process of its own."""
    return {"kafka": place.kafka["bootstrap.servers"], "redis": place.redis, "namespace": place.namespace}


def leading(keepers: list[Housekeeper]) -> list[Housekeeper]:
    return [keeper for keeper in keepers if keeper.leads]


def test_one_leads_and_another_one_takes_over(place: Settings) -> None:
    with keeping(place) as one, keeping(place) as two, keeping(place) as three:
        keepers = [one, two, three]
        wait_until(lambda: leading(keepers) != [], "one leads")
        (leader,) = leading(keepers)
        leader.close()
        assert not leader.leads
        others = [keeper for keeper in keepers if keeper is not leader]
        wait_until(lambda: leading(others) != [], "another one leads")
        assert len(leading(keepers)) == 1


LEADER = """
import signal, sys
from kafkadur.service.housekeeping import Housekeeper
from kafkadur.settings import settings
keeper = Housekeeper(settings({}), list, every=1.0)
keeper.start()
while not keeper.leads:
    signal.sigtimedwait([], 0.05)
print("leads", flush=True)
signal.pause()
"""


def test_one_leads_after_the_leader_was_killed(place: Settings) -> None:
    environment = {
        **os.environ,
        "KAFKADUR_KAFKA": place.kafka["bootstrap.servers"],
        "KAFKADUR_REDIS": place.redis,
        "KAFKADUR_NAMESPACE": place.namespace,
    }
    with subprocess.Popen(
        [sys.executable, "-c", LEADER], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "leads\n"
            with keeping(place) as other:
                process.send_signal(signal.SIGKILL)
                killed = time.monotonic()
                wait_until(lambda: other.leads, "the other one leads")
                assert time.monotonic() - killed < 10.0, "before the lease of a live process would end"
        finally:
            process.kill()


def test_the_messages_of_a_member_that_died_are_given_back(
    place: Settings, kafkadur_topic: TopicFactory, connection: kafkadur.sync.Connection
) -> None:
    topic = kafkadur_topic()
    with connection.producer() as producer:
        for number in range(5):
            producer.publish(topic, str(number))
    worker = Worker(plain(place), topic, {"durable": "d", "start": "earliest"})
    try:
        assert len(worker.receive(5)) == 5
    finally:
        worker.end()
    with Admin(place) as admin, Admin(place) as seeing:
        key = admin.key("d")
        assert admin.info(key).in_flight == 5
        with keeping(place, lambda: [seeing.info(key)]):
            wait_until(lambda: admin.info(key).members == (), "it is off the list")
        found = admin.info(key)
        assert (found.in_flight, found.backlog) == (0, 5)


def test_a_live_member_stays(
    place: Settings, kafkadur_topic: TopicFactory, connection: kafkadur.sync.Connection
) -> None:
    with Admin(place) as admin, connection.subscribe(kafkadur_topic(), durable="d") as subscription:
        key = admin.key("d")
        for _ in range(3):
            admin.sweep(key)
            looked = time.monotonic()
            wait_until(lambda: time.monotonic() > looked + 0.6, "a silent member would be ended")  # noqa: B023 - at once
        assert [member.id for member in admin.info(key).members] == [subscription.member_id]


def test_an_error_of_one_subscription_does_not_keep_the_others_from_being_swept(
    place: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    swept: list[str] = []

    def sweep(admin: Admin, key: SubscriptionKey) -> None:
        del admin
        swept.append(key.name)
        if key.name == "bad":
            raise IllegalState("It cannot be swept.")

    def info(name: str) -> SubscriptionInfo:
        key = SubscriptionKey(namespace=place.namespace, client_id=None, name=name)
        dead = SimpleNamespace(key=key, members=("dead",), attached=(), expiring=0)
        return cast("SubscriptionInfo", dead)

    monkeypatch.setattr(Admin, "sweep", sweep)
    with (
        caplog.at_level(logging.WARNING, "kafkadur.service"),
        keeping(place, lambda: [info("bad"), info("good")]) as keeper,
    ):
        wait_until(lambda: swept.count("good") > 4, "several rounds")
        assert keeper.leads
    told = [each.getMessage() for each in caplog.records if each.name == "kafkadur.service"]
    assert told == ["housekeeping of bad: It cannot be swept."], "once"


def test_subscriptions_that_killed_processes_left_are_deleted(
    place: Settings, kafkadur_topic: TopicFactory
) -> None:
    topic = kafkadur_topic()
    worker = Worker(plain(place), topic, {"shared": "readers"})
    with Admin(place) as admin:
        lifecycle = admin._lifecycle  # noqa: SLF001 - nothing else tells of non-durable subscriptions

        def listed() -> list[bytes]:
            found: list[bytes] = lifecycle._index_command("ZRANGE", place.namespace, 0, -1)  # noqa: SLF001 - as above
            return found

        wait_until(lambda: len(listed()) == 1, "it is there")
        worker.end()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kafkadur_coordinators.lifecycle._LOOK_AGAIN_MS", 0)
            with keeping(place):
                wait_until(lambda: listed() == [], "it is deleted")


def test_messages_that_expire_while_nobody_is_attached_are_warned_of(
    place: Settings,
    kafkadur_topic: TopicFactory,
    connection: kafkadur.sync.Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = kafkadur_topic(retention_ms=600_000)
    connection.subscribe(topic, durable="d", start="earliest").close()
    with connection.producer() as producer:
        producer.publish(topic, "old", timestamp=round(time.time() * 1000) - 590_000)
    rounds = 0
    with (
        Admin(place) as admin,
        Admin(place) as seeing,
        caplog.at_level(logging.WARNING, "kafkadur.service"),
    ):
        key = admin.key("d")
        wait_until(lambda: admin.info(key).expiring == 1, "it expires soon")

        def seen() -> list[SubscriptionInfo]:
            nonlocal rounds
            rounds += 1
            return [seeing.info(key)]

        with keeping(place, seen):
            wait_until(lambda: rounds > 3, "several rounds")
    warnings = [record.getMessage() for record in caplog.records if record.name == "kafkadur.service"]
    assert len(warnings) == 1
    assert "Kafka is about to remove unsettled messages. State: up to 1 of topic" in warnings[0]
    assert "Owner: subscription d." in warnings[0]


def test_a_service_says_whether_it_leads(place: Settings) -> None:
    with served(place, None) as address:
        client = Api(address).client
        line = f'kafkadur_service_leads{{namespace="{place.namespace}"}} 1.0'
        with client:
            wait_until(lambda: line in client.get("/metrics").text, "it leads")
