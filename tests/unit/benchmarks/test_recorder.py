"""The recorder notes every message once, stops at the shared target and counts what was lost and repeated."""

from __future__ import annotations

import time
from array import array

import pytest

from benchmarks import payload
from benchmarks.recorder import TURN, Recorder, Recording


def _recorder(target: int, progress: list[int] | None = None, idle_s: float = 5.0) -> Recorder:
    return Recorder(progress=[0] if progress is None else progress, slot=0, target=target, idle_s=idle_s)


def _sequences(recording: Recording) -> list[int]:
    return array("Q", recording.sequences).tolist()


def test_batches_and_single_messages_arrive_in_order() -> None:
    recorder = _recorder(TURN * 3)
    values = [payload.encode(sequence) for sequence in range(TURN * 3)]
    assert recorder.more()
    recorder.batch(values[:7])
    for value in values[7:]:
        if not recorder.one(value) and not recorder.more():
            break
    assert not recorder.more()
    recording = recorder.result()
    assert _sequences(recording) == list(range(TURN * 3))
    assert recording.first_batch == 7
    assert 0 < recording.first_ns <= recording.last_ns


def test_repeats_beyond_the_target_are_kept() -> None:
    recorder = _recorder(2)
    recorder.batch([payload.encode(0), payload.encode(0), payload.encode(0)])
    assert not recorder.more()
    assert _sequences(recorder.result()) == [0, 0, 0]


def test_other_members_count_towards_the_target() -> None:
    progress = [0, 4]
    recorder = _recorder(5, progress)
    assert recorder.more()
    recorder.one(payload.encode(3))
    assert not recorder.more()
    assert progress == [1, 4]


def test_gives_up_when_nothing_comes() -> None:
    recorder = _recorder(5, idle_s=0.0)
    assert recorder.more()
    assert not recorder.more()


def test_handle_measures_the_delay_and_an_error_text_is_refused() -> None:
    recorder = _recorder(2)
    recorder.handle(payload.encode(9, stamp_ns=1))
    recorder.more()
    assert array("q", recorder.result().delays)[0] > 0
    with pytest.raises(ValueError, match="error event"):
        recorder.batch([b"Broker: no such topic"])


def test_what_was_waited_for_is_noted_with_the_wait() -> None:
    recorder = _recorder(2)
    since = time.monotonic_ns()
    recorder.arrived(payload.encode(4, stamp_ns=1), since_ns=since)
    recorder.more()
    recording = recorder.result()
    waited, arrived = array("q", recording.delays)[0], array("q", recording.arrivals)[0]
    assert 0 <= waited <= arrived - since
    assert _sequences(recording) == [4]
