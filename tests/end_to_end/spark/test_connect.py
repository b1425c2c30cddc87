"""Spark Connect: claims are read through it, and a query over a held subscription is refused.

Spark Connect needs packages that nothing else here needs. They are installed into a folder of the test.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.subscriptions.helpers import Place

PACKAGES = ("pandas>=2,<3", "numpy>=2", "grpcio>=1.67", "grpcio-status>=1.67", "googleapis-common-protos")
#: A driver whose Spark is another process; prints what it read, and the error.
DRIVER = """
import json
import os
import sys

from pyspark.sql import SparkSession

import kafkadur.sync
import kafkadur_spark
from kafkadur_sharing.errors import IllegalState
from tests.end_to_end.spark.helpers import LOCAL

settings, topic, folder = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
builder = SparkSession.builder.remote("local[2]").config("spark.jars.packages", kafkadur_spark.packages())
for name, value in LOCAL.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
told = {"session": type(spark).__module__}
with kafkadur.sync.connect(**settings) as connection:
    with kafkadur_spark.share(connection, topic, durable="claims", start="earliest") as claimer:
        claim = claimer.claim(100, timeout=30)
        told["read"] = sorted(int(row.value) for row in claimer.read(spark, claim).collect())
        claimer.ack(claim)
        told["left"] = claimer.claim(100, timeout=0) is not None
    with kafkadur_spark.hold(connection, topic, durable="held", start="earliest") as holder:
        try:
            kafkadur_spark.read_stream(spark, holder, folder)
        except IllegalState as error:
            told["error"] = str(error)
spark.stop()
print("told " + json.dumps(told), flush=True)
"""


@pytest.mark.long
def test_claims_are_read_through_spark_connect_and_a_query_is_refused(place: Place, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", packages, *PACKAGES],
        cwd=tmp_path,  # here the settings of uv leave pandas out
        check=True,
        timeout=300,
    )
    topic = place.topic(range(10))
    settings = place.settings()
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(settings), topic, str(tmp_path / "checkpoints")],
        env=os.environ | {"PYTHONPATH": str(packages), "PYSPARK_PYTHON": sys.executable},
        check=False,
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    told = json.loads(done.stdout.partition("told ")[2])
    assert told["session"] == "pyspark.sql.connect.session"
    assert told["read"] == [*range(10)]
    assert not told["left"], "they are settled"
    assert "this session is one of Spark Connect" in told["error"]
    assert "Remedy: use kafkadur_spark.session(), or spark-submit" in told["error"]
