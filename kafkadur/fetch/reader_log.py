"""The log of a reader's Kafka clients, and the facts that a reader learns only from its lines.

- The id of the topic. librdkafka goes on at the old offset when a topic was deleted and created again: it
  raises no error, and the records before that offset would be skipped. It does log the topic id each time
  that it learns another one, and it hands that line to the application before the first record of the new
  topic, in the same queue.
- The number of partitions.
- Whether a connection failed because the process has no file descriptor left.

The first two belong to the debug context `topic`. librdkafka writes about twenty lines of it when it begins
to read a topic and none while it reads; they are not passed on, unless the settings of the application ask
for debug lines.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.kafka_refusal import NO_FILES
from kafkadur_coordinators.topics import topic_changed

#: The debug context whose lines tell the topic id and the partitions.
_CONTEXT: Final = "topic"
_ID: Final = re.compile(r"Topic (\S+) changed id from \S+ to (\S+)$")
_PARTITIONS: Final = re.compile(r"Topic (\S+) (?:\(id \S+\) )?partition count changed from \d+ to (\d+)$")
#: `log_level` of librdkafka, from 0 to 7, as levels of Python's logging.
_LEVELS: Final = (51, 50, 50, 40, 30, 20, 20, 10)
#: The `log_level` that librdkafka has by default.
_USUAL: Final = 6


class ReaderLog:
    """The logger of the Kafka clients of one reader, which read one topic."""

    def __init__(self, topic: str, topic_id: str, config: Mapping[str, Any]) -> None:
        """`topic_id` is the id of the topic to be read; `config` is the reader's, for confluent-kafka."""
        self._topic = topic
        self._expected = topic_id
        self._id = topic_id
        contexts = str(config.get("debug") or "")
        level = min(max(int(config.get("log_level", _USUAL)), 0), len(_LEVELS) - 1)
        #: lines below this level are not passed on; with `debug`, librdkafka takes no heed of its `log_level`
        self._least = logging.DEBUG if contexts else max(_LEVELS[level], logging.INFO)
        #: the configuration of the clients
        self.config: dict[str, Any] = {**config, "debug": f"{contexts},{_CONTEXT}" if contexts else _CONTEXT}
        #: the number of partitions that Kafka reported last; 0: it has not reported one yet
        self.partitions = 0
        #: the last error about open files since Kafka answered; empty: there is none
        self.no_files = ""

    def log(self, level: int, line: str, *arguments: object) -> None:
        """Take a line of librdkafka, as `logging.Logger.log`. Called while the client is polled."""
        text = str(arguments[-1]) if arguments else line
        if (found := _ID.search(text)) and found[1] == self._topic:
            self._id = found[2]
        elif (found := _PARTITIONS.search(text)) and found[1] == self._topic:
            self.partitions = int(found[2])
        elif NO_FILES in text:
            self.no_files = text.rpartition("]: ")[2]
        if level >= self._least:
            client_log.log(level, line, *arguments)

    def check_topic(self, subscription: str) -> None:
        """Raise `TopicChanged` if the client reads another topic of the same name."""
        if self._id != self._expected:
            raise topic_changed(self._topic, now=self._id, was=self._expected, subscription=subscription)
