"""Spark through a subscription: Spark's own Kafka source reads what is not settled, and batches settle it."""

from kafkadur_spark.holder import Holder, hold

try:
    from kafkadur_spark.connector import packages
    from kafkadur_spark.reading import Reading, read_stream
    from kafkadur_spark.session import session
except ModuleNotFoundError as error:
    if error.name is None or not error.name.startswith("pyspark"):
        raise
    raise ImportError("pyspark is not installed: pip install 'kafkadur[spark]'") from error

__all__ = ["Holder", "Reading", "hold", "packages", "read_stream", "session"]
