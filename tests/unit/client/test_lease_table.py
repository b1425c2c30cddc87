"""The table of leases, which readers look at without a lock."""

from collections.abc import Callable

from kafkadur.consumer.chunk import Lease
from kafkadur.consumer.lease_table import LeaseTable
from tests.unit.client.test_promises import lease


class Shared(LeaseTable):
    """A table that another thread changes while its length is asked for."""

    def __init__(self, meanwhile: Callable[[LeaseTable], object]) -> None:
        super().__init__(lanes_apart=False)
        self._meanwhile = meanwhile

    def __len__(self) -> int:
        self._meanwhile(self)
        return super().__len__()


def of(table: LeaseTable) -> list[Lease]:
    """List the leases, as readers do: `list` asks for the length after it has begun to iterate."""
    return list(table)


def test_a_lease_that_is_granted_meanwhile_does_no_harm() -> None:
    first = lease(1, 0, 10)
    table = Shared(lambda table: table.add(lease(len(table.by_token) + 1, 10, 20)))
    table.add(first)
    assert of(table) == [first]
    assert len(table.by_token) > 1


def test_a_lease_that_ends_meanwhile_does_no_harm() -> None:
    first = lease(1, 0, 10)
    table = Shared(lambda table: table.remove(1))
    table.add(first)
    assert of(table) == [first]
    assert table.by_token == {}
