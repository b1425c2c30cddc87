"""A link that asks for a durable subscription without its topic: closing it deletes the subscription (X1)."""

from __future__ import annotations

from proton import Link, Terminus

from kafkadur.aio.connection import Connection
from kafkadur.gateway.conditions import NOT_FOUND, Refused
from kafkadur.gateway.links import LinkEngine, LinkToClient
from kafkadur.gateway.permissions import Action, Allowed
from kafkadur_coordinators.changes import definition_of


class Unsubscribing(LinkToClient):
    """A link with a null source."""

    def __init__(self, link: Link, name: str, *, engine: LinkEngine, allowed: Allowed) -> None:
        """`name` of the durable subscription. `allowed`: what the user may do."""
        super().__init__(link, engine)
        self._name = name
        self._allowed = allowed
        #: of the subscription when the link was attached
        self._topic = ""
        self._connection: Connection | None = None

    async def attach(self, connection: Connection) -> None:
        """Answer the client's attach; raises `Refused` if there is no such subscription."""
        known = await connection.known(self._name)
        if known is None:
            raise Refused(NOT_FOUND, f"There is no durable subscription {self._name!r}.")
        topic = definition_of(known).topic
        if not self._allowed.allows(Action.CREATE, topic):
            raise self._allowed.refusal(f"to delete the durable subscription {self._name!r}")
        self._topic = topic
        if self._ended:  # the link has ended meanwhile: it must not be used
            return
        self._connection = connection
        link = self._link
        link.source.type = Terminus.SOURCE
        link.source.address = self._name
        link.source.durability = Terminus.DELIVERIES
        link.source.expiry_policy = Terminus.EXPIRE_NEVER
        link.target.copy(link.remote_target)
        link.open()
        self._engine.soon()

    async def close(self, *, unsubscribes: bool) -> None:
        """Delete the subscription if the client closes the link; raises errors of unsubscribing."""
        self._ended = True
        if unsubscribes and self._connection is not None:
            # it may be one of another topic by now, for which the user has no permission
            await self._connection.unsubscribe(self._name, topic=self._topic)
