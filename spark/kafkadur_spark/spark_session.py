"""A Spark session that can read from Kafka: with the connector's packages and this Python for workers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from kafkadur_sharing.errors import IllegalState
from kafkadur_spark.connector import packages

_PACKAGES = "spark.jars.packages"
#: Ivy's messages about a package that it cannot find or fetch.
_UNRESOLVED = re.compile(r"unresolved dependency: [^\n]*|:: [\w.\-]+#[\w.\-;]+: not found", re.IGNORECASE)
#: Time limit for finding the reason of a failed start, in seconds.
_LOOK_S = 120.0


def session(app: str, *, master: str | None = None, config: Mapping[str, str] | None = None) -> SparkSession:
    """Return the running Spark session, or start one that can read from Kafka.

    `master` is Spark's master URL (default: that of spark-submit or its configuration, else `local[*]`).
    `config` is Spark configuration; packages named there are fetched besides the connector. Workers use this
    Python unless PYSPARK_PYTHON names another. Raises `IllegalState` with a remedy if Spark cannot be
    started: there is no Java, or a package cannot be resolved.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = dict(config or {})
    named = [name for name in (packages(), *chosen.pop(_PACKAGES, "").split(",")) if name.strip()]
    builder: SparkSession.Builder = SparkSession.builder.appName(app).config(_PACKAGES, ",".join(named))
    if master is not None:
        builder = builder.master(master)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise _explained(named) from error


def _explained(named: list[str]) -> IllegalState:
    """Return the error for a Java that ended before Spark was ready."""
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        return IllegalState(
            "Spark needs Java, and there is none.",
            state="neither JAVA_HOME nor a java on PATH",
            owner="this machine",
            remedy="install Java 17 or newer",
        )
    said = _said(named)
    missing = sorted({found.strip(": ") for found in _UNRESOLVED.findall(said)})
    if missing:
        return IllegalState(
            "Spark cannot be started: a package it needs cannot be resolved.",
            state="; ".join(missing)[:500],
            owner=f"the packages {', '.join(named)}",
            remedy="check the network and spark.jars.repositories or spark.jars.ivySettings, or name the "
            "jars themselves in spark.jars",
        )
    lines = [line for line in said.strip().splitlines() if line.strip()]
    return IllegalState(
        "Spark cannot be started: its Java ended at once.",
        state="; ".join(lines[-3:])[:500] or "it said nothing",
        owner=f"pyspark {pyspark.__version__}",
        remedy="use Java 17 or newer, and look at what it printed",
    )


def _said(named: list[str]) -> str:
    """Start Spark only to resolve these packages, and return its output."""
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--packages", ",".join(named), "--class", "none", "spark-internal"]
    try:
        run = subprocess.run(  # noqa: S603 - the script that pyspark itself runs
            command, check=False, capture_output=True, text=True, timeout=_LOOK_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return run.stderr + run.stdout
