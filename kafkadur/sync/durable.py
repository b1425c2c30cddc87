# Generated from kafkadur/aio by `python -m tools.generate_sync`: change that file, not this one.
"""The durable subscriptions of a connection: what is known of one, changing it, deleting it.

`connection.py` attaches to them. `kafkadur/sync/durable.py` is generated from this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from typing_extensions import Unpack

from kafkadur.runtime.opened import Opened
from kafkadur.settings import Settings
from kafkadur.sync.waiting import outcome
from kafkadur_coordinators.interface import Known
from kafkadur_sharing.changing import Changes, changed, created
from kafkadur_sharing.decisions import UnsubscribeRequest
from kafkadur_sharing.definition import Definition, Start
from kafkadur_sharing.keys import SubscriptionKey
from kafkadur_sharing.names import validate_subscribed_topic
from kafkadur_sharing.selector import parse_selector


class DurableSubscriptions(ABC):
    """The part of a connection that works on durable subscriptions without attaching to them."""

    settings: Settings

    @abstractmethod
    def _use(self) -> Opened:
        """Return what is open; raises if the connection cannot be used."""

    def key(self, durable: str, topic_member: str | None = None) -> SubscriptionKey:
        """Return the key of a durable subscription of this connection, or of it on a topic member."""
        return SubscriptionKey(
            namespace=self.settings.namespace,
            client_id=self.settings.client_id,
            policy=self.settings.client_id_policy,
            name=durable,
            topic_member=topic_member,
        )

    def known(self, durable: str, topic_member: str | None = None) -> Known | None:
        """Return what is known of a durable subscription of this connection; None if it does not exist."""
        opened, key = (self._use(), self.key(durable, topic_member))
        return outcome(opened.thread.submit(lambda: opened.lifecycle.known(key)))

    def create(
        self,
        durable: str,
        topic: str,
        *,
        start: Start = "latest",
        topic_member: str | None = None,
        **parts: Unpack[Changes],
    ) -> Definition:
        """Create a durable subscription without attaching to it, and return its definition.

        `start` and `parts` are as in `subscribe`, the parts of the redelivery policy also one by one. Raises
        `IllegalState` if there is such a subscription already, for an exclusive one without a client id (rule
        U1) and for wrong parts, `InvalidDestination` if there is no such topic, and `InvalidSelector`.
        """
        opened, key = (self._use(), self.key(durable, topic_member))
        definition = created(key, validate_subscribed_topic(topic), start, parts, mode=self.settings.mode)
        outcome(opened.thread.submit(lambda: opened.lifecycle.create(key, definition)))
        return definition

    def alter(
        self, durable: str, *, topic_member: str | None = None, **changes: Unpack[Changes]
    ) -> Definition:
        """Change the definition of a durable subscription, and return the new one.

        What is settled stays settled, and what waits is kept. `changes` are parts of the definition: type,
        selector, no_local, header_types, strict_order, key_lanes, scope, ack_level, max_consumers, history,
        redelivery; or single parts of the redelivery policy: max_attempts, backoff, max_backoff, max_hold,
        dead_letter_topic, rescue. Times are timedeltas or seconds. Parts that are left out do not change. If
        the number of key lanes changes, messages that a faster lane settled may be delivered again.

        Raises `InvalidDestination` if the subscription does not exist, `SubscriptionActive` while a consumer
        is attached, `InvalidSelector`, and `IllegalState` for a change that is not possible.
        """
        opened, key, mode = (self._use(), self.key(durable, topic_member), self.settings.mode)
        parse_selector(changes.get("selector"))

        def change(before: Definition) -> Definition:
            return changed(key, before, changes, mode=mode)

        return outcome(opened.thread.submit(lambda: opened.lifecycle.amend(key, change)))

    def unsubscribe(self, durable: str, *, topic: str | None = None, topic_member: str | None = None) -> None:
        """Delete a durable subscription with all messages that wait in it (rules X1-X7).

        `topic`: delete it only if it is on this topic; required in the mode `weblogic` with an unrestricted
        client id. Raises `InvalidDestination` if the subscription does not exist, `SubscriptionActive` while
        a consumer is attached, and `IllegalState` while deliveries are unsettled.
        """
        opened = self._use()
        request = UnsubscribeRequest(
            key=self.key(durable, topic_member), mode=self.settings.mode, topic=topic
        )
        outcome(opened.thread.submit(lambda: opened.lifecycle.unsubscribe(request)))
