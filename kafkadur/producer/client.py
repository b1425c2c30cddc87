"""The Kafka client of a producer: the compiled one (`kafkadur/native`), else confluent-kafka's."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from typing import Any, cast

import confluent_kafka

from kafkadur.message.tracing import Report
from kafkadur.native.choice import client as compiled_client
from kafkadur.native.choice import module
from kafkadur.producer.configuration import SenderHeaders
from kafkadur_coordinators.client_log import client_log
from kafkadur_sharing.names import validate_property_name

_log = logging.getLogger(__name__)

#: Delivery callbacks: the producer calls them.
_OURS = ("on_delivery", "dr_cb")


def new_client(config: Mapping[str, Any]) -> confluent_kafka.Producer:
    """Return a client that writes; `config` is confluent-kafka configuration.

    A client with a delivery callback, or with a setting that is a Python function other than `error_cb` and
    `stats_cb`, is confluent-kafka's. Raises `KafkaException` for a setting that librdkafka refuses.
    """
    taken = {name: value for name, value in config.items() if name not in _OURS}
    logger = taken.pop("logger", client_log)
    compiled = None
    if all(config.get(name) is None for name in _OURS):
        compiled = compiled_client(taken, lambda: module().Producer(taken, logger=logger), "written")
    return confluent_client(config) if compiled is None else cast("confluent_kafka.Producer", compiled)


def confluent_client(config: Mapping[str, Any]) -> confluent_kafka.Producer:
    """Return confluent-kafka's client, which has transactions; the producer calls delivery callbacks itself.

    Raises `KafkaException` for a setting that librdkafka refuses.
    """
    return confluent_kafka.Producer({name: value for name, value in config.items() if name not in _OURS})


def counts_alone(client: confluent_kafka.Producer) -> bool:
    """Return whether a client tells failures alone of messages that want no other report.

    Such a client calls the sixth argument of `produce` for failures if the fifth is None.
    """
    return module() is not None and isinstance(client, module().Producer)


def awaited(client: confluent_kafka.Producer) -> bool:
    """Return whether somebody may wait for the report of a message that is under way.

    While nobody does, a compiled client serves reports now and then when it publishes.
    """
    return not counts_alone(client) or cast("Any", client).reports > 0


def usual_way(
    client: confluent_kafka.Producer,
    prefix: str,
    sender: SenderHeaders,
    on_failure: Report,
    otherwise: Callable[..., None],
) -> Callable[..., None] | None:
    """Return the function of a compiled client that takes the parameters of `publish`; None: it has none.

    It publishes messages that have nothing but a key and properties. It writes their headers as `headers.py`
    does: a message id that begins with `prefix`, those of the `sender`, the properties. `otherwise` is called
    for what is unusual or wrong, and while the buffer is full. `on_failure` is called with the report of a
    message that was not written.
    """
    if not counts_alone(client):
        return None
    compiled = cast("Any", client)
    compiled.identify(prefix.encode(), *sender, validate_property_name, on_failure, otherwise)
    return cast("Callable[..., None]", compiled.publish)


def retire(client: confluent_kafka.Producer) -> None:
    """Let messages that are published by the function of `usual_way` take the other way."""
    if counts_alone(client):
        cast("Any", client).retire()


def release(client: confluent_kafka.Producer) -> None:
    """Close a client, also after a fatal error."""
    try:
        with warnings.catch_warnings():
            # about a transaction that could not be ended: another client, or Kafka, will end it
            warnings.simplefilter("ignore", RuntimeWarning)
            client.close()
    except (confluent_kafka.KafkaException, SystemError) as error:  # SystemError: from a callback in close()
        _log.info("Kafka's client of a producer had failed: %s", error)
