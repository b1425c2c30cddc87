"""The command of the demo: options, the stack, signals, exit status. What happens in between is in `story.py`."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import signal
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Final

from confluent_kafka import KafkaException
from kafkadur_sharing.errors import KafkadurError
from rich.console import Console

from kafkadur.demo.display import Display
from kafkadur.demo.flights import ALL, SHORT
from kafkadur.demo.story import Outcome, Stage, play
from kafkadur.stack import FOLDER, down, embedded, status, up
from kafkadur.stack.errors import file_error

OK: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130

#: What workers leave in the output folder.
_LEFT: Final = ("*.ledger", "*.log")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status: 0 all is well, 1 it is not, 130 interrupted."""
    options = _options(arguments)
    # The last line is the result; with --json it is the only thing on standard output that is no JSON: so it goes with the talk.
    console = Console(stderr=options.json)
    logging.getLogger("kafkadur").addHandler(logging.NullHandler())
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    started = time.monotonic()
    outcome: Outcome | None = None
    seconds: dict[str, float] = {}
    try:
        outcome = _run(options, Display(console), seconds)
        line, code = outcome.line, OK if outcome.ok else FAILED
    except KeyboardInterrupt:
        line, code = "demo: interrupted, nothing is left behind", INTERRUPTED
    except KafkadurError as error:
        line, code = f"demo: FAILED {error}", FAILED
    except KafkaException as error:
        line, code = f"demo: FAILED Kafka did not answer: {error.args[0].str()}", FAILED
    except OSError as error:
        line, code = f"demo: FAILED {file_error(error, options.output)}", FAILED
    if options.json:
        document = {
            "status": code,
            "line": line,
            "seconds": seconds | {"all": time.monotonic() - started},
            "takeover_seconds": outcome.takeover if outcome else None,
            "defects": outcome.defects if outcome else [line],
            "subscriptions": [asdict(proof) for proof in outcome.proofs] if outcome else [],
        }
        sys.stdout.write(json.dumps(document) + "\n")
    console.print(line, markup=False, highlight=False, soft_wrap=True)
    return code
