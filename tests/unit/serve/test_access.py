"""Tokens and roles, and which hosts are this machine."""

import stat
from pathlib import Path

import pytest

from kafkadur.service.access import Caller, Proxy, Role, add_token, is_loopback, parse_tokens, read_tokens
from kafkadur_sharing.errors import IllegalState, InvalidName

DIGEST = "sha256:" + "ab" * 32


def test_a_token_that_was_added_is_known_by_its_name_and_role(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    first, second = add_token(file, "ada", Role.ADMIN), add_token(file, "bob", Role.VIEWER)
    tokens = read_tokens(file)
    ada, bob = tokens.caller(first), tokens.caller(second)
    assert ada is not None
    assert bob is not None
    assert (ada.name, ada.role, bob.name, bob.role) == ("ada", Role.ADMIN, "bob", Role.VIEWER)
    assert tokens.caller("") is None
    assert tokens.caller(first[:-1]) is None
    assert first not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_proxy_names_people_whose_groups_have_roles(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    token = add_token(file, "sso", None)
    tokens = read_tokens(file)
    assert tokens.caller(token) is None
    proxy = tokens.proxy(token)
    assert proxy == Proxy("sso")
    assert proxy is not None
    assert tokens.proxy(token[:-1]) is None
    assert proxy.caller("ada@example.org", "staff, kafkadur-viewer,kafkadur-operator") == Caller(
        "sso:ada@example.org", Role.OPERATOR
    )
    assert proxy.caller("ada", "kafkadur-administrator,admin") is None
    assert proxy.caller(" ", "kafkadur-admin") is None
    named = proxy.caller("ada\nroot admin" + "x" * 500, "kafkadur-admin")
    assert named is not None
    assert "\n" not in named.name
    assert len(named.name) == len("sso:") + 200


def test_comments_and_empty_lines_are_skipped() -> None:
    parse_tokens(["# people", "", f"  ada admin {DIGEST} "], owner="here")


@pytest.mark.parametrize(
    "line",
    [
        "ada", "ada admin", f"ada root {DIGEST}", f"a/b admin {DIGEST}", "ada admin sha256:zz",
        f"ada admin {DIGEST}00", f"ada admin {DIGEST[7:]}", f"ada admin {DIGEST} more",
    ],
)  # fmt: skip
def test_a_wrong_line_is_named(line: str) -> None:
    with pytest.raises(IllegalState, match="Line 2 of the tokens is wrong"):
        parse_tokens(["# people", line], owner="here")


def test_nothing_is_added_to_a_file_that_is_no_file_of_tokens(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("remember the milk\n")
    with pytest.raises(IllegalState):
        add_token(file, "ada", Role.ADMIN)
    assert file.read_text() == "remember the milk\n"
    with pytest.raises(InvalidName):
        add_token(tmp_path / "tokens", "a b", Role.ADMIN)
    with pytest.raises(IllegalState, match="cannot be read"):
        read_tokens(tmp_path / "nothing")


def test_a_token_is_added_behind_a_line_without_its_end(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"ada admin {DIGEST}")
    token = add_token(file, "bob", Role.VIEWER)
    caller = read_tokens(file).caller(token)
    assert caller is not None
    assert caller.name == "bob"


@pytest.mark.parametrize("host", ["localhost", "localhost:9470", "127.0.0.1:1", "[::1]", "[::1]:9470"])
def test_hosts_of_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "example.org", "127.0.0.1.example.org:9470", "0.0.0.0", "[::1", "10.0.0.1"]
)
def test_hosts_that_are_others(host: str) -> None:
    assert not is_loopback(host)
