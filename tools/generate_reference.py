"""Writes the pages of docs/reference that the code determines: the settings, and the command line.

`python -m tools.generate_reference` writes them, and with --check says which are not up to date.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from kafkadur import settings
from kafkadur.cli.application import app
from tools.places import ROOT

_FOLDER = ROOT / "docs" / "reference"
_HEAD = "<!-- `python -m tools.generate_reference` writes this page from the code. -->\n"


# --- settings -----------------------------------------------------------------------------------------------


_SETTINGS = """# Settings

{head}
Settings of a connection are arguments of `kafkadur.connect`, or variables of the environment. An argument
wins. In the environment times are numbers of seconds. The command line has options for some of them, and
knows [contexts](../operations/servers.md#several-clusters-on-one-command-line).

```python
connection = kafkadur.connect(kafka="kafka:9092", redis="redis://redis:6379/0", session_timeout=20)
```

```console
$ export KAFKADUR_KAFKA=kafka:9092 KAFKADUR_REDIS=redis://redis:6379/0 KAFKADUR_SESSION_TIMEOUT=20
```

| setting | variable | type | default | meaning |
|---|---|---|---|---|
{rows}

`kafka_config` (`KAFKADUR_KAFKA_CONFIG`) names a file with settings of Kafka's client, `name=value` on each
line. Those in `kafka` win.

`kafka` may have functions as confluent-kafka knows them, in Python. `stats_cb` gets the statistics of readers
and producers every `statistics.interval.ms`, but not of transacted sessions. Other functions than `stats_cb`
and `error_cb` select confluent-kafka's client, which is slower than the compiled one.

## Other variables

| variable | meaning |
|---|---|
| `KAFKADUR_CONTEXT` | the context of the command line, as `--context` |
| `KAFKADUR_ACL_PASSWORD` | the password that `kafkadur acl redis` puts into its output |
| `KAFKADUR_PURE` | 1: use confluent-kafka's client in place of the compiled one |
| `KAFKADUR_BROKER_OPTS` | more options for the JVM of the brokers of `kafkadur up` |
| `KAFKADUR_REDIS_PASSWORD` | the password of Valkey in `docker-compose.yml` |
"""


def configuration() -> str:
    """Return the page of all settings of a connection."""
    comments = _comments(inspect.getsource(settings.Settings))
    rows = [
        f"| `{name}` | `KAFKADUR_{name.upper()}` | {_kind(field)} | {_default(field)} | {comments[name]} |"
        for name, field in settings.Settings.model_fields.items()
    ]
    return _SETTINGS.format(head=_HEAD, rows="\n".join(rows))


def _comments(source: str) -> dict[str, str]:
    """Return the `#:` comments above the annotated names of a class, as one line each."""
    lines = textwrap.dedent(source).splitlines()
    (node,) = ast.parse("\n".join(lines)).body
    found: dict[str, str] = {}
    for item in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            first = item.lineno - 1
            above: list[str] = []
            while lines[first - 1].strip().startswith("#:"):
                first -= 1
                above.insert(0, lines[first].strip().removeprefix("#:").strip())
            found[item.target.id] = " ".join(above)
    return found


def _kind(field: FieldInfo) -> str:
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(f"`{each.value}`" for each in kind)
    if get_origin(kind) is Literal:
        return " or ".join(f"`{each}`" for each in get_args(kind))
    if kind is timedelta:
        return "time"
    if kind == dict[str, Any]:
        return "address, or dict"
    return "int" if kind is int else "yes or no" if kind is bool else "text"


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "needed"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"`{value.value if isinstance(value, Enum) else value}`"


# --- commands -----------------------------------------------------------------------------------------------


_COMMANDS = """# Commands

{head}
`kafkadur --help` and `kafkadur COMMAND --help` print the same on a terminal. Commands that talk to
Kafka or Redis take the options for connections. `--json` prints the data of a command as JSON on standard
output. Commands that move a subscription, send dead letters again or delete something on the servers only say
what they would do, unless `--yes` is given. `sub alter` and `down` act at once.

{epilog}

## Options for connections
"""


def commands() -> str:
    """Return the page of all commands."""
    root: Any = typer.main.get_command(app)
    shared = [each for each in root.params if getattr(each, "rich_help_panel", None) == "Connection"]
    parts = [_COMMANDS.format(head=_HEAD, epilog=root.epilog), *_table(shared)]
    for path, command in _walk(root, "kafkadur"):
        own = [each for each in command.params if getattr(each, "rich_help_panel", None) != "Connection"]
        own = [
            each for each in own if each.name not in ("json", "help", "install_completion", "show_completion")
        ]
        arguments = [each for each in own if each.param_type_name == "argument"]
        parts += [
            "",
            f"## {' '.join([path, *(_metavar(each) for each in arguments)])}",
            "",
            _plain(command.help),
            "",
        ]
        parts += _table(own)
    return "\n".join(parts).rstrip() + "\n"


def _walk(group: Any, path: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer exports no types
    """Yield the path and the command of every command below a group."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _walk(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command.command()


def _table(params: list[Any]) -> list[str]:
    if not params:
        return []
    rows = [f"| {_escaped(_usage(each))} | {_escaped(_meaning(each))} |" for each in params]
    return ["| option | meaning |", "|---|---|", *rows]


def _usage(param: Any) -> str:  # noqa: ANN401 - as above
    if param.param_type_name == "argument":
        return f"`{_metavar(param)}`"
    names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    return names if param.is_flag else f"{names} `{_metavar(param)}`"


def _metavar(param: Any) -> str:  # noqa: ANN401 - as above
    return str(param.metavar or param.opts[0].strip("-").upper())


def _meaning(param: Any) -> str:  # noqa: ANN401 - as above
    text, value = _plain(param.help or ""), param.default
    if param.required or value is None or value is False or callable(value) or value in ((), []):
        return text
    if getattr(param, "is_flag", False):
        value = param.opts[0]
    elif isinstance(value, Enum):
        value = value.value
    elif isinstance(value, float):
        value = f"{value:g}"
    return f"{text} Default: `{value}`."


def _escaped(text: str) -> str:
    """Return a text for a cell of a table."""
    return text.replace("|", "\\|")


def _plain(text: str) -> str:
    """Return a help text as Markdown: its line breaks mean nothing."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


# --- files --------------------------------------------------------------------------------------------------

PAGES = {"configuration.md": configuration, "commands.md": commands}


def main() -> int:
    """Write or check; 1 if a page is not up to date."""
    check = "--check" in sys.argv[1:]
    stale = [name for name, page in PAGES.items() if not _is_written(_FOLDER / name, page(), check=check)]
    if check and stale:
        sys.stderr.write(
            f"not up to date: docs/reference/{', '.join(stale)}: run python -m tools.generate_reference\n"
        )
        return 1
    return 0


def _is_written(path: Path, text: str, *, check: bool) -> bool:
    """Say whether a file has this text, after writing it where that is wanted."""
    if not check:
        path.write_text(text, encoding="utf-8")
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    raise SystemExit(main())
