"""The chart, rendered: what the checks of `tools.check_helm` find, and what its manifests have to say."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kafkadur.settings import settings
from tools import check_helm
from tools.helm import find

KUBERNETES = check_helm.KUBERNETES[-1]
SETS = {path.name.removesuffix("-values.yaml"): path for path in check_helm.value_sets()}

pytestmark = pytest.mark.skipif(find() is None, reason="Helm is not there; `make helm` builds it")


def rendered(values: str, *arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Manifests by kind and name."""
    found = check_helm.render(SETS[values], KUBERNETES, *arguments)
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def pod(manifest: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = (
        manifest["spec"]["template"]["spec"] if "template" in manifest["spec"] else manifest["spec"]
    )
    return spec


def test_it_passes_its_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_helm.main() == 0, capsys.readouterr().err


def test_a_manifest_that_is_wrong_is_found() -> None:
    manifests = rendered("secured")
    deployment = manifests["Deployment", "trial-kafkadur"]
    assert list(check_helm.complaints(deployment, KUBERNETES)) == []
    deployment["spec"]["replica"] = 1
    assert "replica" in "".join(check_helm.complaints(deployment, KUBERNETES))
    scaled = manifests["ScaledObject", "trial-kafkadur"]
    scaled["spec"]["triggers"][0]["metadata"]["threshold"] = 5
    assert "threshold" in "".join(check_helm.complaints(scaled, KUBERNETES))
    assert list(check_helm.complaints({"apiVersion": "v1", "kind": "Nothing"}, KUBERNETES)) != []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "kafka.bootstrap="], "kafka.bootstrap is missing"),
        (["--set", "redis.existingSecret="], "Redis is missing"),
        (["--set", "redis.url=redis://r:6379/0"], "both name Redis"),
        (["--set", "redis.existingSecret=,redis.url=redis://u:p@r:6379/0"], "has a user or a password"),
        (["--set", "kafka.config.sasl\\.password=x"], "is a secret"),
        (["--set", "redis.existingSecret=,redis.url=redis://r?password=p"], "has a user or a password"),
        (["--set", "kafka.config.ssl\\.key\\.pem=x"], "is a secret"),
        (["--set", "kafka.config.sasl\\.oauthbearer\\.config=x"], "is a secret"),
        (
            ["--set", "kafka.config.sasl\\.oauthbearer\\.assertion\\.private\\.key\\.passphrase=x"],
            "is a secret",
        ),
        (["--set", "prometheusRule.enabled=true,metrics.enabled=false"], "set metrics.enabled"),
        (["--set", "strategy.type=Other"], "strategy"),
        (["--set", "kafka.config.a=b,kafka.existingSecret=s"], "put all of them into the secret"),
        (["--set", "keda.enabled=true"], "keda.prometheus is missing"),
        (
            ["--set", "keda.enabled=true,keda.prometheus=http://p,metrics.enabled=false"],
            "set metrics.enabled",
        ),
        (["--set", "keda.minReplicas=11"], "below keda.minReplicas"),
        (["--set", "replica=3"], "replica"),
        (["--set", "service.enabled=true"], "service.tokensSecret is missing"),
        (["--set", "service.ingress.enabled=true"], "set service.enabled"),
        (
            [
                "--set",
                "service.enabled=true,service.tokensSecret=t,service.ingress.enabled=true,service.ingress.host=h",
            ],
            "needs host and tlsSecret",
        ),
        (["--set", "gateway.enabled=true"], "gateway.usersSecret is missing"),
        (["--set", "gateway.enabled=true,gateway.usersSecret=u"], "gateway.tlsSecret is missing"),
        (
            ["--set", "gateway.enabled=true,gateway.clientCertificates=true,gateway.plainText=true"],
            "needs gateway.tlsSecret",
        ),
        (
            ["--set", "gateway.enabled=true,gateway.usersSecret=u,gateway.tlsSecret=t,gateway.port=9467"],
            "are the same",
        ),
        (["--set", "app.target=two words"], "/app/target"),
        (["--set", "image.digest=sha256:short"], "/image/digest"),
        (["--set", "port=0"], "port"),
    ],
)
def test_wrong_values_are_refused_and_explained(arguments: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)) as refused:
        check_helm.render(SETS["least"], KUBERNETES, *arguments)
    assert "nil pointer" not in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [name if name == "secured" else pytest.param(name, marks=pytest.mark.long) for name in sorted(SETS)],
)
def test_what_the_pods_are_told_to_run_is_a_command(values: str, tmp_path: Path) -> None:
    for (kind, name), manifest in rendered(values).items():
        if kind not in ("Deployment", "Pod") or name.endswith("valkey"):
            continue
        (container,) = pod(manifest)["containers"]
        called = container.get("args") or ["doctor"]
        command = [sys.executable, "-m", "kafkadur.cli", *map(str, called), "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        if "command" in container:
            assert shlex.split(container["command"][2])[:2] == ["kafkadur", "doctor;"]


@pytest.mark.parametrize("values", sorted(SETS))
def test_the_environment_is_settings(values: str, tmp_path: Path) -> None:
    manifest = rendered(values)["Deployment", "trial-kafkadur"]
    environment = {each["name"]: each.get("value") for each in pod(manifest)["containers"][0]["env"]}
    own = {name: value for name, value in environment.items() if name.startswith("KAFKADUR_")}
    if "KAFKADUR_KAFKA_CONFIG" in own:
        file = tmp_path / "kafka.properties"
        maps = [each for each in rendered(values).values() if "kafka.properties" in each.get("data", {})]
        file.write_text(maps[0]["data"]["kafka.properties"] if maps else "sasl.username=u")
        own["KAFKADUR_KAFKA_CONFIG"] = str(file)
    if own["KAFKADUR_REDIS"] is None:  # from the secret
        own["KAFKADUR_REDIS"] = "redis://user:word@redis:6379/0"
    made = settings({}, {name: str(value) for name, value in own.items()})
    assert made.kafka["bootstrap.servers"] == own["KAFKADUR_KAFKA"]
    if values == "secured":
        assert (made.namespace, made.client_id, made.tracing) == ("shop", "billing", True)
        assert environment["OTEL_SERVICE_NAME"] == "billing"
    if values == "plain-tls":
        assert made.kafka["security.protocol"] == "SSL"


@pytest.mark.parametrize("values", sorted(SETS))
def test_pods_are_shut_in(values: str) -> None:
    for (kind, name), manifest in rendered(values).items():
        if kind not in ("Deployment", "StatefulSet", "Pod"):
            continue
        spec = pod(manifest)
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"], name
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"], name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert "memory" in container["resources"]["limits"], name


def test_handlers_have_time_to_end() -> None:
    for values, deadline in (("least", 25), ("secured", 0.5)):
        spec = pod(rendered(values)["Deployment", "trial-kafkadur"])
        assert f"--deadline={deadline}" in spec["containers"][0]["args"]
        assert spec["terminationGracePeriodSeconds"] >= deadline + 10


def test_probes_ask_for_pages_that_there_are() -> None:
    (container,) = pod(rendered("secured")["Deployment", "trial-kafkadur"])["containers"]
    paths = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")]
    assert paths == ["/livez", "/livez", "/readyz"]
    assert container["ports"][0]["containerPort"] == 8080
    assert "--port=8080" in container["args"]


@pytest.mark.parametrize("values", sorted(SETS))
def test_selectors_find_what_they_are_for(values: str) -> None:
    manifests = rendered(values)
    pods = [
        manifest["spec"]["template"]["metadata"]["labels"]
        for (kind, _), manifest in manifests.items()
        if kind in ("Deployment", "StatefulSet")
    ]
    for (kind, name), manifest in manifests.items():
        selector = {"Service": "selector", "PodDisruptionBudget": "selector"}.get(kind)
        if selector is not None:
            wanted = manifest["spec"][selector]
            wanted = wanted.get("matchLabels", wanted)
            assert len([labels for labels in pods if wanted.items() <= labels.items()]) == 1, name
    if values == "secured":
        selector = manifests["ServiceMonitor", "trial-kafkadur"]["spec"]["selector"]
        wanted, (expression,) = selector["matchLabels"], selector["matchExpressions"]
        services = [m["metadata"]["labels"] for (kind, _), m in manifests.items() if kind == "Service"]
        found = [
            labels[expression["key"]]
            for labels in services
            if wanted.items() <= labels.items() and labels[expression["key"]] in expression["values"]
        ]
        assert sorted(found) == ["gateway-probes", "metrics", "worker"]


def test_the_alerts_are_the_file_that_is_played() -> None:
    rule = rendered("secured")["PrometheusRule", "trial-kafkadur"]
    assert rule["spec"] == yaml.safe_load((check_helm.CHART / "files" / "alerts.yaml").read_text())


def test_it_scales_by_the_backlog_of_its_subscriptions() -> None:
    manifests = rendered("secured")
    (trigger,) = manifests["ScaledObject", "trial-kafkadur"]["spec"]["triggers"]
    assert trigger["metadata"]["query"] == (
        "sum(max by (namespace, client_id, client_id_policy, subscription, topic) "
        '(kafkadur_subscription_backlog_messages{namespace="shop",subscription=~"billing|invoices"}))'
    )
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert trigger["metadata"]["threshold"] == "1000000"
    assert "replicas" not in manifests["Deployment", "trial-kafkadur"]["spec"], "the scaler's alone"


def test_numbers_are_as_they_were_said() -> None:
    text = rendered("plain-tls")["ConfigMap", "trial-kafkadur-kafka"]["data"]["kafka.properties"]
    said = dict(line.split("=", 1) for line in text.splitlines())
    assert said["queued.max.messages.kbytes"] == "1048576"
    assert said["socket.keepalive.enable"] == "true"


def test_a_strategy_is_one_that_kubernetes_takes() -> None:
    def strategy(values: str, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = rendered(values, *arguments)["Deployment", "trial-kafkadur"]["spec"][
            "strategy"
        ]
        return found

    one_more = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert strategy("least") == one_more
    assert strategy("secured") == {"type": "Recreate"}
    own = strategy("least", "--set", "strategy.rollingUpdate.maxUnavailable=1")
    assert own == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}


def test_whatever_speaks_to_kafka_and_redis_finds_them_alike() -> None:
    """The exporter and the doctor have the environment, files and nodes of the workers."""
    manifests = rendered("secured")
    worker = pod(manifests["Deployment", "trial-kafkadur"])
    others = [manifests["Deployment", "trial-kafkadur-metrics"], manifests["Pod", "trial-kafkadur-doctor"]]
    for other in map(pod, others):
        for part in ("nodeSelector", "tolerations", "volumes", "securityContext"):
            assert other[part] == worker[part], part
        for part in ("env", "envFrom", "volumeMounts"):
            assert other["containers"][0][part] == worker["containers"][0][part], part


def test_a_gateway_has_its_files_and_no_client_id() -> None:
    manifests = rendered("secured")
    worker, gateway = (pod(manifests["Deployment", f"trial-kafkadur{end}"]) for end in ("", "-gateway"))
    (container,) = gateway["containers"]
    own = [each for each in worker["containers"][0]["env"] if "CLIENT_ID" not in each["name"]]
    assert container["env"] == own
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    files = [each.partition("=")[2] for each in container["args"] if "=/etc/" in each]
    assert len(files) == 5
    assert all(str(Path(file).parent) in mounts for file in files)
    volumes = {each["name"] for each in gateway["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    rules = manifests["ConfigMap", "trial-kafkadur-gateway"]["data"]["permissions"]
    assert rules == "billing publish,consume,create invoices.*\n* consume news.*\n"
    assert manifests["PodDisruptionBudget", "trial-kafkadur-gateway"]["spec"]["maxUnavailable"] == "50%"
    assert manifests["Service", "trial-kafkadur-gateway"]["spec"]["type"] == "LoadBalancer"
    plain = pod(rendered("trial")["Deployment", "trial-kafkadur-gateway"])["containers"][0]["args"]
    assert "--plain-text" in plain
    assert not any("tls" in each or "permissions" in each for each in plain)


def test_the_service_is_where_the_workers_are_and_has_tokens_besides() -> None:
    manifests = rendered("secured")
    worker, service = (pod(manifests["Deployment", f"trial-kafkadur{end}"]) for end in ("", "-service"))
    (container,) = service["containers"]
    for part in ("env", "envFrom"):
        assert container[part] == worker["containers"][0][part], part
    for part, of in (("volumes", service), ("volumeMounts", container)):
        there = worker if part == "volumes" else worker["containers"][0]
        *like, tokens = of[part]
        assert like == there[part], part
        assert tokens["name"] == "tokens"
    assert service["volumes"][-1]["secret"]["items"] == [{"key": "tokens", "path": "tokens"}]
    ingress = manifests["Ingress", "trial-kafkadur-service"]["spec"]
    assert ingress["tls"] == [{"hosts": ["kafkadur.example"], "secretName": "page-tls"}]
    (path,) = ingress["rules"][0]["http"]["paths"]
    assert path["backend"]["service"]["name"] == "trial-kafkadur-service"
    assert ("Service", "trial-kafkadur-service") in manifests
    assert ("Deployment", "trial-kafkadur-service") not in rendered("least")


def test_a_platform_chooses_the_user() -> None:
    none = [f"podSecurityContext.{each}=null" for each in ("runAsUser", "runAsGroup", "fsGroup")]
    manifests = rendered("least", "--set", ",".join(none))
    context = pod(manifests["Deployment", "trial-kafkadur"])["securityContext"]
    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_other_handlers_make_other_pods() -> None:
    before = rendered("trial")["Deployment", "trial-kafkadur"]["spec"]["template"]["metadata"]["annotations"]
    after = rendered("trial", "--set", "app.files.handlers\\.py=x")["Deployment", "trial-kafkadur"]
    assert after["spec"]["template"]["metadata"]["annotations"] != before


def test_handlers_in_the_values_are_an_app(tmp_path: Path) -> None:
    files = rendered("trial")["ConfigMap", "trial-kafkadur-app"]["data"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    code = (
        "from pathlib import Path; from kafkadur.worker.loading import load;"
        f"print(load('handlers:app', Path({str(tmp_path)!r})).declared[0].name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "billing\n"


def test_no_secret_is_rendered() -> None:
    assert not [kind for values in SETS for kind, _ in rendered(values) if kind == "Secret"]
