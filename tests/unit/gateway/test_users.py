"""The file of users: passwords are kept as digests, and wrong lines are named."""

from pathlib import Path

import pytest

from kafkadur import IllegalState, InvalidName
from kafkadur.gateway.users import add_user, parse_users, read_users


def test_users_and_their_passwords(tmp_path: Path) -> None:
    path = tmp_path / "users"
    add_user(path, "ada", "secret")
    add_user(path, "bob", "other words")
    users = read_users(path)
    assert users.has_password("ada", "secret")
    assert users.has_password("bob", "other words")
    assert not users.has_password("ada", "other words")
    assert not users.has_password("eve", "secret")
    assert path.stat().st_mode & 0o077 == 0
    assert "secret" not in path.read_text()
    add_user(path, "ada", "new")
    assert read_users(path).has_password("ada", "new")
    assert not read_users(path).has_password("ada", "secret")


@pytest.mark.parametrize(
    "line", ["ada", "ada plain:1:2", "ada scrypt:00:00", "ada scrypt:xx:yy", "a/b scrypt:00:00", "a b c"]
)
def test_a_wrong_line_is_named(line: str) -> None:
    with pytest.raises(IllegalState, match=r"Line 3 .*kafkadur gateway-user"):
        parse_users(["# users", "", line], owner="file users")


def test_what_no_user_can_be(tmp_path: Path) -> None:
    with pytest.raises(IllegalState, match="password"):
        add_user(tmp_path / "users", "ada", "")
    with pytest.raises(InvalidName):
        add_user(tmp_path / "users", "a b", "x")
    with pytest.raises(IllegalState, match="cannot be written"):
        add_user(tmp_path / "no" / "users", "ada", "x")
    with pytest.raises(IllegalState, match="cannot be read"):
        read_users(tmp_path / "none")
