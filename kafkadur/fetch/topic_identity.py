"""The identity of the topic that a client of Kafka reads, as its log lines tell it.

librdkafka goes on at the old offset when a topic was deleted and created again: it raises no error, and the
records before that offset would be skipped. It does log the topic id each time that it learns another one,
and it hands that line to the application before the first record of the new topic, in the same queue. So each
reader has a logger of its own, which notes the id and how many partitions there are.

It notes from the same lines whether a connection failed because the process has no file descriptor left.

The lines belong to the debug context `topic`. librdkafka writes about twenty of them when it begins to read a
topic and none while it reads; they are not passed on, unless the settings of the application ask for debug
lines.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from kafkadur_coordinators.client_log import client_log
from kafkadur_coordinators.topics import topic_changed

#: The debug context whose lines tell the topic id.
CONTEXT: Final = "topic"
_ID: Final = re.compile(r"Topic (\S+) changed id from \S+ to (\S+)$")
_PARTITIONS: Final = re.compile(r"Topic (\S+) (?:\(id \S+\) )?partition count changed from \d+ to (\d+)$")
#: What the system calls the errors EMFILE and ENFILE.
_SHORTAGE: Final = "Too many open files"


class TopicIdentity:
    """The logger of the clients that read one topic; it notes the topic's id and partitions."""

    def __init__(self, topic: str, topic_id: str) -> None:
        """`topic_id` is the id of the topic to be read, as Kafka's tools write it; empty: any."""
        self._topic = topic
        self._expected = topic_id
        self._id = topic_id
        self._passes_debug = False
        #: how many partitions Kafka last said that the topic has; 0: it did not say so yet
        self.partitions = 0
        #: what said last that this process may open no further file; empty: nothing since Kafka was heard
        self.shortage = ""

    def configure(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return `config` with the debug context added; lines of others that it names are passed on."""
        contexts = str(config.get("debug") or "")
        self._passes_debug = bool(contexts)
        return {**config, "debug": f"{contexts},{CONTEXT}" if contexts else CONTEXT}

    def log(self, level: int, line: str, *arguments: object) -> None:
        """Take a line of librdkafka, as `logging.Logger.log`. Called while the client is polled."""
        text = str(arguments[-1]) if arguments else line
        if (found := _ID.search(text)) and found[1] == self._topic:
            self._id = found[2]
        elif (found := _PARTITIONS.search(text)) and found[1] == self._topic:
            self.partitions = int(found[2])
        elif _SHORTAGE in text:
            self.shortage = text.rpartition("]: ")[2]
        if level > logging.DEBUG or self._passes_debug:
            client_log.log(level, line, *arguments)

    def check(self, subscription: str) -> None:
        """Raise `TopicChanged` if the client reads another topic of the same name."""
        if self._id != self._expected:
            raise topic_changed(self._topic, now=self._id, was=self._expected, subscription=subscription)
