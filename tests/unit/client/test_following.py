"""When a member follows a partition, and when it reads only what it was granted of it: the rule by itself."""

import pytest

from kafkadur.fetch.following import LEAST_USED, WORTH_A_READ, Following

#: What is granted between two judgements, with a small window.
STEP = 5_000


def judged(following: Following, *, share: int, lease: int, times: int = 3) -> bool:
    """Whether it is followed after a member used one in `share`, in leases of so many records."""
    offset = getattr(following, "at", 0)
    following.advanced(0, offset)
    for _ in range(times):
        for _ in range(STEP // share // lease):
            following.granted(0, lease)
        offset += STEP
        following.advanced(0, offset)
    return 0 not in following.by_range


def test_followed_while_an_eighth_is_used() -> None:
    assert judged(Following(window=100), share=LEAST_USED, lease=125)


def test_not_followed_when_less_is_used() -> None:
    assert not judged(Following(window=100), share=16, lease=104)


def test_followed_when_a_read_for_each_small_lease_would_cost_more() -> None:
    assert judged(Following(window=100), share=16, lease=WORTH_A_READ // 16 - 1)


def test_not_followed_while_nothing_is_granted() -> None:
    """A member whose window is full of what it cannot finish."""
    following = Following(window=100)
    following.advanced(0, 0)
    following.advanced(0, STEP)
    assert following.by_range == {0}


@pytest.mark.parametrize(("share", "follows"), [(8, False), (4, True)])
def test_followed_again_when_twice_as_much_is_used(share: int, *, follows: bool) -> None:
    following = Following(window=100)
    following.advanced(0, 0)
    following.advanced(0, STEP)
    for step in range(2, 5):
        for _ in range(STEP // share // 125):
            following.granted(0, 125)
        following.advanced(0, step * STEP)
    assert (0 not in following.by_range) == follows


def test_nothing_is_judged_before_enough_was_granted() -> None:
    following = Following(window=1_000)
    following.advanced(0, 0)
    following.advanced(0, 15_999)
    assert following.by_range == set()
    following.advanced(0, 16_000)
    assert following.by_range == {0}


def test_a_watched_partition_is_followed_and_judged_anew() -> None:
    following = Following(window=100)
    following.advanced(0, 0)
    following.advanced(0, STEP)
    following.watch([0])
    assert following.by_range == set()
    following.advanced(0, 2 * STEP)
    assert following.by_range == set()
    following.advanced(0, 3 * STEP)
    assert following.by_range == {0}
