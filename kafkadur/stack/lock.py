"""For developers: ``python -m kafkadur.stack.lock`` writes the lock file of the Kafka jars, with ``mvn``.

It resolves the broker and a logging binding *with* their transitive dependencies. Users later fetch exactly
the resulting list, without resolving anything. Run it after a change of ``KAFKA_VERSION`` and read the diff.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kafkadur.stack.jars import KAFKA_VERSION, LOCK_FILE, POM

#: The artifacts to resolve. The broker logs through slf4j 1.7 and comes without a binding for it.
ROOTS = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
)

HEADER = """\
# The jars of the embedded Kafka broker: group:artifact:version sha256.
# Written by `python -m kafkadur.stack.lock`, not by hand.
"""


def lock_text(mvn: str) -> str:
    """Resolve with ``mvn`` and return the text of the lock file. Raises CalledProcessError if Maven fails."""
    roots = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, artifact, version in ROOTS
    )
    with tempfile.TemporaryDirectory(prefix="kafkadur-lock-") as work:
        pom, jars = Path(work, "pom.xml"), Path(work, "jars")
        pom.write_text(POM.format(dependencies=roots))
        subprocess.run(  # noqa: S603 - a developer's own Maven
            [
                mvn, "--batch-mode", "--file", str(pom), f"-Dmaven.repo.local={Path(work, 'repository')}",
                "dependency:copy-dependencies", "-DincludeScope=runtime", "-Dmdep.useRepositoryLayout=true",
                f"-DoutputDirectory={jars}",
            ],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        lines: list[str] = []
        for jar in jars.rglob("*.jar"):
            *group, artifact, version, name = jar.relative_to(jars).parts
            if name != f"{artifact}-{version}.jar":
                raise ValueError(f"{name} has a classifier, which the lock file cannot express")
            lines.append(
                f"{'.'.join(group)}:{artifact}:{version} {hashlib.sha256(jar.read_bytes()).hexdigest()}\n"
            )
    return HEADER + "".join(sorted(lines))


def main() -> None:
    """Write the lock file."""
    mvn = shutil.which("mvn")
    if mvn is None:
        sys.exit("mvn was not found: install Maven to write the lock file anew.")
    LOCK_FILE.write_text(lock_text(mvn))


if __name__ == "__main__":
    main()
