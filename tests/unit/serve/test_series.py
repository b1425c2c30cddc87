"""Samples of the last hour, and the age of messages from the ends of their partition."""

import threading

from kafkadur.service.series import SPAN_MS, Age, Ends, Sample, Series

MINUTE = 60_000


def sample(at: int, **changed: int | None) -> Sample:
    usual = {"backlog": 5, "in_flight": 1, "came_back": 0, "arrived": 1_500, "settled": 0}
    return Sample(at=at, **{**usual, **changed})  # type: ignore[arg-type]  # those that can be None


def test_samples_come_back_as_they_were_added() -> None:
    series = Series()
    assert (series.last, series.samples()) == (None, [])
    added = [sample(1_000, backlog=None, arrived=None), sample(2_000), sample(3_000, settled=None)]
    for each in added:
        series.add(each)
    assert series.samples() == added
    assert series.last == 3_000


def test_samples_are_kept_for_an_hour() -> None:
    series = Series()
    for minute in range(90):
        series.add(sample(minute * MINUTE))
    kept = [each.at for each in series.samples()]
    assert kept == [minute * MINUTE for minute in range(29, 90)]
    assert kept[-1] - kept[0] == SPAN_MS


def test_a_message_is_as_old_as_the_end_behind_it() -> None:
    ends = Ends()
    for minute, end in enumerate([10, 10, 20, 20, 35]):
        ends.add(end, minute * MINUTE)
    now = 5 * MINUTE
    assert ends.age_of(9, now) == Age(5 * MINUTE, at_least=True)
    assert ends.age_of(10, now) == Age(3 * MINUTE, at_least=False)
    assert ends.age_of(19, now) == Age(3 * MINUTE, at_least=False)
    assert ends.age_of(34, now) == Age(MINUTE, at_least=False)
    assert ends.age_of(35, now) is None


def test_what_is_older_than_an_hour_is_at_least_as_old() -> None:
    ends = Ends()
    for minute in range(120):
        ends.add(minute, minute * MINUTE)
    now = 119 * MINUTE
    old, young = ends.age_of(3, now), ends.age_of(100, now)
    assert old is not None
    assert old.at_least
    assert old.ms >= SPAN_MS
    assert young == Age(18 * MINUTE, at_least=False)


def test_a_partition_that_grows_all_the_time_costs_no_more_than_others() -> None:
    ends = Ends()
    for ms in range(0, 100_000, 100):
        ends.add(ms, ms)
    ages = [ends.age_of(offset, 100_000) for offset in range(0, 90_000, 1_000)]
    assert len({age.ms for age in ages if age is not None}) <= 11


def test_ends_before_a_log_was_cut_off_say_nothing() -> None:
    ends = Ends()
    ends.add(1_000, 0)
    ends.add(5, 30 * MINUTE)
    assert ends.age_of(3, 31 * MINUTE) == Age(MINUTE, at_least=True)


def test_a_reader_in_another_thread_has_whole_samples() -> None:
    series = Series()

    def add() -> None:
        for number in range(3_000):
            series.add(sample(number, backlog=number))

    writer = threading.Thread(target=add)
    writer.start()
    while writer.is_alive():
        assert all(each.at == each.backlog for each in series.samples())
    writer.join()
    assert len(series.samples()) == 3_000
