"""What a worker notes while the clock runs, kept so cheap that it does not judge the systems by itself.

Per batch: one ``b"".join`` of the payloads, copied into memory that was reserved and touched before the clock
(fresh pages would cost more than everything else here), and two clock readings. Nothing is parsed, compared
or counted by sequence number before the clock has stopped; `Recorder.result` does that afterwards. Every
report says what the recorder costs a message (`cost_ns`).
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import payload

if TYPE_CHECKING:
    from collections.abc import MutableSequence

#: Single messages noted before `Recorder.one` asks its caller to call `Recorder.more`.
TURN = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """What one worker saw in one phase; all times are CLOCK_MONOTONIC in nanoseconds."""

    #: When the first message was in the application's hands; 0 when there was none.
    first_ns: int
    #: When the last message was in the application's hands and handled (confirmed, where the loop confirms).
    last_ns: int
    #: Messages in the first batch: received before the clock had run at all.
    first_batch: int
    #: Sequence numbers in the order of arrival, as the bytes of an array of unsigned 64-bit numbers.
    sequences: bytes
    #: Receive time minus stamp in ns, in the same order, signed 64 bit; empty unless `handle` was used.
    #: With `arrived` the time it took instead.
    delays: bytes
    #: Receive times in ns, in the same order, signed 64 bit; empty unless `handle` or `arrived` was used.
    arrivals: bytes = b""


class Recorder:
    """Counts messages of one worker and says when all workers together have enough.

    A system's loop is ``while recorder.more(): ...`` and in it one of `batch`, `one`, `handle`, `arrived`.
    """

    def __init__(self, *, progress: MutableSequence[int], slot: int, target: int, idle_s: float) -> None:
        """Count in ``progress[slot]`` (shared by all workers) until its sum is ``target``.

        ``idle_s``: seconds without a message in any worker after which this one gives up (the rest is lost).
        """
        self._progress = progress
        self._slot = slot
        self._alone = len(progress) == 1
        self._idle_ns = int(idle_s * 1e9)
        self.target = target
        self.begin()

    def begin(self) -> None:
        """Start a phase: forget what was noted, keep the count."""
        missing = max(0, self.target - sum(self._progress))
        self._store = bytearray(b"\xff") * (missing * payload.SIZE)
        self._used = 0
        self._pending: list[bytes] = []
        self._stamps = array("q")
        self._waits = array("q")
        self._count = self._progress[self._slot]
        self._turn = 1
        self._fresh = False
        self._seen = -1
        self._seen_ns = time.monotonic_ns()
        self._first_ns = 0
        self._first_batch = 0
        self._last_ns = 0

    def room(self, wanted: int) -> int:
        """Return how many messages to ask for: ``wanted``, or the rest if this worker is alone."""
        if not self._alone:
            return wanted
        return max(1, min(wanted, self.target - self._count - len(self._pending)))

    def batch(self, values: list[bytes]) -> None:
        """Note a batch of payloads just received (an empty list is fine).

        Raises:
            ValueError: not payloads of `payload.SIZE` bytes: perhaps the text of an error event.
        """
        if not values:
            return
        if not self._first_ns:
            self._first_ns = time.monotonic_ns()
            self._first_batch = len(values)
        chunk = b"".join(values)
        if len(chunk) != payload.SIZE * len(values):
            message = f"not the messages of this benchmark (an error event of the client?): {values[-1]!r}"
            raise ValueError(message)
        self._keep(chunk)
        self._count += len(values)
        self._fresh = True

    def one(self, value: bytes) -> bool:
        """Note one payload just received; False when the caller has to ask `more` before the next one."""
        pending = self._pending
        pending.append(value)
        if len(pending) < self._turn:
            return True
        self._flush()
        return False

    def handle(self, value: bytes) -> None:
        """Do the work of a message as an application would: stamp its arrival, sleep, note it."""
        self._stamps.append(time.monotonic_ns())
        if not self._first_ns:
            self._first_ns = self._stamps[-1]
            self._first_batch = 1
        work_us = payload.work_us(value)
        if work_us:
            time.sleep(work_us / 1e6)
        self._keep(value)
        self._count += 1
        self._fresh = True

    def arrived(self, value: bytes, *, since_ns: int) -> None:
        """Note the one message that was waited for since ``since_ns`` (CLOCK_MONOTONIC)."""
        self._waits.append(time.monotonic_ns() - since_ns)
        self.handle(value)

    def more(self) -> bool:
        """Say whether messages are still wanted; for the head of the loop, after confirming the last ones."""
        if self._pending:
            self._flush()
        if self._fresh:
            self._fresh = False
            self._last_ns = time.monotonic_ns()
            self._progress[self._slot] = self._count
        total = self._count if self._alone else sum(self._progress)
        if total >= self.target:
            return False
        if total != self._seen:
            self._seen = total
            self._seen_ns = self._last_ns if self._alone and self._last_ns else time.monotonic_ns()
            return True
        return time.monotonic_ns() - self._seen_ns < self._idle_ns

    def result(self) -> Recording:
        """Parse what was noted; call it after the clock has stopped."""
        sequences, stamps = array("Q"), array("q")
        for sequence, stamp_ns in payload.decode_all(memoryview(self._store)[: self._used]):
            sequences.append(sequence)
            stamps.append(stamp_ns)
        delays = array("q", self._waits)
        if self._stamps and not self._waits:
            delays.extend(seen - sent for seen, sent in zip(self._stamps, stamps, strict=True))
        return Recording(
            first_ns=self._first_ns,
            last_ns=self._last_ns,
            first_batch=self._first_batch,
            sequences=sequences.tobytes(),
            delays=delays.tobytes(),
            arrivals=self._stamps.tobytes(),
        )

    def _keep(self, chunk: bytes) -> None:
        """Copy payloads into the reserved memory, which grows only when more arrive than were wanted."""
        end = self._used + len(chunk)
        self._store[self._used : end] = chunk
        self._used = end

    def _flush(self) -> None:
        """Turn single payloads into a batch; neither the first message nor the last ones are held back."""
        self.batch(self._pending)
        self._pending = []
        self._turn = max(1, min(TURN, self.target - self._count)) if self._alone else 1


def cost_ns(messages: int = 100_000, size: int = 1_000, repeats: int = 5) -> tuple[float, float]:
    """Measure the recorder alone: nanoseconds a message through `Recorder.batch` and through `Recorder.one`.

    Both include the call that takes the payload out of a real ``confluent_kafka.Message``. The best of
    ``repeats`` is returned: what other processes of the machine took is no cost of the recorder.
    """
    found = [_cost_ns(messages, size) for _ in range(repeats)]
    return min(batched for batched, _ in found), min(single for _, single in found)


def _cost_ns(messages: int, size: int) -> tuple[float, float]:
    from confluent_kafka import Message  # noqa: PLC0415 - only the measurement needs it

    chunk = [Message(topic="t", partition=0, offset=n, value=payload.encode(n)) for n in range(size)]
    recorder = Recorder(progress=[0], slot=0, target=messages, idle_s=1.0)
    started = time.monotonic_ns()
    while recorder.more():
        recorder.batch([message.value() for message in chunk])  # type: ignore[misc]
    batched = (time.monotonic_ns() - started) / messages
    recorder = Recorder(progress=[0], slot=0, target=messages, idle_s=1.0)
    started = time.monotonic_ns()
    going = True
    while going:
        for message in chunk:
            if not recorder.one(message.value() or b"") and not recorder.more():
                going = False
                break
    return batched, (time.monotonic_ns() - started) / messages
