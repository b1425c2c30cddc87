"""What a Spark job holds. Here: which connector it needs (`connector.py`); the pipeline itself is not built yet."""

from kafkadur_spark.connector import packages

__all__ = ["packages"]
