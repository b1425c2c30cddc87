"""A subscription that a Spark driver holds as a whole: no other member is attached meanwhile.

`attachment.py` keeps the driver attached.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta

import kafkadur.sync
from kafkadur.history.entries import Outcome
from kafkadur.settings import Settings
from kafkadur_coordinators.exclusive_settlement import ExclusiveSettlement, Given, Verdicts
from kafkadur_coordinators.settlement_states import SettlementState
from kafkadur_sharing.changing import check_parts, subscription_type
from kafkadur_sharing.decisions import OnChange, Request, parts_given, validate_on_change
from kafkadur_sharing.definition import Definition, HeaderType, Start, SubscriptionType, TypeName
from kafkadur_sharing.errors import IllegalState, StateLost
from kafkadur_sharing.names import validate_name
from kafkadur_sharing.ranges import Ranges, count, joined, without
from kafkadur_sharing.redelivery_policy import Redelivery
from kafkadur_sharing.selector import parse_selector
from kafkadur_spark.attachment import Attachment
from kafkadur_spark.several_queries import FAR, Offsets, SeveralQueries


def hold(
    connection: kafkadur.sync.Connection,
    topic: str,
    *,
    durable: str,
    type: SubscriptionType | TypeName = SubscriptionType.SHARED,  # noqa: A002 - the field's word
    start: Start | None = None,
    selector: str | None = None,
    no_local: bool = False,
    header_types: Mapping[str, HeaderType] | None = None,
    redelivery: Redelivery | None = None,
    history: timedelta | float | None = None,
    on_change: OnChange | None = None,
    allow_conversion: bool = False,
    queries: Iterable[str] = (),
    name: str | None = None,
) -> Holder:
    """Hold the durable subscription `durable` on `topic` as a whole, for the queries of this driver.

    `connection` must stay open. The subscription is created if it does not exist; `type`, `start`,
    `selector`, `no_local` (for messages sent over `connection`, or with its client id), `header_types`,
    `redelivery`, `history`, `on_change` and `allow_conversion` are as in `Connection.subscribe`. A holder
    only counts attempts: a message that has used them up becomes a dead letter at an ordinary consumer.
    `queries` are the names of several queries that each read all messages: a message is settled when all of
    them have settled it. `name` is shown to people. Raises `InvalidSelector`, `InvalidName`, and
    `IllegalState` for the type key-ordered, which cannot be held as a whole. The holder attaches when its
    context is entered, and then raises the error of the rule that refuses it, such as `SubscriptionActive`
    while any member is attached, and `SubscriptionDiffers` for another selector than the subscription has.
    """
    parse_selector(selector)
    given = parts_given(
        start=start, header_types=header_types, redelivery=redelivery, history=history,
    )  # fmt: skip
    kind = _type(type)
    check_parts(kind, {"no_local": no_local}, mode=connection.settings.mode)
    definition = Definition(type=kind, topic=topic, selector=selector, no_local=no_local, **given)
    request = Request(
        key=connection.key(durable),
        definition=definition,
        mode=connection.settings.mode,
        allow_conversion=allow_conversion,
        on_change=validate_on_change(on_change),
        given=frozenset(given),
    )
    given_names = [queries] if isinstance(queries, str) else queries
    names = [validate_name("name of a query", each) for each in given_names]
    return Holder(connection.settings, request, connection_id=connection.id, queries=names, name=name)


def _type(name: SubscriptionType | str) -> SubscriptionType:
    kind = subscription_type(name)
    if kind is SubscriptionType.KEY_ORDERED:
        raise IllegalState(
            "A key-ordered subscription cannot be held as a whole.",
            remedy="use shared, exclusive, serial or priority",
        )
    return kind


def _is_done(said: Verdicts, settlement: SettlementState, now: int) -> bool:
    """Return whether verdicts are carried out, except for delayed messages: these are redelivered.

    `said.rolled_back` contains only the offsets that are not rolled back yet.
    """
    return settlement.next >= said.end and not any(
        item.start < end and start < item.end
        for item in settlement.waiting
        if item.due <= now
        for start, end in (*said.settled, *said.expired, *said.rolled_back)
    )


def _open(settlement: SettlementState) -> list[tuple[int, int]]:
    """Return the offsets that are not settled."""
    return joined([*((item.start, item.end) for item in settlement.waiting), (settlement.next, FAR)])


class Holder(Attachment):
    """Holds one subscription as a whole; a context manager. Any thread of the driver may call it."""

    kind = "whole"
    _settlement: ExclusiveSettlement

    def __init__(
        self,
        settings: Settings,
        request: Request,
        *,
        connection_id: str,
        queries: Sequence[str] = (),
        name: str | None = None,
    ) -> None:
        """As `Attachment`; `queries` are the names of several queries."""
        super().__init__(settings, request, connection_id=connection_id, name=name)
        #: the names of several queries; empty: there is one, without a name
        self.queries = tuple(queries)
        self._several = SeveralQueries(self.queries)

    def begin_query(self, query: str, settled: Offsets) -> None:
        """Part of `read_stream`: begin one of several queries, which has settled these offsets before."""
        self._several.begin(query, settled)

    def settled_by(self, query: str | None) -> Offsets:
        """Part of `Reading`: the offsets that one of several queries has settled, and another one has not."""
        return {} if query is None else self._several.of(query)

    def settle_for(
        self, query: str, verdicts: Mapping[int, Verdicts], *, record: Callable[[Offsets], None]
    ) -> int:
        """Part of `Reading`: give the verdicts of one of several queries.

        `record` records what the query has settled, for its next start. Returns how many offsets were settled
        by all queries. Raises as `settle` does, and then all can be repeated.
        """
        self.confirm()  # before the record is replaced: another driver may have written it
        self._several.add(query, {p: joined(said.settled) for p, said in verdicts.items()})
        record(self._several.of(query))
        by_all = self._several.by_all()
        given = {
            p: Verdicts(by_all.get(p, ()), said.rolled_back, said.expired)
            for p in {*by_all, *verdicts}
            if (said := verdicts.get(p, Verdicts()))._replace(settled=by_all.get(p, ())).end
        }
        settled = self.settle(given) if given else 0
        if by_all:  # a message that is delayed is not settled yet: a later call settles it
            open_now = {p: _open(state) for p, state in self.whereabouts().settlements.items()}
            self._several.forget({p: without(some, open_now[p]) for p, some in by_all.items()})
        return settled

    def settle(self, verdicts: Mapping[int, Verdicts]) -> int:
        """Give verdicts, by partition; return the number of offsets that were settled.

        When it returns, all verdicts are carried out. Repeating them settles nothing twice, but a repeated
        rollback counts another attempt. Raises `LeaseLost` if the attachment is lost, `TopicChanged` if the
        topic was deleted and created again, and `CoordinatorUnavailable` or `StateLost` if Redis or Kafka do
        not answer for three times the session time-out: some verdicts may have been carried out, and all can
        be repeated.
        """
        said = dict(verdicts)
        with self._traced(verdicts):
            self._see_topic()
            return self._patiently(lambda: self._settle(said))

    def _traced(self, verdicts: Mapping[int, Verdicts]) -> contextlib.AbstractContextManager[None]:
        """Surround verdicts with a span, if there are spans."""
        if self._tracing is None:
            return contextlib.nullcontext()

        def total(ranges: Callable[[Verdicts], Ranges]) -> int:
            return sum(count(ranges(said)) for said in verdicts.values())

        settled, back, expired = (
            total(lambda said: said.settled),
            total(lambda said: said.rolled_back),
            total(lambda said: said.expired),
        )
        if not settled + back + expired:  # a query settles what it has committed, which may be nothing
            return contextlib.nullcontext()
        return self._tracing.settling_offsets(
            "ack", self.definition.topic.name, self.display, settled, rolled_back=back, expired=expired
        )

    # -- the thread

    def _attached(self) -> None:
        """Settle with the new claims from now on."""
        self._settlement = ExclusiveSettlement(self._claims, self._log_ends)

    def _record(self, given: Given, verdicts: Mapping[int, Verdicts]) -> None:
        """Record what was carried out."""
        for partition, ranges in given.ranges.items():
            done, said = joined(ranges), verdicts.get(partition, Verdicts())
            settled = without(done, joined(said.expired))
            self._recording.settle(partition, settled)
            self._recording.note(partition, without(done, settled), Outcome.EXPIRED)
        for partition, back in given.rolled_back.items():
            self._recording.note(partition, joined(back), Outcome.ROLLED_BACK)

    def _settle(self, verdicts: dict[int, Verdicts]) -> int:
        """Give verdicts, and remove each rollback that is done: a repetition must not count it again."""
        done = 0

        def settle() -> None:
            nonlocal done
            while True:
                given = self._settlement.settle(verdicts)
                done += given.settled
                self._record(given, verdicts)
                for partition, back in given.rolled_back.items():
                    said = verdicts.get(partition, Verdicts())
                    verdicts[partition] = said._replace(rolled_back=without(said.rolled_back, joined(back)))
                if not given.again:
                    return

        self._again(settle)
        self._note_settled(verdicts)
        settlements = self._again(lambda: self._settlements(sorted(verdicts)))
        now = round(time.time() * 1000)
        open_at = [p for p, said in verdicts.items() if not _is_done(said, settlements[p], now)]
        if open_at:
            raise StateLost(
                "Not all of a batch can be settled yet.",
                state=f"partitions {open_at[:8]}: the subscription is paused, its state was lost just now, "
                "or a thousand stretches were rolled back",
                owner=f"subscription {self.display}",
                remedy="resume it, or start the query again: it reads the unsettled messages",
            )
        return done
