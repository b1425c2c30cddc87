"""A flag, as an event: every thread that waits is woken, and it stays set until it is cleared."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from kafkadur.runtime.flag import Flag


def test_it_is_set_until_it_is_cleared() -> None:
    flag = Flag()
    assert not flag.is_set()
    assert not flag.wait(0.0)
    flag.set()
    flag.set()
    assert flag.is_set()
    assert flag.wait(0.0)
    assert flag.wait(), "waiting does not use it up"
    flag.clear()
    assert not flag.is_set()
    assert not flag.wait(-1.0)


def test_all_that_wait_are_woken() -> None:
    flag = Flag()
    with ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(flag.wait, 60.0) for _ in range(4)]
        flag.set()
        assert all(wait.result(60.0) for wait in waits)
