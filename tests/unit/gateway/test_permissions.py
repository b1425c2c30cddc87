"""The file of permissions: everything that no rule allows is refused, and wrong lines are named."""

from pathlib import Path

import pytest

pytest.importorskip("proton", reason="the AMQP engine is not installed: there is no C compiler")

from kafkadur.gateway.conditions import UNAUTHORIZED, Refused
from kafkadur.gateway.destinations import Destination, Kind
from kafkadur.gateway.permissions import EVERYTHING, Action, parse_permissions, read_permissions
from kafkadur_sharing.errors import IllegalState

LINES = """
# user        actions           topics and queues
ada           publish,consume   orders.*
"ada l."      create            "orders.*"   # of a certificate
*             consume           public.news
ada           client-id         ada-*
""".splitlines()


def allowed(user: str | None, topic: str) -> set[Action]:
    """The actions of a user at a topic."""
    found = parse_permissions(LINES, owner="file permissions").of(user)
    return {action for action in Action if found.allows(action, topic)}


def test_rules_allow_and_everything_else_is_refused() -> None:
    assert allowed("ada", "orders.eu") == {Action.PUBLISH, Action.CONSUME}
    assert allowed("ada l.", "orders.eu") == {Action.CREATE}
    assert allowed("ada", "orders") == allowed("ada", "Orders.eu") == allowed("bob", "orders.eu") == set()
    assert allowed("bob", "public.news") == allowed(None, "public.news") == {Action.CONSUME}
    assert allowed("ada", "ada-1") == {Action.CLIENT_ID}
    assert all(EVERYTHING.of(None).allows(action, "t") for action in Action)
    assert EVERYTHING.of("ada").allows_all


def test_a_refusal_names_user_and_action() -> None:
    rules = parse_permissions(LINES, owner="file permissions")
    assert not rules.of("ada").allows_all
    with pytest.raises(Refused, match=r"'ada' has no permission to create at 'orders\.eu'") as refusal:
        rules.of("ada").check(Action.CREATE, Destination("orders.eu"))
    assert refusal.value.condition == UNAUTHORIZED
    with pytest.raises(Refused, match="without a name"):
        rules.of(None).check(Action.PUBLISH, Destination("public.news"))
    rules.of(None).check(Action.PUBLISH, Destination("any", Kind.TEMPORARY_QUEUE))


def test_client_ids_need_a_permission_and_a_user_without_rules_cannot_connect() -> None:
    rules = parse_permissions(LINES, owner="file permissions")
    for user, client_id in (("ada", None), ("ada", "ada-1"), (None, None)):
        rules.of(user).check_connection(client_id)
    EVERYTHING.of(None).check_connection("any")
    for user, client_id in (("ada", "bob-1"), (None, "ada-1")):
        with pytest.raises(Refused, match=f"to use the client id '{client_id}'"):
            rules.of(user).check_connection(client_id)
    with pytest.raises(Refused, match="'bob' has no permission at all"):
        parse_permissions(["ada publish t"], owner="rules").of("bob").check_connection(None)


@pytest.mark.parametrize(
    "line",
    [
        "ada",
        "ada publish",
        "ada write t",
        "ada publish t u",
        'ada publish "t',
        "ada publish queue://t",
        "a publish [t]",
    ],
)
def test_a_wrong_line_is_named(line: str) -> None:
    with pytest.raises(IllegalState, match=r"Line 2 of the permissions.*file rules"):
        parse_permissions(["# none", line], owner="file rules")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("ada publish t\n")
    assert read_permissions(tmp_path / "rules").of("ada").allows(Action.PUBLISH, "t")
    with pytest.raises(IllegalState, match=str(tmp_path / "none")):
        read_permissions(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(IllegalState, match="not a text file"):
        read_permissions(tmp_path / "binary")
