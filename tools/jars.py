"""Says where the Kafka jars are kept and whether they are there; run by `environment.py` inside `.venv`.

The folder goes to stdout; the exit status is 0 if all jars are there and verified, else 1. Fetching them is
`kafkadur.stack.fetch`.
"""

import sys

from kafkadur.stack import jars


def main() -> int:
    """Print the folder of the jars; return the exit status."""
    folder = jars.cache_folder() / f"kafka-{jars.KAFKA_VERSION}" / "jars"
    print(folder)
    return 1 if jars.wrong_files(folder) else 0


if __name__ == "__main__":
    sys.exit(main())
