"""Client ids: a restricted one is held by one live connection of the whole deployment (rules C1-C4).

It is a lease in Redis of its own, beside those of subscriptions: it ends with the process, when its channel
has been silent for half a second, or when it was not renewed for its time-out. The caller renews it, and
decides what its end means. The rules are in `lua/holdid-1.lua`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from kafkadur_coordinators.redis.coordinator import RedisCoordinator, Refusal, SubscriptionAddress
from kafkadur_coordinators.redis.wire import HoldRequest
from kafkadur_sharing.errors import CoordinatorRefused, InvalidClientId
from kafkadur_sharing.keys import client_id_tag

#: Least time, ms, for which a connection whose host is gone holds its client id. It is longer than a pause of
#: Redis that keeps a live connection from renewing it.
LEAST_MS = 10_000
#: Seconds between checks whether a holder that was asked to renew has done so.
_LOOK_EVERY = 0.05


class ClientIdLease:
    """The client id of one connection. Used by one thread at a time."""

    def __init__(
        self,
        coordinator: RedisCoordinator,
        *,
        prefix: str,
        namespace: str,
        client_id: str,
        connection: str,
        name: str,
        ttl_ms: int,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """`connection` is the id of the connection, `name` is shown to people.

        `ttl_ms`: the session time-out, ms; at least `LEAST_MS` is used.
        """
        self._coordinator = coordinator
        self._address = SubscriptionAddress(
            prefix=prefix, namespace=namespace, tag=client_id_tag(namespace, client_id)
        )
        self._client_id = client_id
        self._connection = connection
        self._name = name
        self._ttl_ms = max(ttl_ms, LEAST_MS)
        self._monotonic = monotonic
        self._wait = wait

    @property
    def channel(self) -> str:
        """The channel of the holder; a message on it asks the holder to renew at once."""
        return self._address.channel(self._connection)

    @property
    def renew_every(self) -> float:
        """How often it is to be renewed, seconds."""
        return self._ttl_ms / 3_000

    def take(self) -> None:
        """Take the client id; the caller listens on `channel` already.

        Waits at most one time-out for a holder that does not show itself. Raises `InvalidClientId` for one
        that does, and as `RedisCoordinator`.
        """
        first: bytes | None = None
        deadline = self._monotonic() + 2 * self._ttl_ms / 1000
        while True:
            refusal = self.renew()
            if refusal is None:
                return
            shown = refusal.held.renewal
            first = shown if first is None else first
            if shown != first or self._monotonic() > deadline:
                raise self.held(refusal)
            self._wait(min(refusal.held.left / 1000 + 0.001, _LOOK_EVERY))

    def renew(self) -> Refusal | None:
        """Take it or go on to hold it; returns the refusal if another connection has it.

        Raises as `RedisCoordinator`.
        """
        try:
            self._run("holdid", *HoldRequest(self._name, self._ttl_ms))
        except Refusal as refusal:
            if refusal.code == "HELD":
                return refusal
            raise CoordinatorRefused(
                "The shared state is of another version.",
                owner=f"client id {self._client_id}",
                remedy="use the kafkadur version that the other processes use",
            ) from None
        return None

    def drop(self) -> None:
        """Let it go, if it is held. Raises as `RedisCoordinator`."""
        self._run("dropid")

    def held(self, refusal: Refusal) -> InvalidClientId:
        """Return the error for a client id that another connection holds."""
        since = datetime.fromtimestamp(refusal.held.since_at / 1000, UTC).isoformat(timespec="seconds")
        return InvalidClientId(
            f"Client id {self._client_id} is held by another connection.",
            state=f"held since {since}",
            owner=refusal.held.name.decode(errors="replace"),
            remedy="close that connection, use another client id, or client_id_policy='unrestricted' for all "
            "who share it",
        )

    def _run(self, script: str, *request: object) -> None:
        common = self._coordinator.common(member=self._connection)
        self._coordinator.call(script, [f"{self._address.root}client"], [*common, *request])
