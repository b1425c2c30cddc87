"""How a window is shared between partitions: one comes first, and last after enough records in a row."""

from kafkadur.consumer.policy.fairness import IN_A_ROW, Fairness


def test_the_partition_that_was_served_last_stays_first() -> None:
    fairness = Fairness()
    assert fairness.order([2, 0, 1]) == [2, 0, 1]
    fairness.granted({1: IN_A_ROW - 1})
    assert fairness.order([2, 0, 1]) == [1, 2, 0]


def test_others_come_first_after_enough_records() -> None:
    fairness = Fairness()
    fairness.granted({1: IN_A_ROW - 1})
    fairness.granted({})
    assert not fairness.is_over()
    fairness.granted({1: 1})
    assert fairness.is_over()
    assert fairness.order([1, 2, 0]) == [2, 0, 1]


def test_the_turn_goes_to_the_partition_that_came_first_least_recently() -> None:
    fairness = Fairness()
    for partition in (0, 2, 1, 3):
        fairness.granted({partition: 1})
    assert fairness.order([0, 1, 2, 3, 4]) == [3, 4, 0, 2, 1]
    fairness.granted({3: IN_A_ROW})
    assert fairness.order([0, 1, 2, 3, 4]) == [4, 0, 2, 1, 3]
    fairness.granted({1: 5, 2: 5, 3: 5})
    assert fairness.first == 2


def test_what_others_get_of_the_room_that_is_left_does_not_end_the_turn() -> None:
    fairness = Fairness()
    fairness.granted({0: 10})
    fairness.granted({0: 10, 1: 5})
    assert fairness.first == 0
    fairness.granted({1: 5})
    assert fairness.first == 1


def test_a_long_backlog_beside_a_trickle_stays_no_longer_than_its_turn() -> None:
    fairness = Fairness()
    fairness.granted({0: IN_A_ROW - 3, 1: 3})
    for _ in range(5):
        fairness.granted({0: IN_A_ROW})
        assert fairness.order([0, 1]) == [1, 0]
        fairness.granted({0: 247, 1: 3})
        assert fairness.order([0, 1]) == [1, 0]
        fairness.granted({0: 250})
        assert fairness.order([1, 0]) == [0, 1]


def test_a_partition_without_others_stays_first() -> None:
    fairness = Fairness()
    for _ in range(5):
        fairness.granted({7: IN_A_ROW})
    assert fairness.first == 7
    assert fairness.order([7]) == [7]
