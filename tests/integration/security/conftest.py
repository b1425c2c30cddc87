"""Fixtures: certificates, and one secured stack for all tests of this room."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkadur.stack import Valkey, embedded
from kafkadur_coordinators.redis.access import redis_user
from tests.integration.security.secured import (
    SECRET,
    Certificates,
    Secured,
    guarded,
    make_certificates,
    secured,
)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Provide an authority and what it signed."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def guarded_stack(certificates: Certificates) -> Iterator[Secured]:
    """Provide a stack with TLS, passwords, and an authorizer that allows nothing by itself."""
    with secured(certificates, guarded(certificates), redis_user("app", password=SECRET)) as stack:
        yield stack


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    """Provide a server with the state of one file alone."""
    with embedded(kafka=False, users=True) as stack:
        assert stack.valkey is not None
        yield stack.valkey


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Provide a folder of the test's own."""
    return tmp_path
