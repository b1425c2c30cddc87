"""Starting Spark where that cannot work: the reason is said, in a process of its own."""

import os
import subprocess
import sys

import pytest

START = """
import kafkadur_spark
from kafkadur_sharing.errors import IllegalState
try:
    kafkadur_spark.session("t", master="local[1]", config={"spark.jars.packages": "nobody:nothing:1.0"})
except IllegalState as error:
    print(error)
"""


def started(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", START],
        env=os.environ | environment, check=True, timeout=300, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.long
def test_a_package_that_is_not_there_is_named() -> None:
    said = started()
    assert "cannot be resolved" in said
    assert "nobody#nothing;1.0: not found" in said
    assert "Remedy: check the network" in said
    assert "JAVA_GATEWAY_EXITED" not in said


def test_without_java_that_is_said() -> None:
    said = started(PATH="", JAVA_HOME="")
    assert "Spark needs Java" in said
    assert "Remedy: install Java 17" in said
