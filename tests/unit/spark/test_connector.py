"""Maven coordinates of the Kafka connector."""

import pytest

from kafkadur_sharing.errors import IllegalState
from kafkadur_spark import packages


def test_connector_has_the_version_of_spark() -> None:
    assert packages("4.0.0") == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"


@pytest.mark.parametrize("version", ["3.5.1", "4", "none", ""])
def test_other_versions_are_refused_in_words(version: str) -> None:
    with pytest.raises(IllegalState, match="Remedy"):
        packages(version)
