"""Reading subscriptions with Spark: its own Kafka source reads unsettled messages, and batches settle them.

Names are imported at their first use: Spark's workers, which start with every query, need only the sink.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkadur_spark.claiming import Claim, Claimer, share
    from kafkadur_spark.connector import packages
    from kafkadur_spark.history import history
    from kafkadur_spark.holder import Holder, hold
    from kafkadur_spark.publishing import kafka_options, messages
    from kafkadur_spark.reading import Reading, read_stream
    from kafkadur_spark.spark_session import session

__all__ = [
    "Claim",
    "Claimer",
    "Holder",
    "Reading",
    "history",
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
    "history": "history",
    "hold": "holder",
    "kafka_options": "publishing",
    "messages": "publishing",
    "packages": "connector",
    "read_stream": "reading",
    "session": "spark_session",
    "share": "claiming",
}


def __getattr__(name: str) -> object:
    """Import a name at its first use; raises `ImportError` if pyspark is missing."""
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


def __dir__() -> list[str]:
    """Return the public names, without the modules that they are in."""
    return __all__
