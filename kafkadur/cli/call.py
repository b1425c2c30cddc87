"""What all commands share: the connection, --json, and the handling of errors.

`@command` gives a function these options and calls it with a `Call`.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from kafkadur.admin.changes import Admin
from kafkadur.cli import context_file
from kafkadur.cli.options import CONNECTION, OPTIONS, Options, with_parameters
from kafkadur.cli.output import Output
from kafkadur.settings import Settings, settings
from kafkadur.stack import FOLDER, status
from kafkadur_sharing.errors import CoordinatorUnavailable, IllegalState, KafkadurError

FAILED, INTERRUPTED = 1, 130
#: Seconds that the servers have for an answer to a command.
_PATIENCE_S = {"kafka_timeout": 4.0, "redis_timeout": 2.0}

YesOption = Annotated[
    bool, typer.Option("--yes", help="Do it; without it the command only says what it would do.")
]


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a command: its common options, and where it prints."""

    options: Options
    out: Output = field(compare=False)

    def setting(self, name: str) -> str | None:
        """Return a connection setting: of the options, else the named context, else the environment."""
        value: str | None = getattr(self.options, name) or self._named.get(name)
        return value or os.environ.get(f"KAFKADUR_{name.upper()}")

    @cached_property
    def _named(self) -> Mapping[str, Any]:
        """The settings of the context that the options or the environment name; empty: they name none."""
        name = self.options.context or os.environ.get(context_file.VARIABLE)
        return context_file.read().named(name).model_dump(exclude_none=True) if name else {}

    def _found(self) -> dict[str, str]:
        """Return where the servers are when nothing says it: the folder's stack, or the context in use."""
        if any(map(self.setting, ("kafka", "kafka_config", "redis"))):
            return {}
        if (running := status(FOLDER).stack) is not None:
            return {"kafka": running.kafka, "redis": running.redis}
        known = context_file.read()
        if known.in_use is None:
            return {}
        used: dict[str, str] = known.named(known.in_use).model_dump(exclude_none=True)
        return {name: value for name, value in used.items() if self.setting(name) is None}

    def settings(self, *, quick: bool = False, patience: float | None = None) -> Settings:
        """Return the settings: of the options, else the named context, else the environment.

        Where these say neither where Kafka nor where Redis is: of the stack of the current folder, else of
        the context in use.

        `quick`: servers have a few seconds to answer, because somebody waits for one answer; the environment
        may say otherwise. `patience`: they have so many seconds, whatever the environment says. Raises
        `IllegalState` for a wrong setting, and when nothing says where Kafka is.
        """
        given: dict[str, Any] = {
            name: getattr(self.options, name) or self._named.get(name) for name in CONNECTION
        }
        given |= self._found()
        if quick:
            given |= {
                each: s for each, s in _PATIENCE_S.items() if f"KAFKADUR_{each.upper()}" not in os.environ
            }
        if patience is not None:
            given |= dict.fromkeys(_PATIENCE_S, patience)
        # the environment's file may have the password of another Kafka than that of the context
        left_out = {"KAFKADUR_KAFKA_CONFIG"} if self._named else set[str]()
        chosen = settings(given, {name: value for name, value in os.environ.items() if name not in left_out})
        # Errors of kafkadur say what went wrong; librdkafka would also write it to standard error.
        quiet = {"log_level": 0, "error_cb": _ignore}
        return chosen.model_copy(update={"kafka": {**quiet, **chosen.kafka}})

    def reached(self) -> Settings:
        """Return the settings for what may take longer, after a quick look whether the servers answer."""
        with Admin(self.settings(quick=True)) as admin:
            admin.reach()
        return self.settings()

    def looking(self) -> Admin:
        """Return an `Admin` for one answer; its warnings are printed."""
        return self.admin(self.settings(quick=True))

    def admin(self, settings: Settings | None = None) -> Admin:
        """Return an `Admin` whose warnings are printed: for changes, and for what may take longer."""
        return Admin(settings or self.reached(), on_warning=self.out.say)


def _ignore(_error: object) -> None:
    """Replace the error callback of librdkafka."""


P = ParamSpec("P")


def command(
    function: Callable[Concatenate[Call, P], None], *, connection: bool = True
) -> Callable[..., None]:
    """Make a typer command of a function whose first parameter is the `Call`.

    The command also takes the common options behind its name; those of the connection only if `connection`
    is true. Errors of kafkadur become one message and exit status 1.
    """
    signature = inspect.signature(function, eval_str=True)
    own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()][1:]
    common = [option for option in OPTIONS if connection or option.name == "json"]
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    @functools.wraps(function)
    def run(*, ctx: typer.Context, **given: Any) -> None:  # noqa: ANN401 - the options of any command
        inner = Options(**{option.name: given.pop(option.name) for option in common})
        options = inner.over(ctx.obj)
        call = Call(options=options, out=Output(as_json=options.json))
        _guarded(call, functools.partial(function, call, **given))

    del run.__wrapped__  # it has another signature
    return with_parameters(run, [*own, context, *common])


#: `command` for the commands that need no connection.
local_command = functools.partial(command, connection=False)


def missing_extra(message: str, error: ImportError, extra: str) -> IllegalState:
    """Return the error that a package of an extra is not installed."""
    return IllegalState(
        message, state=str(error), owner="this Python", remedy=f"pip install 'kafkadur[{extra}]'"
    )


def _guarded(call: Call, act: Callable[[], None]) -> None:
    """Run `act`; turn an exception that ends it early into an exit status."""
    out = call.out
    try:
        act()
        sys.stdout.flush()
    except KafkadurError as error:
        if isinstance(error, CoordinatorUnavailable) and call.setting("redis") is None:
            error.remedy = f"give --redis URL, or set KAFKADUR_REDIS, if it is not there; {error.remedy}"
        out.fail(error)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        out.complain("Interrupted.")
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # The reader of standard output has gone, as `head` does: Python's last flush must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from None
