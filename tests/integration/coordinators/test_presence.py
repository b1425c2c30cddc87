"""Since when other processes hear this one."""

import math
import time
from collections.abc import Callable

from kafkadur.stack import Stack, as_administrator
from kafkadur_coordinators.redis.listening import STOP_AFTER
from kafkadur_coordinators.redis.presence import Presence

LIMIT_S = 10.0
CHANNEL = "kafkadur:test:{x}:c:m"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_pause_without_answers_begins_anew(kafkadur_stack: Stack) -> None:
    """A process that stood still is heard again, and knows that there was a pause."""
    now = 100.0
    presence = Presence(as_administrator(kafkadur_stack.redis), timeout=LIMIT_S, monotonic=lambda: now)
    try:
        presence.listen(CHANNEL, lambda _: None)
        wait_until(lambda: presence.heard_since(CHANNEL) == 100.0)
        now += STOP_AFTER / 2
        assert presence.heard_since(CHANNEL) == 100.0, "no pause"
        now += 60.0
        assert presence.heard_since(CHANNEL) == math.inf
        assert not presence.alive(CHANNEL)
        wait_until(lambda: presence.alive(CHANNEL))
        assert presence.heard_since(CHANNEL) == now
    finally:
        presence.close()
