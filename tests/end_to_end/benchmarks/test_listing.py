"""The benchmark of lists, small: it measures requests that were answered."""

import json

import pytest

from benchmarks import listing


@pytest.mark.long
def test_each_list_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    listing.main(subscriptions=12, partitions=3, runs=1, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert (said["subscriptions"], said["partitions"]) == (12, 3)
    assert "the first page" in said["seconds"]
    assert all(took > 0 for took in said["seconds"].values())
