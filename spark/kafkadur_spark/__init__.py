"""Spark through a subscription: Spark's own Kafka source reads what is not settled, and batches settle it.

A name is imported when it is asked for: Spark's workers need the sink alone, and start with every query.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkadur_spark.claiming import Claim, Claimer, share
    from kafkadur_spark.connector import packages
    from kafkadur_spark.holder import Holder, hold
    from kafkadur_spark.publishing import kafka_options, messages
    from kafkadur_spark.reading import Reading, read_stream
    from kafkadur_spark.spark_session import session

__all__ = [
    "Claim",
    "Claimer",
    "Holder",
    "Reading",
    "hold",
    "kafka_options",
    "messages",
    "packages",
    "read_stream",
    "session",
    "share",
]

_MODULES = {
    "Claim": "claiming",
    "Claimer": "claiming",
    "Holder": "holder",
    "Reading": "reading",
    "hold": "holder",
    "kafka_options": "publishing",
    "messages": "publishing",
    "packages": "connector",
    "read_stream": "reading",
    "session": "spark_session",
    "share": "claiming",
}


def __getattr__(name: str) -> object:
    """Import what is asked for; raises `ImportError` where pyspark is missing."""
    if name not in _MODULES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    try:
        found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pyspark"):
            raise
        raise ImportError("pyspark is not installed: pip install 'kafkadur[spark]'") from error
    globals()[name] = found
    return found
