"""The API keeps what its OpenAPI description says, for whatever it is asked."""

from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.checks import positive_data_acceptance
from schemathesis.core.result import Ok

import kafkadur.sync
from kafkadur.testing.pytest_plugin import TopicFactory
from tests.integration.serve.test_reading import prepared
from tests.serving import WRITE, Api

#: Its answer never ends.
ENDLESS = "/api/v1/events"
#: Requests of each route.
EXAMPLES = 60


@pytest.mark.long
def test_each_route_answers_as_it_is_described(
    api: Api, connection: kafkadur.sync.Connection, kafkadur_topic: TopicFactory
) -> None:
    prepared(connection, kafkadur_topic(), "invoices")
    api.listed()
    address = str(api.client.base_url)
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    tried: set[str] = set()
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        if operation.path == ENDLESS:
            continue

        @hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType] # its metaclass
        )
        @hypothesis.given(case=operation.as_strategy())
        def ask(case: schemathesis.Case[Any]) -> None:
            if "id" in case.path_parameters and len(str(case.path_parameters["id"])) % 2:
                case.path_parameters["id"] = "invoices"
            answer = case.call(base_url=address, headers=WRITE, timeout=60)
            assert answer.status_code < 500, (answer.status_code, answer.text)
            # a text that is no selector is refused, and a schema cannot say which are
            case.validate_response(answer, excluded_checks=[positive_data_acceptance])

        ask()
        tried.add(f"{operation.method} {operation.path}")
    assert len(tried) >= 25, tried
