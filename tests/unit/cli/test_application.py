"""The tree of commands: it is complete, and help needs none of the clients."""

import ast
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kafkadur.cli
from kafkadur.cli.application import COMMANDS, app, function_of

FOLDER = Path(kafkadur.cli.__file__).parent
PLACES = [place for commands in COMMANDS.values() for place in commands]


def declared() -> set[str]:
    """The functions that are made commands, by file."""
    found: set[str] = set()
    for file in FOLDER.glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            names = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
            if isinstance(node, ast.FunctionDef) and {"command", "local_command"} & set(names):
                found.add(f"{file.stem}.{node.name}")
    return found


def test_each_command_is_in_the_tree_once() -> None:
    assert sorted(PLACES) == sorted(declared())


@pytest.mark.parametrize("place", PLACES)
def test_each_command_can_be_imported_and_has_help(place: str) -> None:
    assert (function_of(place).__doc__ or "").strip()


@pytest.mark.parametrize("group", COMMANDS)
def test_help_lists_the_commands(group: str) -> None:
    path = {"dead": ["sub", "dead"]}.get(group, [group] if group.islower() else [])
    shown = " ".join(CliRunner().invoke(app, [*path, "--help"]).stdout.replace("│", " ").split())
    for place, text in COMMANDS[group].items():
        assert f"{place.rpartition('.')[2].replace('_', '-')} {text}" in shown


def test_a_command_has_its_own_options() -> None:
    shown = CliRunner().invoke(app, ["sub", "create", "--help"]).stdout
    assert "--max-attempts" in shown
    wrong = CliRunner().invoke(app, ["sub", "create", "--no-such-option"])
    assert wrong.exit_code == 2
    unknown = CliRunner().invoke(app, ["sub", "no-such-command"])
    assert unknown.exit_code == 2
