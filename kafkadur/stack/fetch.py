"""`python -m kafkadur.stack.fetch`: put the Kafka jars into the user's cache folder before they are needed.

Exit status 0: they are there, verified; 1: standard error says why not; 130: interrupted. `jars.py` fetches
and verifies them.
"""

from __future__ import annotations

import sys

from rich.console import Console

from kafkadur.stack.errors import StackError
from kafkadur.stack.jars import kafka_jars
from kafkadur.stack.java import find_java
from kafkadur.stack.progress_bar import progress_bar

INTERRUPTED = 130


def main() -> int:
    """Fetch what is missing; return the exit status."""
    console = Console(stderr=True)
    try:
        with progress_bar(console) as progress:
            folder = kafka_jars(find_java(), progress)
    except StackError as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted; nothing was kept of the download.", soft_wrap=True)
        return INTERRUPTED
    console.print(f"The Kafka jars are in {folder}.", markup=False, highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
