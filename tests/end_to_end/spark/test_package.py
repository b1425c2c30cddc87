"""What importing the package brings along, in a process of its own."""

import subprocess
import sys

import pytest

import kafkadur_spark


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_worker_of_spark_that_writes_imports_no_client() -> None:
    """It begins with each query, and executors need neither Kafka's client nor Redis'."""
    brings = "[name for name in ('confluent_kafka', 'redis', 'kafkadur', 'pyarrow') if name in sys.modules]"
    assert run(f"import sys, kafkadur_spark.sink; print({brings})") == "[]"


def test_without_pyspark_that_is_said() -> None:
    code = """
import sys
sys.modules["pyspark"] = None
import kafkadur_spark
try:
    kafkadur_spark.session
except ImportError as error:
    print(error)
"""
    assert run(code).endswith("pyspark is not installed: pip install 'kafkadur[spark]'")


def test_every_name_is_there() -> None:
    for name in kafkadur_spark.__all__:
        assert callable(getattr(kafkadur_spark, name))
    with pytest.raises(AttributeError, match="no attribute 'stream'"):
        kafkadur_spark.stream  # noqa: B018 - it raises
