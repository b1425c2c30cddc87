"""A consumer in the names of Jakarta Messaging: it receives messages, or calls a listener with them."""

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

#: A function that is called with each message.
Listener = Callable[[Message], object]
#: Seconds after which a listener's thread checks whether it has to end.
_LOOK_EVERY = 0.2
#: Seconds for which a listener of a transacted session lets other listeners have their turn.
_LET_OTHERS_S = 0.001


class _Session(Protocol):
    """The part of `Session`, which imports this module, that a consumer uses."""

    @property
    def is_started(self) -> bool: ...
    @property
    def is_transacted(self) -> bool: ...
    def wait_for_start(self, consumer: MessageConsumer, timeout: float | None) -> bool: ...
    def received(self, delivery: Delivery) -> None: ...
    def acknowledge(self, delivery: Delivery) -> None: ...
    def call(self, consumer: MessageConsumer, listener: Listener, delivery: Delivery) -> bool: ...
    def take_and_call(self, consumer: MessageConsumer, listener: Listener) -> None: ...
    def failed(self, error: KafkadurError) -> None: ...
    def wake(self) -> None: ...
    def leave(self, consumer: MessageConsumer) -> None: ...


class MessageConsumer:
    """One consumer of a session; a context manager.

    Like its session, it is used by one thread at a time. It gets messages while the connection is started.
    """

    def __init__(self, session: _Session, subscription: Subscription) -> None:
        """Made by a session."""
        self._session = session
        self.subscription = subscription
        self._listener: Listener | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        #: a delivery that was received when the connection had just been stopped
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
        """Return the next message; None when `timeout` passes (seconds or a timedelta), or on closing.

        In the automatic modes the message is acknowledged before this returns it; if that failed for certain,
        it is delivered again, and the next message is returned. Raises `IllegalState` while a listener is
        set, `ConnectionClosed`, and the error that made the subscription unusable.
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
                _log.info("%s", error)  # it is delivered again
                continue
            except (LeaseLost, LevelNotReached) as error:
                _log.warning("%s", error)  # the application gets it, though it may be delivered again
            return Message(delivery, self._session.acknowledge)
        return None

    def receive_no_wait(self) -> Message | None:
        """Return the next message if there is one now."""
        return self.receive(0)

    def _next(self, deadline: float | None) -> Delivery | None:
        """Return the next delivery while the connection is started; None at the deadline, or on closing."""
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
        """The function that is called with each message, one call at a time in a session; None: no listener.

        In the automatic modes the message is acknowledged when the listener returns, and rolled back and
        delivered again when it raises; in the other modes it stays unacknowledged.
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
        except Exception as error:  # noqa: BLE001 - the exception listener gets any error
            self._thread = None
            if not self.is_closed:
                if not isinstance(error, KafkadurError):
                    _log.exception("listening met a defect")
                    error = InternalError.by(error, f"subscription {self.subscription.definition.key}")
                self._session.failed(error)

    def next_within(self, timeout: float) -> Delivery | None:
        """Part of listening: return the next delivery within `timeout` seconds."""
        return self._next(time.monotonic() + timeout)

    # -- the end

    def put_back_kept(self) -> None:
        """Part of listening: give back a delivery that was received and that the application has not got."""
        kept, self._kept = self._kept, None
        if kept is not None:
            with suppress(AlreadySettled, LeaseLost):
                kept.put_back()

    def close(self) -> None:
        """Hand out no further messages, and detach; closing again does nothing.

        Closing acknowledges nothing (rule K5): a consumer with messages that the application has to
        acknowledge stays attached until they are, or until the session is closed. Raises as closing a
        subscription.
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
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _left(deadline: float | None) -> float | None:
    """Seconds until a deadline; None without a deadline."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)
