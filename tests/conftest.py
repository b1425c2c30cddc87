"""The stack of a test run: the pytest plugin's, but for who connects to Valkey.

That is a user with the documented minimum (`kafkadur acl redis`): were it too small, tests would fail. Tests
that play the administrator use `stack.admin_redis`.
"""

from collections.abc import Iterator

import pytest

from kafkadur.stack import Stack, embedded


@pytest.fixture(scope="session")
def kafkadur_stack() -> Iterator[Stack]:
    """Provide a running stack, one broker and one Valkey, for the whole test run."""
    with embedded(users=True) as stack:
        yield stack
