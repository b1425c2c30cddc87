"""One attached member on Redis: its script calls and their replies.

A refusal of a script is raised as `Refusal`; errors of the connection as `RedisCoordinator` raises them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kafkadur_coordinators.interface import (
    UNRANKED,
    Attached,
    Claim,
    Claimed,
    Exchange,
    ExchangeReply,
    MemberKind,
    Rank,
)
from kafkadur_coordinators.redis.coordinator import Call, RedisCoordinator, SubscriptionAddress
from kafkadur_coordinators.redis.replies import attached, exchanged
from kafkadur_coordinators.redis.short_exchange import ShortExchange
from kafkadur_coordinators.redis.wire import (
    AttachRequest,
    ConfirmReply,
    Cut,
    DetachRequest,
    ExchangeRequest,
    PartClaims,
    ReclaimReply,
    ReclaimRequest,
    RenewRequest,
    Request,
    TruncateReply,
    TruncateRequest,
)

#: How many of the keys of a subscription `confirm` and `renew` take.
_STATE_KEYS = 2


class MemberSession:
    """One attached member: builds its script calls on a coordinator."""

    def __init__(
        self,
        coordinator: RedisCoordinator,
        address: SubscriptionAddress,
        *,
        subscription_id: str,
        state: str,
        member: str,
    ) -> None:
        """Remember who the member is; `attach` comes next."""
        self._coordinator = coordinator
        self._address = address
        self._subscription_id = subscription_id
        self._state = state
        self.member = member
        self.incarnation = 0
        #: number of the attachment, which every exchange names
        self.attachment = 0
        self._fixed = address.fixed()
        self._keys: dict[int, list[str]] = {}
        self._short = ShortExchange()
        #: number of the last change that the member knows of; None: it has not made an exchange
        self._sequence: int | None = None

    def _common(self) -> Request:
        return self._coordinator.common(
            subscription_id=self._subscription_id, incarnation=self.incarnation, member=self.member
        )

    def _keys_with(self, partitions: Iterable[int]) -> list[str]:
        """The keys of the subscription and of these partitions, as scripts take them."""
        keys = list(self._fixed)
        for partition in partitions:
            known = self._keys.get(partition)
            if known is None:
                known = self._keys[partition] = self._address.partition(
                    self._subscription_id, self._state, partition
                )
            keys += known
        return keys

    def attach(
        self,
        *,
        name: str,
        session_ms: int,
        version: int,
        most: int,
        kind: MemberKind = "",
        rank: Rank = UNRANKED,
        transacted: bool = False,
        token: str = "",
    ) -> Attached:
        """Attach; raises `Refusal` (ACTIVE, CHANGED, CHANGING, and the common codes).

        `token` is that of a change by this process that waits for this (`Changes.change`); empty: none.
        """
        self.incarnation = 0
        request = AttachRequest(
            name=name,
            session=session_ms,
            version=version,
            most=most,
            kind=kind,
            priority=rank.priority,
            preempt=int(rank.preempt),
            transacted=int(transacted),
            token=token,
        )
        reply = self._coordinator.call("attach", self._fixed, [*self._common(), *request])
        found = attached(reply)
        self.incarnation, self.attachment = found.incarnation, found.attachment
        self._short, self._sequence = ShortExchange(), None
        return found

    def exchange(self, exchange: Exchange) -> ExchangeReply:
        """Do one exchange; raises `Refusal` (STALE, FENCED, INVALID, and the common codes)."""
        confirm = self._short.request(exchange, self.attachment)
        if confirm is not None:
            short = self._coordinator.run("confirm", self._fixed[:_STATE_KEYS], [*self._common(), *confirm])
            if short.code == "OK":
                self._sequence = short.sequence
                return self._short.answer(confirm, ConfirmReply._make(short.body))
            self._short.slow()
        keys = self._keys_with(part.partition for part in exchange.parts)
        request = ExchangeRequest(
            number=exchange.number,
            credit=exchange.credit,
            have=exchange.have,
            ask_presence=int(exchange.ask_presence),
            span=exchange.span,
            parts=exchange.parts,
            handover=int(exchange.handover),
            reads_on=int(exchange.reads_on),
            attachment=self.attachment,
        )
        reply = self._coordinator.call("exchange", keys, [*self._common(), *request])
        handed_over = exchange.handover or any(part.drained for part in exchange.parts)
        found = exchanged(reply.body, handed_over=handed_over)
        self._short.made(found)
        self._sequence = reply.sequence
        return found

    def renewing(self) -> Call | None:
        """Return the call that renews the session of a member that has nothing to say.

        Its code is OK, or anything else if an exchange is to be made instead. None: no exchange was made yet.
        """
        if self._sequence is None:
            return None
        request = RenewRequest(self.attachment, self._sequence)
        return "renew", self._fixed[:_STATE_KEYS], [*self._common(), *request]

    def reclaim(self, claims: Mapping[int, Sequence[Claim]], *, heard: bool) -> dict[int, list[Claimed]]:
        """Claim offsets that are in flight since an earlier incarnation, by partition (at most 16).

        `heard`: other processes heard this one until the loss, or for all but less than `PRESENCE_GRACE`.
        Without it nothing is granted by a state that does not know that the member was attached.
        Raises `Refusal` (FENCED, INVALID, and the common codes).
        """
        keys = self._keys_with(claims)
        parts = [PartClaims(p, list(some)) for p, some in claims.items()]
        request = ReclaimRequest(self.attachment, parts, int(heard))
        reply = self._coordinator.call("reclaim", keys, [*self._common(), *request])
        found = zip(claims, ReclaimReply._make(reply.body).claimed, strict=True)
        return {partition: [Claimed(*one) for one in granted] for partition, granted in found}

    def truncate(self, cuts: Mapping[int, int], *, incarnation: int) -> dict[int, int]:
        """Forget the state at or beyond these offsets of partitions (at most 16): Kafka lost them.

        Every member has to attach again. Returns how many known offsets were lost, by partition; raises
        `Refusal`, INCARNATION also when another member was faster.
        """
        keys = self._keys_with(cuts)
        request = TruncateRequest([Cut(*cut) for cut in cuts.items()], incarnation)
        reply = self._coordinator.call("truncate", keys, [*self._common(), *request])
        self.incarnation = reply.incarnation
        return dict(zip(cuts, TruncateReply._make(reply.body).lost, strict=True))

    def detach(self, partitions: Sequence[int]) -> None:
        """Leave in order; leased offsets go back uncounted, at once on these partitions (at most 16)."""
        keys = self._keys_with(partitions)
        self._coordinator.call("detach", keys, [*self._common(), *DetachRequest(list(partitions), 0)])
