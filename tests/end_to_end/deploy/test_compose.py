"""The compose file and the Dockerfile: what of them can be looked at without an engine.

That Valkey takes the command line, Prometheus its configuration and a worker its own, is tried on real ones;
`test_composed.py` brings all of it up where there is an engine.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from redis.exceptions import NoPermissionError

from kafkadur.service.access import Role, parse_tokens
from kafkadur.stack.ports import free_ports
from kafkadur.stack.valkey import find_binary
from kafkadur_coordinators.redis.access import redis_rules
from tests.end_to_end.service.helpers import eventually

ROOT = Path(__file__).resolve().parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def filled(text: str) -> str:
    """A text of the file with its variables replaced by their defaults."""
    return re.sub(r"\$\{\w+:-(\w*)\}", r"\1", text)


def test_valkey_takes_its_command_and_the_user_may_what_it_needs(tmp_path: Path) -> None:
    command = [filled(word) for word in SERVICES["valkey"]["command"]]
    user = command[command.index("kafkadur") + 3 :]
    assert user == redis_rules()
    (port,) = free_ports(1)
    started = [
        str(find_binary()),
        *command[1:],
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(tmp_path),
    ]
    with subprocess.Popen(started, stdout=subprocess.DEVNULL) as server:
        try:
            address = f"redis://kafkadur:trial@127.0.0.1:{port}/0"

            def answers() -> bool:
                try:
                    return bool(client.ping())
                except redis.ConnectionError:
                    return False

            with redis.Redis.from_url(address) as client:
                eventually(answers, "the answer of Valkey")
                with pytest.raises(NoPermissionError):
                    client.config_get()
                info = client.info()
            assert (info["aof_enabled"], info["maxmemory_policy"]) == (1, "noeviction")
            with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
                stranger.ping()
        finally:
            server.kill()


def test_ports_are_on_loopback_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_what_is_mounted_is_there() -> None:
    mounted = [
        volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())
    ]
    assert {ROOT / each for each in mounted if each.startswith("./")} >= {ROOT / "examples"}
    assert all((ROOT / each).exists() for each in mounted if each.startswith("./"))
    assert {each for each in mounted if not each.startswith("./")} == COMPOSE["volumes"].keys()


def test_what_is_waited_for_can_come() -> None:
    for name, service in SERVICES.items():
        for other, condition in service.get("depends_on", {}).items():
            assert other in SERVICES, name
            if condition["condition"] == "service_healthy":
                assert "test" in SERVICES[other]["healthcheck"], other
            else:
                assert "restart" not in SERVICES[other], other


def test_commands_of_the_image_are_commands(tmp_path: Path) -> None:
    """Each is called with --help behind it: an option that there is not would be refused."""
    for name in ("worker", "metrics", "page", "gateway"):
        command = [sys.executable, "-m", "kafkadur.cli", *SERVICES[name]["command"], "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    (default,) = re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-m", "kafkadur.cli", *yaml.safe_load(default), "--help"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_token_of_the_page_is_the_one_that_is_said() -> None:
    tokens = parse_tokens(COMPOSE["configs"]["tokens"]["content"].splitlines(), owner="docker-compose.yml")
    caller = tokens.caller("trial")
    assert caller is not None
    assert caller.role is Role.ADMIN
    (mounted,) = SERVICES["page"]["configs"]
    assert mounted["target"] in SERVICES["page"]["command"]


def test_the_user_of_the_gateway_is_the_one_that_is_said() -> None:
    pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")
    from kafkadur.gateway.users import parse_users

    users = parse_users(COMPOSE["configs"]["users"]["content"].splitlines(), owner="docker-compose.yml")
    assert users.has_password("trial", "trial")
    (mounted,) = SERVICES["gateway"]["configs"]
    assert mounted["target"] in SERVICES["gateway"]["command"]


def test_services_of_the_project_are_shut_in() -> None:
    own = [service for service in SERVICES.values() if service.get("image") == "kafkadur"]
    assert len(own) == 5
    for service in own:
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
    assert re.search(r"^USER 10001:10001$", DOCKERFILE, re.MULTILINE)


def test_what_the_image_is_built_of_is_there() -> None:
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
        for source in line.split()
    ]
    assert len(copied) >= 8
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(kept) == sorted(copied)
    assert all((ROOT / source).exists() for source in copied)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    text: str = COMPOSE["configs"]["prometheus"]["content"]
    rules = ROOT / "helm" / "kafkadur" / "files" / "alerts.yaml"
    assert f"./{rules.relative_to(ROOT)}:/etc/prometheus/alerts.yaml:ro" in SERVICES["prometheus"]["volumes"]
    file = tmp_path / "prometheus.yml"
    file.write_text(text.replace("/etc/prometheus/alerts.yaml", str(rules)))
    done = subprocess.run(
        ["promtool", "check", "config", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    targets = re.findall(r'targets: \["(\w+):', text)
    assert all(target in SERVICES for target in targets)


def test_grafana_is_given_files_that_can_be_read() -> None:
    for name in ("datasource", "dashboards"):
        assert yaml.safe_load(COMPOSE["configs"][name]["content"])["apiVersion"] == 1
