"""The documents keep up with the code: names, errors, alerts, commands and options, code that compiles."""

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from kafkadur.cli.application import app
from kafkadur_sharing.errors import __all__ as errors

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
API = DOCS / "reference" / "api"

#: Documents that users read; decisions and internals show code that is not whole.
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in DOCS.rglob("*.md")
        if page.relative_to(DOCS).parts[0] not in ("decisions", "internals")
    ),
]


def blocks(page: Path, language: str) -> Iterator[str]:
    """Yield the code blocks of a document in a language."""
    for found in re.finditer(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
        yield found[1]


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each call of kafkadur in the console blocks of a document."""
    for block in blocks(page, "console"):
        for line in block.replace("\\\n", " ").splitlines():
            if found := re.search(r"(?:^\$ |[|&;] |\$\()kafkadur (?P<rest>[^|&;)]*)", line):
                yield shlex.split(found["rest"], comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_compiles(page: Path) -> None:
    for code in blocks(page, "python"):
        compile(code, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(commands(page))], ids=lambda page: str(page.relative_to(ROOT))
)
def test_commands_and_options_exist(page: Path) -> None:
    for words in commands(page):
        assert unknown_words(words) == [], f"kafkadur {' '.join(words)}"


def unknown_words(words: list[str]) -> list[str]:
    """Return the first word of a call that is no command, or the options that its command does not have."""
    command: Any = typer.main.get_command(app)
    known = options_of(command)
    left = list(words)
    while left and hasattr(command, "commands"):
        word = left.pop(0)
        if word in known:
            del left[: not known[word].is_flag]
        elif word in command.commands:
            command = command.commands[word]
        else:
            return [word]
    if not hasattr(command, "commands"):
        known |= options_of(command.command())
    return [word for word in left if re.match("--?[a-z]", word) and word.partition("=")[0] not in known]


def options_of(command: Any) -> dict[str, Any]:
    """Return the options of a command by name."""
    own = [param for param in command.params if param.param_type_name == "option"]
    names = {name: param for param in own for name in (*param.opts, *param.secondary_opts)}
    return {**names, "--help": next(iter(own)), "-h": next(iter(own))}


@pytest.mark.parametrize(
    ("call", "unknown"),
    [
        ("sub seek billing earliest --yes", []),
        ("--namespace shop sub ls --json", []),
        ("sub sek billing", ["sek"]),
        ("sub seek billing earliest --sure", ["--sure"]),
    ],
)
def test_unknown_words_are_found(call: str, unknown: list[str]) -> None:
    assert unknown_words(call.split()) == unknown


def public() -> Iterator[str]:
    """Yield the public names of the packages, but errors."""
    for package in ("kafkadur", "kafkadur.sync", "kafkadur.jms", "kafkadur_spark"):
        for name in importlib.import_module(package).__all__:
            if name not in errors:
                yield f"{package}.{name}"


def test_every_public_name_is_described_once() -> None:
    text = "".join(page.read_text() for page in API.glob("*.md"))
    described = re.findall(r"^\.\. auto(?:class|function):: ([\w.]+)", text, re.MULTILINE)
    assert sorted(set(public()) - set(described)) == []
    assert len(described) == len(set(described))


def test_every_public_name_has_an_example() -> None:
    """A name that a method returns is shown by the call of that method."""
    made = {
        "Connection": "connect(",
        "Session": ".session(",
        "Distributed": ".distributed(",
        "Producer": ".producer(",
        "Subscription": ".subscribe(",
        "Batch": ".receive_batch(",
        "Receipt": "receipt =",
        "Settings": ".settings",
        "ClientIdPolicy": "client_id_policy=",
        "MessageConsumer": "create_durable_consumer(",
        "MessageProducer": "create_producer(",
        "Message": "message.text",
        "Claimer": "share(",
        "Claim": ".claim(",
        "Holder": "hold(",
        "Reading": "read_stream(",
    }
    code = "".join(block for page in API.glob("*.md") for block in blocks(page, "python"))
    missing = [
        name
        for name in public()
        if not re.search(rf"\b{name.rsplit('.', 1)[1]}\b", code)
        and made.get(name.rsplit(".", 1)[1], "\0") not in code
    ]
    assert missing == []


def test_every_error_has_a_cause_and_a_remedy() -> None:
    sections = re.split(r"^## ", (DOCS / "reference" / "errors.md").read_text(), flags=re.MULTILINE)[1:]
    told = {section.partition("\n")[0]: section for section in sections}
    assert list(told) == sorted(errors)
    lacking = [
        name
        for name, section in told.items()
        if name != "KafkadurError" and not ("**Cause.**" in section and "**Remedy.**" in section)
    ]
    assert lacking == []


def test_every_alert_has_a_section_in_the_runbook() -> None:
    rules = yaml.safe_load((ROOT / "helm" / "kafkadur" / "files" / "alerts.yaml").read_text())
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert re.findall(r"^## (\w+)$", (DOCS / "operations" / "runbook.md").read_text(), re.MULTILINE) == alerts
