"""The table of rules is what the tests say, and each rule has one."""

import pytest

from tests.integration.rules import table
from tests.integration.rules.catalogue import GROUPS

TESTED = table.tested()
RULES = [rule for rules in GROUPS.values() for rule in rules]


def test_the_table_is_up_to_date() -> None:
    assert table.TABLE.read_text() == table.render(), "write it: python -m tests.integration.rules.table"


@pytest.mark.parametrize("rule", RULES, ids=[rule.id for rule in RULES])
def test_each_rule_has_a_test(rule: tuple[str, ...]) -> None:
    assert TESTED.get(rule[0])


def test_ids_are_used_once() -> None:
    ids = [rule.id for rule in RULES]
    assert sorted(set(ids)) == sorted(ids)
