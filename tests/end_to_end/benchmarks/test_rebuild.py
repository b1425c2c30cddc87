"""The benchmark of the rebuild, small: it measures something that happened."""

import json

import pytest

from benchmarks import rebuild


@pytest.mark.long
def test_all_and_single_ones_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    rebuild.main(subscriptions=12, partitions=3, in_use=4, runs=1, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert (said["subscriptions"], said["partitions"]) == (12, 3)
    (times,) = said["runs_s"]
    assert 0 < times["one_median"] <= times["one_max"]
    assert times["all"] > 0
