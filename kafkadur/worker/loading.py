"""Imports the app that `module:app` names."""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import traceback
from pathlib import Path

from kafkadur.worker.app import App
from kafkadur_sharing.errors import IllegalState

_log = logging.getLogger("kafkadur.worker")

_NAME = "app"
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*(\.[^\W\d]\w*)*)?")


def load(target: str, folder: Path) -> App:
    """Import `module`, searching `folder` first, and return its `app`.

    Without `:name` the name is `app`. Raises `IllegalState` if there is no such module, or no such app in it,
    and if the module raises an exception: the traceback is in the log at the level DEBUG.
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
            raise _failed(module_name, folder, error) from error  # it imports another one, which is missing
        raise IllegalState(
            f"There is no module {module_name!r}.",
            state=str(error),
            owner=f"folder {folder}",
            remedy="name it as Python imports it, package.module:app, or its folder with --app-dir",
        ) from error
    except Exception as error:
        raise _failed(module_name, folder, error) from error
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


def _failed(module_name: str, folder: Path, error: Exception) -> IllegalState:
    """Return the error that says where a module failed while it was imported."""
    _log.debug("Module %s failed while it was imported.", module_name, exc_info=error)
    return IllegalState(
        f"Module {module_name!r} failed while it was imported.",
        state=f"{_place(module_name, folder, error)}{type(error).__name__}: {error}",
        owner=f"folder {folder}",
        remedy="correct it; --log-level debug shows the traceback",
    )


def _place(module_name: str, folder: Path, error: Exception) -> str:
    """Return the file and line of the app at which an exception was raised or went through; "" if unknown.

    These are the innermost ones in the folder of the app, without its libraries, or in the module itself.
    """
    file = module_name.replace(".", os.sep)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if (Path(frame.filename).is_relative_to(folder) and "site-packages" not in Path(frame.filename).parts)
        or frame.filename.endswith((f"{file}.py", f"{file}{os.sep}__init__.py"))
    ]
    if not frames:  # such as a syntax error, whose text names the place
        return ""
    found = Path(frames[-1].filename)
    shown = found.relative_to(folder) if found.is_relative_to(folder) else found
    return f"{shown}, line {frames[-1].lineno}: "
