"""The Kafka connector that a Spark job needs, as Maven coordinates."""

from __future__ import annotations

import pyspark

from kafkadur_sharing.errors import IllegalState

#: The oldest supported pyspark.
OLDEST = (4, 0)


def packages(spark_version: str | None = None) -> str:
    """Return the value of `spark.jars.packages` for this Spark: the Kafka source of the same version.

    `spark_version` defaults to that of this pyspark. Raises `IllegalState` if it is older than 4.0.
    """
    if spark_version is None:
        spark_version = pyspark.__version__
    numbers = spark_version.split(".")
    if len(numbers) < len(OLDEST) or not all(part.isdigit() for part in numbers[:2]):
        raise IllegalState(f"{spark_version!r} is no version of Spark.", remedy="name it as in '4.0.0'")
    if tuple(int(part) for part in numbers[:2]) < OLDEST:
        raise IllegalState(
            "This Spark is too old.", state=f"version {spark_version}", remedy="use pyspark 4.0 or newer"
        )
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark_version}"
