"""What a Spark job holds: which connector it needs. The pipeline itself is not built yet."""

from kafkadur_spark.connector import packages

__all__ = ["packages"]
