"""Lints the chart, renders it with every set of values in helm/kafkadur/ci, and checks what comes out.

Manifests of Kubernetes are validated, strictly, against the schemas that the package kubernetes-validate
brings, so without network. Those of operators against `SCHEMAS`: what of them the chart uses. Where Helm is
missing this says so and passes; `.ci/run` builds it.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft7Validator

from tools.helm import find
from tools.places import ROOT

CHART = ROOT / "helm" / "kafkadur"
VALUES = CHART / "ci"
#: The oldest that the chart says it takes, and a new one.
KUBERNETES = ("1.27.0", "1.33.0")

_TEXT = {"type": "string", "minLength": 1}
_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "labels"],
    "properties": {"name": _TEXT, "labels": _LABELS},
}


def _custom(spec: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": _TEXT,
            "kind": _TEXT,
            "metadata": _METADATA,
            "spec": {
                "type": "object",
                "additionalProperties": False,
                "required": required,
                "properties": dict(spec),
            },
        },
    }


#: Of custom resources: apiVersion and kind -> schema.
SCHEMAS: dict[tuple[str, str], dict[str, Any]] = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _custom(
        {
            "selector": {"type": "object"},
            "endpoints": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["port"],
                    "properties": {"port": _TEXT, "interval": _TEXT, "honorLabels": {"type": "boolean"}},
                },
            },
        },
        ["selector", "endpoints"],
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _custom(
        {
            "groups": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["name", "rules"],
                    "properties": {
                        "name": _TEXT,
                        "rules": {
                            "type": "array",
                            "minItems": 1,
                            "items": {
                                "type": "object",
                                "additionalProperties": False,
                                "required": ["alert", "expr"],
                                "properties": {
                                    "alert": _TEXT,
                                    "expr": _TEXT,
                                    "for": _TEXT,
                                    "labels": _LABELS,
                                    "annotations": _LABELS,
                                },
                            },
                        },
                    },
                },
            }
        },
        ["groups"],
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): _custom(
        {
            "scaleTargetRef": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name"],
                "properties": {"name": _TEXT},
            },
            "minReplicaCount": {"type": "integer"},
            "maxReplicaCount": {"type": "integer"},
            "cooldownPeriod": {"type": "integer"},
            "triggers": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["type", "metadata"],
                    # the operator takes nothing but texts
                    "properties": {"type": {"const": "prometheus"}, "metadata": _LABELS},
                },
            },
        },
        ["scaleTargetRef", "triggers"],
    ),
}


def value_sets() -> list[Path]:
    """The files of values that the chart is rendered with."""
    return sorted(VALUES.glob("*.yaml"))


def helm(command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Helm with the arguments given, on the chart."""
    found = find()
    if found is None:
        raise FileNotFoundError("helm")
    return subprocess.run([found, command, *arguments], capture_output=True, text=True, check=False)


def render(values: Path, kubernetes: str, *arguments: str) -> list[dict[str, Any]]:
    """The manifests for a set of values; raises `ValueError` with Helm's words when it makes none."""
    given = ["trial", str(CHART), "--kube-version", kubernetes, "--values", str(values), *arguments]
    done = helm("template", *given)
    if done.returncode:
        raise ValueError(done.stderr)
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def complaints(manifest: dict[str, Any], kubernetes: str) -> Iterator[str]:
    """What is wrong with a manifest."""
    place = f"{manifest.get('kind')} {manifest.get('metadata', {}).get('name')}"
    schema = SCHEMAS.get((str(manifest.get("apiVersion")), str(manifest.get("kind"))))
    if schema is not None:
        for error in Draft7Validator(schema).iter_errors(manifest):
            yield f"{place}: {error.json_path}: {error.message}"
        return
    try:
        kubernetes_validate.validate(manifest, kubernetes.rpartition(".")[0], strict=True)
    except kubernetes_validate.ValidationError as error:
        yield f"{place}: {error}"
    except kubernetes_validate.SchemaNotFoundError:
        yield f"{place}: Kubernetes {kubernetes} knows no such kind"


def main() -> int:
    """Check all; return the exit status."""
    if find() is None:
        print("helm: not found, the chart is not checked; `make helm` builds it")
        return 0
    wrong: list[str] = []
    for values in value_sets():
        done = helm("lint", str(CHART), "--strict", "--quiet", "--values", str(values))
        wrong += [f"{values.name}: {done.stdout}{done.stderr}"] if done.returncode else []
        for kubernetes in KUBERNETES:
            try:
                manifests = render(values, kubernetes)
            except ValueError as error:
                wrong.append(f"{values.name}, Kubernetes {kubernetes}: {error}")
                continue
            wrong += [
                f"{values.name}, Kubernetes {kubernetes}: {said}"
                for manifest in manifests
                for said in complaints(manifest, kubernetes)
            ]
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
