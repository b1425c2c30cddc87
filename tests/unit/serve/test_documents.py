"""The types of JSON documents name exactly the fields of the values that they are made of."""

from dataclasses import fields
from typing import Any

import pytest

from kafkadur.admin.changes import Move
from kafkadur.admin.documents import Amounts, Partition, PartitionMove, Query
from kafkadur.admin.sizes import Sizes
from kafkadur.admin.subscription_info import PartitionInfo
from kafkadur_coordinators.holder_progress import HolderProgress


@pytest.mark.parametrize(
    ("document", "value"),
    [(Partition, PartitionInfo), (Amounts, Sizes), (PartitionMove, Move), (Query, HolderProgress)],
)
def test_a_document_has_the_fields_of_its_value(document: Any, value: Any) -> None:
    assert document.__required_keys__ == {field.name for field in fields(value)}
