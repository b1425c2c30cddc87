"""A consumer in the names of Jakarta Messaging: receives, or has a listener called."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Protocol, Self

from kafkadur.durations import seconds
from kafkadur.jms.message import Message
from kafkadur.sync import Delivery, Subscription
from kafkadur_sharing.errors import (
    AlreadySettled,
    ConnectionClosed,
    Fenced,
    IllegalState,
    InternalError,
    KafkadurError,
    LeaseLost,
    LevelNotReached,
)

_log = logging.getLogger("kafkadur.jms")

#: What is told of each message.
Listener = Callable[[Message], object]
#: Longest a listener's thread waits without looking whether it is to end, seconds.
_LOOK_EVERY = 0.2
#: So long a listener of a transacted session leaves the turn to others, seconds.
_LET_OTHERS_S = 0.001


class ConsumerSession(Protocol):
    """The session of a consumer, as that sees it."""

    @property
    def is_started(self) -> bool:
        """Whether messages may come."""
        ...

    @property
    def is_transacted(self) -> bool:
        """Whether it commits."""
        ...

    def wait_for_start(self, consumer: MessageConsumer, timeout: float | None) -> bool:
        """Wait, at most `timeout` seconds, until messages may come to a consumer."""
        ...

    def received(self, delivery: Delivery) -> None:
        """The application gets a message."""

    def acknowledge(self, delivery: Delivery) -> None:
        """The application acknowledges a message."""

    def call(self, consumer: MessageConsumer, listener: Listener, delivery: Delivery) -> bool:
        """Call a listener, and acknowledge what it returned from; whether it was called."""
        ...

    def take_and_call(self, consumer: MessageConsumer, listener: Listener) -> None:
        """Have a listener called with the next message of a transacted session."""

    def failed(self, error: KafkadurError) -> None:
        """A consumer cannot go on."""

    def wake(self) -> None:
        """A consumer was closed: threads that wait look again."""

    def leave(self, consumer: MessageConsumer) -> None:
        """A consumer was closed."""


class MessageConsumer:
    """One consumer of a session; a context manager.

    Used by one thread at a time, as its session is. Messages come while the connection is started.
    """

    def __init__(self, session: ConsumerSession, subscription: Subscription) -> None:
        """Made by a session."""
        self._session = session
        self.subscription = subscription
        self._listener: Listener | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        #: it came when the connection had just been stopped
        self._kept: Delivery | None = None

    @property
    def message_selector(self) -> str | None:
        """The selector in force."""
        return self.subscription.definition.definition.selector

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed.is_set()

    def receive(self, timeout: timedelta | float | None = None) -> Message | None:
        """The next message; None when `timeout` (seconds or a timedelta) passes, or the consumer is closed.

        In the automatic modes it is acknowledged when this returns it; if it is certain that this failed, it
        comes again, and the next one is returned. Raises `IllegalState` while a listener is set,
        `ConnectionClosed`, and what made the subscription unusable.
        """
        if self._listener is not None:
            raise IllegalState(
                "A consumer with a listener cannot receive.",
                owner=f"subscription {self.subscription.definition.key}",
                remedy="set the listener to None, or use another consumer",
            )
        if self.is_closed:
            raise ConnectionClosed(owner="the consumer", remedy="make another one")
        deadline = None if timeout is None else time.monotonic() + seconds(timeout)
        while (delivery := self._next(deadline)) is not None:
            try:
                self._session.received(delivery)
            except Fenced as error:
                _log.info("%s", error)  # it comes again
                continue
            except (LeaseLost, LevelNotReached) as error:
                _log.warning("%s", error)  # it was settled, or comes again: the application gets it now
            return Message(delivery, self._session.acknowledge)
        return None

    def receive_no_wait(self) -> Message | None:
        """The next message if there is one now."""
        return self.receive(0)

    def _next(self, deadline: float | None) -> Delivery | None:
        """The next delivery, once the connection is started; None at the deadline, or when it is closed."""
        while self._session.wait_for_start(self, _left(deadline)):
            delivery, self._kept = self._kept, None
            if delivery is None or delivery.lost:
                try:
                    delivery = self.subscription.receive(_left(deadline))
                except ConnectionClosed:
                    if self.is_closed:  # while it waited
                        return None
                    raise
            if delivery is None or self._session.is_started:
                return delivery
            self._kept = delivery
        return None

    # -- a listener

    @property
    def message_listener(self) -> Listener | None:
        """What is called with each message, one at a time in a session; None: nothing is.

        When it returns, the message is acknowledged in the automatic modes; when it raises, it is rolled back
        there and comes again; in the other modes it stays unacknowledged.
        """
        return self._listener

    @message_listener.setter
    def message_listener(self, listener: Listener | None) -> None:
        if self.is_closed:
            raise ConnectionClosed(owner="the consumer", remedy="make another one")
        self._listener = listener
        if listener is not None and self._thread is None:
            self._thread = threading.Thread(target=self._listen, name="kafkadur-listener", daemon=True)
            self._thread.start()

    def _listen(self) -> None:
        try:
            while not self.is_closed:
                listener = self._listener
                if listener is None:
                    self._closed.wait(_LOOK_EVERY)
                    continue
                if self._session.is_transacted:
                    self._session.take_and_call(self, listener)
                    self._closed.wait(_LET_OTHERS_S)
                    continue
                delivery = self._next(time.monotonic() + _LOOK_EVERY)
                if delivery is not None and not self._session.call(self, listener, delivery):
                    self._kept = delivery
        except Exception as error:  # noqa: BLE001 - whatever it is: who listens is told of it
            self._thread = None
            if not self.is_closed:
                self._session.failed(self._of_listening(error))

    def _of_listening(self, error: Exception) -> KafkadurError:
        if isinstance(error, KafkadurError):
            return error
        _log.error("listening met a defect", exc_info=error)
        return InternalError.by(error, f"subscription {self.subscription.definition.key}")

    def next_within(self, timeout: float) -> Delivery | None:
        """Part of listening: the next delivery within so many seconds."""
        return self._next(time.monotonic() + timeout)

    # -- the end

    def put_back_kept(self) -> None:
        """Put back what came and no application has got."""
        kept, self._kept = self._kept, None
        if kept is not None:
            with suppress(AlreadySettled, LeaseLost):
                kept.put_back()

    def close(self) -> None:
        """Hand out nothing more, and leave; closing twice is fine.

        It acknowledges nothing (rule K5): where the application still has to, the consumer stays attached
        until it has, or until the session is closed. Raises as closing a subscription.
        """
        if self.is_closed:
            return
        self._closed.set()
        self.subscription.stop()
        self._session.wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.put_back_kept()
        self.subscription.give_back_block()
        self._session.leave(self)

    def __enter__(self) -> Self:
        """It is open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _left(deadline: float | None) -> float | None:
    """Seconds until a deadline; None: there is none."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)
