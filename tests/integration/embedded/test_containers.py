"""The fixture `kafkadur_containers`: as a team uses it where an engine is there, else what it says."""

import subprocess
import sys
from pathlib import Path

import pytest

from kafkadur.containers import Containers, containers, has_engine
from kafkadur.stack.errors import StackError

TEST = """
import uuid

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur


async def test_a_message(kafkadur_containers, kafkadur_namespace):
    name = f"t-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafkadur_containers.kafka})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
    async with kafkadur.connect(
        kafka=kafkadur_containers.kafka, redis=kafkadur_containers.redis, namespace=kafkadur_namespace
    ) as connection:
        async with await connection.subscribe(name, durable="d", start="earliest") as subscription:
            with connection.producer() as producer:
                await producer.send(name, b"1")
            message = await subscription.receive(60)
            assert message.value == b"1"
            await message.ack()
"""


@pytest.mark.skipif(not has_engine(), reason="no container engine answers here")
def test_a_team_uses_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=600,
    )
    if (
        "pull access denied" in done.stdout
        or "Client.Timeout" in done.stdout
        or "no such host" in done.stdout
    ):
        pytest.skip("the engine cannot get the images")
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(has_engine(), reason="an engine answers here")
def test_without_an_engine_that_is_said() -> None:
    with (
        pytest.raises(StackError, match=r"No container engine answers.*kafkadur_stack"),
        containers() as started,
    ):
        assert isinstance(started, Containers)


def test_without_testcontainers_that_is_said() -> None:
    code = (
        "import sys; sys.modules['testcontainers.core.container'] = None\n"
        "from kafkadur.containers import containers\n"
        "try:\n with containers(): pass\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'kafkadur[test]'" in done.stdout
