"""A Spark cluster of its own kind on this machine: a master and a worker, each a process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pyspark

from tests.integration.subscriptions.helpers import wait_until

#: For a Java that lives for seconds.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: What the processes of a cluster need to know.
_ENVIRONMENT = {
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": _SHORT_LIVED,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    "PYSPARK_PYTHON": sys.executable,
}
#: For a driver there: its executor is a Java process with both cores.
ON_CLUSTER = {
    "spark.driver.extraJavaOptions": _SHORT_LIVED,
    "spark.executor.extraJavaOptions": _SHORT_LIVED,
    "spark.executor.memory": "512m",
    # Spark has them, and they are large
    "spark.jars.excludes": "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime",
}


@contextlib.contextmanager
def cluster(folder: Path) -> Generator[str]:
    """Run a master and a worker with two cores, whose files lie in `folder`; yields the URL of the master."""
    with contextlib.ExitStack() as running:
        master = _started(
            running, folder / "master.log", "master.Master", "--host", "127.0.0.1", "--port", "0",
            "--webui-port", "0",
        )  # fmt: skip
        url = _said(master, r"Starting Spark master at (spark://\S+)")
        worker = _started(
            running, folder / "worker.log", "worker.Worker", "--host", "127.0.0.1", "--port", "0",
            "--webui-port", "0", "--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work"), url,
        )  # fmt: skip
        _said(worker, r"(Successfully registered with master)")
        yield url


def _started(running: contextlib.ExitStack, log: Path, name: str, *arguments: str) -> Path:
    """Start a process of the cluster, which ends with `running`; returns where it writes what it says."""
    command = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(command), f"org.apache.spark.deploy.{name}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | _ENVIRONMENT,
            start_new_session=True,
        )
    running.callback(_end, process)
    return log


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those of its group: a worker's executors, with which their Pythons end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _said(log: Path, pattern: str) -> str:
    """Wait until a process has said it; returns the group."""
    found: list[str] = []

    def there() -> bool:
        found[:] = re.findall(pattern, log.read_text(errors="replace"))
        return bool(found)

    wait_until(there, f"{pattern} in {log}")
    return found[0]
