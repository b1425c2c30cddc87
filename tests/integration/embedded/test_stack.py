"""A stack starts, works, can be broken server by server, and ends with its owner.

With real servers throughout.
"""

# redis-py and confluent-kafka type their methods in part only.
# pyright: reportUnknownMemberType=false

import os
import random
import signal
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from confluent_kafka import Consumer, Producer, ShareConsumer
from confluent_kafka.cimpl import NewTopic

from kafkadur.stack import PortTakenError, Stack, StackError, embedded, ports
from kafkadur.stack.kafka import quiet_admin
from tests.integration.embedded.helpers import LIMIT_S, alive, wait_until

if TYPE_CHECKING:
    import subprocess

PROGRAM = """
import signal, sys
from kafkadur.stack import embedded
with embedded({arguments}) as stack:
    print(*(server.pid for server in stack.servers), stack.data, flush=True)
    {then}
"""


def publish(stack: Stack, topic: str, count: int) -> None:
    """Send ``count`` records and wait for the broker to have them."""
    producer = Producer({"bootstrap.servers": stack.kafka, "max.in.flight": 1})  # in order
    errors: list[object] = []
    for number in range(count):
        text = str(number).encode()
        producer.produce(topic, text, text, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(LIMIT_S) == 0
    assert errors == [None] * count


def consume(stack: Stack, topic: str, count: int) -> list[bytes]:
    """Read the first ``count`` records of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": stack.kafka, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    values: list[bytes] = []
    wait_until(lambda: _more(consumer, values) >= count, f"{count} records of {topic}")
    consumer.close()
    return values


def _more(consumer: Consumer, values: list[bytes]) -> int:
    for message in consumer.consume(100, 0.1):
        assert message.error() is None
        values.append(message.value() or b"")
    return len(values)


def test_shared_stack_serves_kafka_and_valkey(
    kafkadur_stack: Stack, kafkadur_topic: Callable[..., str], kafkadur_namespace: str
) -> None:
    topic = kafkadur_topic(2, cleanup_policy="compact")
    publish(kafkadur_stack, topic, 10)
    assert sorted(consume(kafkadur_stack, topic, 10)) == sorted(str(n).encode() for n in range(10))
    with redis.Redis.from_url(kafkadur_stack.admin_redis) as client:
        assert client.set(kafkadur_namespace, "x", ex=60)
        assert client.config_get("appendonly")["appendonly"] == "yes"
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
    assert len(kafkadur_stack.kafka.split(",")) == 1


def test_namespaces_and_topics_differ(kafkadur_topic: Callable[..., str], kafkadur_namespace: str) -> None:
    names = {kafkadur_topic(), kafkadur_topic(), kafkadur_namespace}
    assert len(names) == 3
    assert all("test_namespaces_and_topics_differ" in name for name in names)


def test_share_groups_work(kafkadur_stack: Stack, kafkadur_topic: Callable[..., str]) -> None:
    topic = kafkadur_topic()
    publish(kafkadur_stack, topic, 1)
    consumer = ShareConsumer({"bootstrap.servers": kafkadur_stack.kafka, "group.id": f"share-{topic}"})
    consumer.subscribe([topic])
    seen: list[bytes | None] = []

    def received() -> bool:
        # A new share group starts at the end: go on sending until one record comes.
        publish(kafkadur_stack, topic, 1)
        seen.extend(message.value() for message in consumer.poll(0.5))
        return bool(seen)

    wait_until(received, "a record through a share group")
    consumer.close()


def test_data_survive_restarts_and_kills_on_the_same_port(temporary: Path) -> None:
    with embedded() as stack:
        assert stack.data.parent == temporary
        assert stack.valkey is not None
        (broker,) = stack.brokers
        kafka, url = stack.kafka, stack.redis
        admin = quiet_admin(kafka)
        admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(LIMIT_S)
        publish(stack, "kept", 3)
        with redis.Redis.from_url(url) as client:
            client.set("kept", "1")
            stack.valkey.stop()
            assert not stack.valkey.running
            with pytest.raises(redis.ConnectionError):
                client.get("kept")
            stack.valkey.start()
            assert client.get("kept") == b"1"
        broker.kill()
        assert not broker.running
        first = broker.pid
        broker.start()
        assert broker.pid != first
        assert (stack.kafka, stack.redis) == (kafka, url)
        assert consume(stack, "kept", 3) == [b"0", b"1", b"2"]
        broker.stop()
        broker.start()
        assert consume(stack, "kept", 3) == [b"0", b"1", b"2"]
        pids = [server.pid for server in stack.servers]
        logs = stack.logs
    assert not any(alive(pid) for pid in pids)
    assert list(temporary.iterdir()) == []
    assert (logs / "broker-1.log").exists()
    assert (logs / "valkey.log").exists()


def test_chosen_folder_keeps_its_data_from_stack_to_stack(tmp_path: Path) -> None:
    for expected in (None, b"1"):
        with embedded(kafka=False, data=tmp_path) as stack, redis.Redis.from_url(stack.redis) as client:
            assert client.get("kept") == expected
            client.set("kept", "1")


def test_replica_copies(tmp_path: Path) -> None:
    with (
        embedded(kafka=False, replica=True, data=tmp_path) as stack,
        redis.Redis.from_url(stack.redis) as client,
        redis.Redis.from_url(stack.replica_redis) as copy,
    ):
        client.set("k", "v")
        assert client.wait(1, 10_000) == 1
        assert copy.get("k") == b"v"


@pytest.mark.parametrize("servers", ["", "kafka=False, replica=True"])
def test_nothing_is_left_when_the_owner_is_killed(
    servers: str, temporary: Path, run_python: Callable[[str], "subprocess.Popen[str]"]
) -> None:
    process = run_python(PROGRAM.format(arguments=servers, then="signal.pause()"))
    assert process.stdout is not None
    *pids, data = process.stdout.readline().split()
    assert Path(data).parent == temporary
    assert all(alive(int(pid)) for pid in pids)
    process.kill()
    wait_until(lambda: not any(alive(int(pid)) for pid in pids), "the end of the servers")
    wait_until(lambda: not list(temporary.iterdir()), "the removal of the temporary folder")


def test_nothing_is_left_when_the_owner_had_forked(
    temporary: Path, run_python: Callable[[str], "subprocess.Popen[str]"]
) -> None:
    """A forked child holds the pipe open; the owner's death is noticed all the same."""
    fork = "import os; child = os.fork(); print(child, flush=True) if child else None; signal.pause()"
    process = run_python(PROGRAM.format(arguments="kafka=False", then=fork))
    assert process.stdout is not None
    pid, _ = process.stdout.readline().split()
    child = int(process.stdout.readline())
    try:
        process.kill()
        wait_until(lambda: not alive(int(pid)) and not list(temporary.iterdir()), "the end of the stack")
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_servers_outlive_an_interrupt_until_the_owner_ends(
    temporary: Path, run_python: Callable[[str], "subprocess.Popen[str]"]
) -> None:
    then = (
        "import redis, time\n"
        "    try:\n        print('ready', flush=True); time.sleep(60)\n"
        "    except KeyboardInterrupt:\n        print(redis.Redis.from_url(stack.redis).ping(), flush=True)"
    )
    process = run_python(PROGRAM.format(arguments="kafka=False", then=then))
    assert process.stdout is not None
    pid, _ = process.stdout.readline().split()
    assert process.stdout.readline() == "ready\n"
    # Another session than the owner's: a Ctrl-C, which goes to the owner's process group, passes it by.
    assert os.getsid(int(pid)) != os.getsid(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "True\n"
    assert process.wait(LIMIT_S) == 0
    assert not alive(int(pid))
    assert list(temporary.iterdir()) == []


def test_busy_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(PortTakenError, match=f"port {port} on 127.0.0.1 is in use"),
            embedded(kafka=False, valkey_port=port),
        ):
            pass


def test_no_other_stack_takes_the_port_of_a_stopped_server(monkeypatch: pytest.MonkeyPatch) -> None:
    (other,) = ports.free_ports(1)
    with embedded(kafka=False) as stack:
        assert stack.valkey is not None
        port = stack.valkey.port
        stack.valkey.kill()
        assert ports.is_free(port)
        suggested = iter([port, other])
        monkeypatch.setattr(random.Random, "randint", lambda *_: next(suggested))
        assert ports.free_ports(1) == [other]
        stack.valkey.start()
    assert not ports.is_held(port)


def test_failed_start_names_the_log(temporary: Path) -> None:
    with (
        pytest.raises(StackError, match=r"valkey ended while starting.*log"),
        embedded(kafka=False, valkey_settings={"no-such-setting": "1"}),
    ):
        pass
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("brokers", "kafka", "valkey", "replica"),
    [(0, True, True, False), (1, False, False, False), (1, True, False, True)],
)
def test_senseless_plans_are_refused(brokers: int, *, kafka: bool, valkey: bool, replica: bool) -> None:
    with (
        pytest.raises(StackError),
        embedded(brokers=brokers, kafka=kafka, valkey=valkey, replica=replica),
    ):
        pass


@pytest.mark.long
def test_two_brokers_behind_proxies(temporary: Path) -> None:
    del temporary
    with embedded(brokers=2, proxy=True, valkey=False) as stack:
        assert len(stack.kafka_proxies) == 2
        known = quiet_admin(stack.kafka).list_topics(timeout=LIMIT_S).brokers
        assert {broker.port for broker in known.values()} == {proxy.port for proxy in stack.kafka_proxies}


@pytest.mark.parametrize("replica", [False, True])
def test_sentinels_without_sense_are_refused(*, replica: bool) -> None:
    """Without a replica, or with a proxy."""
    with (
        pytest.raises(StackError, match="sentinels"),
        embedded(kafka=False, sentinels=3, replica=replica, proxy=replica),
    ):
        pass


def test_a_replica_takes_over_and_copies_the_other_then() -> None:
    with embedded(kafka=False, replica=True, users=True) as stack:
        first, second = stack.valkey, stack.replica
        assert first is not None
        assert second is not None
        second.promote()
        second.ask("SET", "a", "there")
        first.copy(second)
        assert (first.is_master, second.is_master) == (False, True)
        assert first.ask("GET", "a") == b"there"
        assert first.ask("SET", "a", "here") is None, "a replica takes no writes"
        second.stop()
        second.start()
        assert second.is_master, "as it was promoted"
