"""Failover by Sentinels: the master is killed, a replica takes over, members go on by themselves."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import redis

from kafkadur import CoordinatorUnavailable, connect
from kafkadur.stack import Stack, Valkey, embedded
from kafkadur_coordinators.redis import server as redis_server
from kafkadur_sharing.definition import TypeName
from tests.integration.faults.crew import Crew, work_through
from tests.integration.subscriptions.helpers import Place, speaks, wait_until

COUNT = 300


@pytest.fixture(scope="module")
def watched() -> Iterator[Stack]:
    """Provide a stack whose Valkey has a replica and Sentinels."""
    with embedded(replica=True, sentinels=3, users=True) as stack:
        yield stack


def pair(stack: Stack) -> tuple[Valkey, Valkey]:
    """The master of this moment and the other one, both running and in step."""
    assert stack.valkey is not None
    assert stack.replica is not None
    both = (stack.valkey, stack.replica)
    for server in both:
        server.start()
    wait_until(lambda: sum(server.is_master for server in both) == 1, "one master")
    master, other = sorted(both, key=lambda server: not server.is_master)

    def knows_replica() -> bool:
        with redis.Redis.from_url(master.admin_url) as client:
            return int(client.info("replication")["connected_slaves"]) == 1

    wait_until(knows_replica, "a replica in step")
    return master, other


@pytest.mark.parametrize("kind", ["shared", pytest.param("exclusive", marks=pytest.mark.long)])
async def test_the_master_is_killed(
    watched: Stack, place_on: Callable[[Stack], Place], kind: TypeName
) -> None:
    place = place_on(watched)
    master, other = pair(watched)

    async def fault() -> None:
        await asyncio.to_thread(master.kill)

    crew = Crew(place, place.topic(range(COUNT)), kind, COUNT)
    info = await work_through(crew, fault, members=2 if kind == "shared" else 1)
    assert other.is_master
    assert info.incarnation > 0
    # what the replica had is settled there, too: only what was under way may come again
    assert sum(crew.given.values()) - COUNT <= COUNT // 2


@pytest.mark.long
async def test_the_master_hangs_and_comes_back_as_a_replica(
    watched: Stack, place_on: Callable[[Stack], Place]
) -> None:
    """Members are connected to a master that answers again, when another one has taken over."""
    place = place_on(watched)
    master, other = pair(watched)

    async def fault() -> None:
        master.freeze()
        await asyncio.to_thread(wait_until, lambda: other.is_master, "a failover")
        master.thaw()

    crew = Crew(place, place.topic(range(COUNT)), "shared", COUNT)
    await work_through(crew, fault)
    await asyncio.to_thread(pair, watched)
    assert other.is_master


def test_commands_go_through_sentinels(watched: Stack, place_on: Callable[[Stack], Place]) -> None:
    place = place_on(watched)
    pair(watched)
    environment = {
        "KAFKADUR_KAFKA": watched.kafka,
        "KAFKADUR_REDIS": watched.redis,
        "KAFKADUR_NAMESPACE": place.namespace,
        "KAFKADUR_JOURNAL_PARTITIONS": "2",
    }
    with place.connect_sync() as connection:
        connection.subscribe(place.topic(), durable="d", type="shared").close()
    done = subprocess.run(
        [sys.executable, "-m", "kafkadur.cli", "sub", "ls", "--json"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [found["name"] for found in json.loads(done.stdout)] == ["d"]


async def test_no_sentinel_answers(closed_port: int) -> None:
    url = f"redis+sentinel://127.0.0.1:{closed_port}/kafkadur"
    with pytest.raises(CoordinatorUnavailable) as caught:
        async with connect(kafka="127.0.0.1:1", redis=url):
            pass
    speaks(caught.value, "kafkadur", str(closed_port))


async def test_unknown_service(watched: Stack) -> None:
    url = watched.redis.replace("/kafkadur/", "/other/")
    with pytest.raises(CoordinatorUnavailable, match="other"):
        async with connect(kafka="127.0.0.1:1", redis=url):
            pass


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("redis+sentinel://a:1", "service"),
        ("redis+sentinel://a:b/s", "host:port"),
        ("redis+sentinel:///s", "host:port"),
        ("redis+sentinel://a/s/first", "database"),
        ("redis+sentinel://a:65536/s", "host:port"),
        ("redis+sentinel://a/s/99999999", "database"),
        ("redis+sentinel://u:12/34@a:1/s", "percent-encode"),
        ("redis+sentinel://[::1/s", "no URL"),
        ("redis+sentinel://a/s?socket_timeout=x", "no URL"),
        ("redis+nonsense://a/s", "no URL"),
        ("redis+cluster://a:b", "host:port"),
        ("redis+cluster://a:1,", "host:port"),
        ("redis+cluster://a:1/3", "database 0"),
        ("redis+cluster://a:1?sentinel_username=u", "more than nodes"),
        ("redis+cluster://u:12/34@a:1", "percent-encode"),
        ("redis+cluster://a?ssl_ca_certs=/c", "option"),
        ("rediss+cluster://a?colour=red", "option"),
        ("redis+sentinel://a/s?ssl_ca_certs=/c", "option"),
        ("rediss+sentinel://a/s?colour=red", "option"),
        ("redis://a?ssl_ca_certs=/c", "option"),
        ("unix:///s?colour=red", "option"),
    ],
)
def test_wrong_urls(url: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        redis_server.check_url(url)


def test_what_a_url_says() -> None:
    url = (
        "rediss+sentinel://u:p%40x@a:1,[::1],b/svc/3?sentinel_username=w&sentinel_password=s&ssl_ca_certs=/c"
    )
    redis_server.check_url(url)
    assert redis_server.shown(url) == "rediss+sentinel://a:1,[::1],b/svc/3"
    found = redis_server._watched(url)  # noqa: SLF001 - what becomes of it shows only with three more servers
    assert found.sentinels == (("a", 1), ("::1", 26379), ("b", 26379))
    assert found.service == "svc"
    assert found.asking == {
        "ssl": True,
        "ssl_check_hostname": True,
        "ssl_ca_certs": "/c",
        "username": "w",
        "password": "s",
    }
    assert found.serving == {
        "ssl": True,
        "ssl_check_hostname": True,
        "ssl_ca_certs": "/c",
        "username": "u",
        "password": "p@x",
        "db": 3,
    }
