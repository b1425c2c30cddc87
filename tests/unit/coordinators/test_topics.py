"""Offsets that Kafka's client answers."""

import pytest
from confluent_kafka import OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException

from kafkadur_coordinators.topics import known


def test_an_offset_that_the_client_does_not_know_is_no_answer() -> None:
    with pytest.raises(KafkaException) as caught:
        known({0: 5, 1: OFFSET_INVALID})
    assert caught.value.args[0].code() == KafkaError.LEADER_NOT_AVAILABLE
    assert known({0: 5, 1: OFFSET_END}) == {0: 5, 1: -1}, "no record so late"
