"""Looking at subscriptions from outside: list, inform, explain, unsubscribe. What the command line stands on.

An `Admin` attaches nowhere, starts no thread and makes nothing: a namespace without a journal is one without
subscriptions. How a subscription lives is the coordinators' `lifecycle.py`, what an offset's state means is
`explain.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import batched as _batched  # type: ignore[attr-defined]
from types import TracebackType
from typing import Self
