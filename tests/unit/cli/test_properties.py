"""Properties as they are written on the command line."""

import pytest
import typer

from kafkadur.cli.properties import parse_properties
from kafkadur.message.headers import Property


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("a=word", "a", "word"),
        ("a=", "a", ""),
        ("a=x=y", "a", "x=y"),
        ("a=5", "a", 5),
        ("a=-5", "a", -5),
        ("a=5.5", "a", 5.5),
        ("a=1e3", "a", 1000.0),
        ("a=.5", "a", 0.5),
        ("a=e3", "a", "e3"),
        ("a=nan", "a", "nan"),
        ("a=1_0", "a", "1_0"),
        ("a=1234567890123456789012", "a", "1234567890123456789012"),
        ("a=true", "a", True),
        ("a=True", "a", "True"),
        ("a:str=5", "a", "5"),
        ("a:int=5", "a", 5),
        ("a:float=5", "a", 5.0),
        ("a:bool=false", "a", False),
        ("a:bytes=5", "a", b"5"),
        ("a=b:c=d", "a", "b:c=d"),
    ],
)
def test_value_and_type(text: str, name: str, value: Property) -> None:
    found = parse_properties([text])
    assert found == {name: value}
    assert type(found[name]) is type(value)


@pytest.mark.parametrize("text", ["a", "a:int", "a:int=x", "a:bool=yes", "a:date=5", "a:float="])
def test_what_is_none_is_a_wrong_command_line(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_properties([text])


def test_the_last_of_one_name_wins() -> None:
    assert parse_properties(["a=1", "b=2", "a=3"]) == {"a": 3, "b": 2}
