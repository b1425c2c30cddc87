"""Contexts: named sets of the options that say where Kafka and Redis are, kept in a file of the user."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kafkadur_sharing.errors import IllegalState
from kafkadur_sharing.keys import ClientIdPolicy

#: The environment variable that names the context of a command.
VARIABLE: Final = "KAFKADUR_CONTEXT"


class Context(BaseModel):
    """Values of the options of the same names."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    kafka: str
    redis: str
    namespace: str
    #: absolute path
    kafka_config: str | None = None
    client_id: str | None = None
    client_id_policy: ClientIdPolicy | None = None


class Contexts(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    #: Name of the context for commands that nothing else tells where the servers are.
    in_use: str | None = None
    contexts: dict[str, Context] = Field(default_factory=dict[str, Context])

    def named(self, name: str) -> Context:
        """Return the context of a name; raises `IllegalState` when there is none."""
        found = self.contexts.get(name)
        if found is None:
            raise IllegalState(
                f"There is no context {name!r}.",
                state=f"contexts: {', '.join(sorted(self.contexts)) or 'none'}",
                owner=f"file {place()}",
                remedy="make it with `kafkadur context add`, or correct the name",
            )
        return found

    def write(self) -> None:
        """Replace the file; only its owner can read it, because a URL of Redis may have a password.

        Raises `IllegalState` when it cannot be written.
        """
        file = place()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # mkstemp makes files that only their owner can read
            handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
            with os.fdopen(handle, "w", encoding="utf-8") as new:
                new.write(f"{self.model_dump_json(indent=2, exclude_none=True)}\n")
            Path(name).replace(file)
        except OSError as error:
            raise IllegalState(
                "The contexts cannot be written.",
                state=str(error.strerror),
                owner=f"file {file}",
                remedy="make its folder writable, or set XDG_CONFIG_HOME to another folder",
            ) from error


def place(environment: Mapping[str, str] | None = None) -> Path:
    """Return the path of the file: in XDG_CONFIG_HOME, or else in ~/.config."""
    environment = os.environ if environment is None else environment
    home = environment.get("XDG_CONFIG_HOME")
    try:
        folder = Path(home) if home else Path.home() / ".config"
    except RuntimeError:  # a user of a container has no home
        folder = Path("/nonexistent")
    return folder / "kafkadur" / "contexts.json"


def read() -> Contexts:
    """Return the content of the file, empty when there is no file; raises `IllegalState` for a wrong one."""
    file = place()
    try:
        return Contexts.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        reason = str(error.strerror)
    except ValidationError as error:
        first = error.errors()[0]
        reason = ": ".join([".".join(map(str, first["loc"])), first["msg"]]).removeprefix(": ")
    raise IllegalState(
        "The contexts cannot be read.",
        state=reason,
        owner=f"file {file}",
        remedy="correct the file, or delete it and make its contexts again",
    )
