"""How a window is shared between partitions: others come first after enough records in a row."""

from kafkadur.consumer.policy.fairness import IN_A_ROW, Fairness


def test_partitions_that_were_served_last_stay_first() -> None:
    fairness = Fairness()
    assert fairness.order([2, 0, 1]) == [2, 0, 1]
    fairness.granted({1: IN_A_ROW - 1})
    assert fairness.order([2, 0, 1]) == [1, 2, 0]


def test_others_come_first_after_enough_records() -> None:
    fairness = Fairness()
    fairness.granted({1: IN_A_ROW - 1})
    fairness.granted({})
    assert not fairness.others_first()
    fairness.granted({1: 1})
    assert fairness.others_first()
    assert fairness.order([1, 2, 0]) == [2, 0, 1]


def test_a_grant_of_another_partition_begins_a_new_row() -> None:
    fairness = Fairness()
    fairness.granted({1: IN_A_ROW})
    fairness.granted({2: IN_A_ROW - 1})
    assert fairness.order([0, 1, 2]) == [2, 0, 1]
    fairness.granted({2: 1})
    assert fairness.order([2, 1, 0]) == [0, 1, 2]


def test_after_a_row_comes_the_partition_that_was_served_least_recently() -> None:
    fairness = Fairness()
    for partition in (0, 2, 1, 3):
        fairness.granted({partition: 1})
    assert fairness.order([0, 1, 2, 3, 4]) == [3, 4, 0, 2, 1]


def test_partitions_that_are_served_together_share_a_row() -> None:
    fairness = Fairness()
    fairness.granted({0: 1, 1: IN_A_ROW - 3})
    fairness.granted({0: 1})
    assert not fairness.others_first()
    fairness.granted({0: 1})
    assert fairness.order([0, 1, 2]) == [2, 0, 1]
