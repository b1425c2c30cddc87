"""Errors for refusals of Kafka: logins, certificates and permissions.

librdkafka goes on trying when a password or a certificate is wrong, and says so only to its `error_cb`;
the caller sees a time-out. `Refusals` listens, and knows the reason then. It is the same with an address
that is wrong, or at which nothing listens.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Final, TypeVar

from confluent_kafka import KafkaError

from kafkadur_sharing.errors import KafkaRefused

_log = logging.getLogger("kafkadur.kafka")

T = TypeVar("T")

_FORBIDDEN: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
_LOGIN: Final = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)  # noqa: SLF001 - the library's name
_TLS: Final = KafkaError._SSL  # noqa: SLF001 - the library's name
#: The system's text for the errors EMFILE and ENFILE.
NO_FILES: Final = "Too many open files"
_NOT_REACHED: Final = (KafkaError._TRANSPORT, KafkaError._RESOLVE)  # noqa: SLF001 - the library's name
#: Seconds after which a refusal does not explain a time-out any more: it may have been put right since.
_FRESH_S: Final = 30.0
#: What stands before the reason: the client's and the broker's name, and behind it how long it took.
_AROUND: Final = re.compile(r"^.*?/bootstrap: |^\S+://\S+?: | \(after \d+ms in state .*\)$")


def refused(error: KafkaError, owner: str) -> KafkaRefused | None:
    """The error to raise for a refusal of Kafka, None for other errors. `owner` is named in it."""
    code = error.code()
    if code in _FORBIDDEN:
        return KafkaRefused(
            "Kafka does not allow this.",
            state=error.str(),
            owner=owner,
            remedy="give the principal what `kafkadur acl kafka` prints",
        )
    if code in _LOGIN:
        return KafkaRefused(
            "Kafka does not accept who connects.",
            state=_reason(error),
            owner=owner,
            remedy="correct sasl.mechanism, sasl.username and sasl.password",
        )
    if code == _TLS:
        return KafkaRefused(
            "Kafka and this process do not agree on TLS.",
            state=_reason(error),
            owner=owner,
            remedy="name the authority that signed Kafka's certificate in ssl.ca.location, connect by a name "
            "that stands in it, and give a certificate of your own if Kafka asks for one",
        )
    return None


def _reason(error: KafkaError) -> str:
    return _AROUND.sub("", error.str())


def tell(function: Callable[[T], object] | None, told: T, *, name: str = "error_cb") -> None:
    """Call a function of the user's configuration; its exceptions are logged and do not stop our client."""
    if function is None:
        return
    try:
        function(told)
    except Exception:  # noqa: BLE001 - whatever a callback of the user raises
        _log.exception("the %s of the configuration failed", name)


class Refusals:
    """The last refusal of Kafka, and the last connection that failed; an `error_cb`. Called by any thread."""

    def __init__(
        self,
        further: Callable[[KafkaError], object] | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`further` is the user's own `error_cb`, which gets every error."""
        self._further = further
        self._monotonic = monotonic
        self._last: tuple[float, KafkaError] | None = None
        self._failed: tuple[float, KafkaError] | None = None

    def __call__(self, error: KafkaError) -> None:
        """Remember a refusal, or that a connection failed."""
        if error.code() in (*_LOGIN, _TLS):
            self._last = (self._monotonic(), error)
        elif error.code() in _NOT_REACHED:
            self._failed = (self._monotonic(), error)
        tell(self._further, error)

    def error(self, owner: str) -> KafkaRefused | None:
        """The error to raise instead of a time-out, None if nothing was refused."""
        last, self._last = self._fresh(self._last), None
        return None if last is None else refused(last, owner)

    def unreached(self, *, since: float = float("-inf")) -> str | None:
        """Return why a connection failed lately, such as "Connection refused"; None if none did.

        `since`: not before that, seconds of the monotonic clock.
        """
        failed = self._fresh(self._failed, since)
        return None if failed is None else _reason(failed)

    def _fresh(
        self, noted: tuple[float, KafkaError] | None, since: float = float("-inf")
    ) -> KafkaError | None:
        if noted is None or noted[0] < max(since, self._monotonic() - _FRESH_S):
            return None
        return noted[1]
