"""Imports the app that `module:app` names."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

from kafkadur.worker.app import App
from kafkadur_sharing.errors import IllegalState

_NAME = "app"
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*(\.[^\W\d]\w*)*)?")


def load(target: str, folder: Path) -> App:
    """Import `module`, searching `folder` first, and return its `app`.

    Without `:name` the name is `app`. Raises `IllegalState` if there is no such module, or no such app in it;
    exceptions of the module itself are not caught.
    """
    if not _TARGET.fullmatch(target):
        raise IllegalState(
            f"{target!r} names no app.",
            state="it is not of the form module:app",
            owner="the command line",
            remedy="name it as Python imports it, package.module:app",
        )
    module_name, _, name = target.partition(":")
    name = name or _NAME
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # another module, which this one imports, is missing
        raise IllegalState(
            f"There is no module {module_name!r}.",
            state=str(error),
            owner=f"folder {folder}",
            remedy="name it as Python imports it, package.module:app, or its folder with --app-dir",
        ) from error
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        raise IllegalState(
            f"{name!r} of module {module_name!r} is no app.",
            state="it is not there" if found is None else f"it is {type(found).__name__}",
            owner=f"module {module_name}",
            remedy="write app = kafkadur.App() there, or name the app: module:name",
        )
    return found
