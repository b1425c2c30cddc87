"""Fetch the Kafka jars once from Maven Central, verify them, and keep them in the cache folder.

Either ``mvn`` or the Ivy inside pyspark fetches them. Both get the *complete* list of the lock file, with
transitive dependencies switched off, so both fetch the same files.
"""

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kafkadur.stack.errors import StackError, disk_full, file_error
from kafkadur.stack.java import Java

#: Called with (steps done, steps in all, text).
Progress = Callable[[int, int, str], None]

KAFKA_VERSION = "4.3.1"

LOCK_FILE = Path(__file__).with_name("kafka-jars.lock")

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>kafkadur</groupId><artifactId>kafka-jars</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
{dependencies}
</dependencies>
</project>
"""

POM_DEPENDENCY = (
    "<dependency>"
    "<groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId><version>{jar.version}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    "</dependency>"
)

IVY_SETTINGS = """<ivysettings>
<settings defaultResolver="central"/>
<resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""

IVY_MODULE = """<ivy-module version="2.0">
<info organisation="kafkadur" module="kafka-jars"/>
<configurations><conf name="default"/></configurations>
<dependencies>
{dependencies}
</dependencies>
</ivy-module>
"""

IVY_DEPENDENCY = (
    '<dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}" '
    'transitive="false" conf="default->master"/>'
)

#: Signs of a network failure in the output of mvn or Ivy.
NO_NETWORK = re.compile(
    r"UnknownHost|Unknown host|Name or service not known|name resolution|Connection refused|"
    r"Network is unreachable|No route to host|ConnectException|[Cc]onnect(?:ion)? timed out|SocketTimeout|"
    r"Could not transfer|Server access",
)


@dataclass(frozen=True, kw_only=True)
class Jar:
    """One line of the lock file."""

    group: str
    artifact: str
    version: str
    #: SHA-256 of the file, 64 hex digits.
    sha256: str

    @property
    def file(self) -> str:
        """Name of the file."""
        return f"{self.artifact}-{self.version}.jar"


@cache
def locked_jars() -> tuple[Jar, ...]:
    """Return the content of the lock file."""
    return tuple(parse_lock(LOCK_FILE.read_text()))


def parse_lock(text: str) -> Iterator[Jar]:
    """Yield the jars named by lines ``group:artifact:version sha256``; ``#`` starts a comment line."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            coordinates, sha256 = line.split()
            group, artifact, version = coordinates.split(":")
            yield Jar(group=group, artifact=artifact, version=version, sha256=sha256)


def cache_folder() -> Path:
    """Return the folder for files made once: ``$XDG_CACHE_HOME/kafkadur`` or ``~/.cache/kafkadur``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "kafkadur"


def kafka_jars(java: Java, progress: Progress) -> Path:
    """Return the folder of the verified jars; fetch them if the cache lacks them.

    Raises StackError: no tool to fetch them, no network, full disk, a file that differs from the lock file.
    """
    home = cache_folder() / f"kafka-{KAFKA_VERSION}"
    jars = home / "jars"
    try:
        if not wrong_files(jars):
            return jars
        home.mkdir(parents=True, exist_ok=True)
        # Each process fetches into a folder of its own; of two processes at once the later one discards its
        # files.
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=home) as work:
            fetched = Path(work) / "jars"
            fetched.mkdir()
            fetch(java, Path(work), fetched, progress)
            if wrong := wrong_files(fetched):
                raise StackError(
                    f"The download of the Kafka jars was refused, {wrong[0]} does not match its SHA-256 sum "
                    "or is missing: the repository in use serves something else. Nothing was kept; check it."
                )
            install(fetched, jars, aside=Path(work) / "replaced")
    except OSError as error:
        raise file_error(error, home) from error
    return jars


#: How often moving the jars is tried while other processes do the same.
INSTALL_TRIES = 20


def wrong_files(folder: Path) -> list[str]:
    """Return the names of locked jars that are missing in ``folder`` or have another content."""
    wrong: list[str] = []
    for jar in locked_jars():
        try:
            with (folder / jar.file).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != jar.sha256:
                    wrong.append(jar.file)
        except FileNotFoundError:
            wrong.append(jar.file)
    return wrong


def install(fetched: Path, jars: Path, *, aside: Path) -> None:
    """Move the folder ``fetched`` to ``jars``; an existing, wrong folder is moved to ``aside``."""
    with contextlib.suppress(FileNotFoundError):
        jars.rename(aside)
    for tries_left in reversed(range(INSTALL_TRIES)):
        try:
            fetched.rename(jars)
        except OSError:
            # Another process was faster; its files can be used, unless a third one moves them now.
            if not wrong_files(jars):
                return
            if tries_left == 0:
                raise
        else:
            return


def fetch(java: Java, work: Path, target: Path, progress: Progress) -> None:
    """Fetch all locked jars into ``target`` with Maven or Ivy; the tool's own files go to ``work``.

    Raises StackError.
    """
    if (mvn := shutil.which("mvn")) is not None:
        fetch_by_mvn(mvn, java, work, target, progress)
    elif (ivy := ivy_jar()) is not None:
        fetch_by_ivy(ivy, java, work, target, progress)
    else:
        raise StackError(
            "The Kafka jars must be fetched once, but neither Maven nor pyspark is here to do so. "
            "Install Maven (Debian and Ubuntu: apt install maven; macOS: brew install maven), "
            "or install pyspark (pip install 'kafkadur[spark]'), which brings Ivy."
        )


def fetch_by_mvn(mvn: str, java: Java, work: Path, target: Path, progress: Progress) -> None:
    """Fetch with Maven, its local repository in ``work``: no file stays in the home folder."""
    pom = work / "pom.xml"
    pom.write_text(POM.format(dependencies=_listed(POM_DEPENDENCY)))
    command = [
        mvn, "--batch-mode", "--file", str(pom), f"-Dmaven.repo.local={work / 'repository'}",
        "dependency:copy-dependencies", f"-DoutputDirectory={target}",
    ]  # fmt: skip
    home = os.environ.get("JAVA_HOME") or str(Path(java.command).resolve().parent.parent)
    _run(command, env={**os.environ, "JAVA_HOME": home}, tool="Maven", progress=progress)


def fetch_by_ivy(ivy: Path, java: Java, work: Path, target: Path, progress: Progress) -> None:
    """Fetch with Ivy, its cache in ``work``."""
    settings, module = work / "ivysettings.xml", work / "ivy.xml"
    settings.write_text(IVY_SETTINGS)
    module.write_text(IVY_MODULE.format(dependencies=_listed(IVY_DEPENDENCY)))
    command = [
        java.command, "-XX:-UsePerfData", f"-Divy.home={work}", "-cp", str(ivy), "org.apache.ivy.Main",
        "-settings", str(settings), "-ivy", str(module), "-cache", str(work / "cache"),
        "-retrieve", f"{target}/[artifact]-[revision].[ext]", "-types", "jar", "bundle",
    ]  # fmt: skip
    _run(command, env=os.environ, tool="Ivy", progress=progress)


def ivy_jar() -> Path | None:
    """Return the Ivy jar inside pyspark, None if pyspark is not installed."""
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        return None
    return next(iter(sorted((Path(spark.origin).parent / "jars").glob("ivy-*.jar"))), None)


def _listed(template: str) -> str:
    return "\n".join(template.format(jar=jar) for jar in locked_jars())


def _run(command: Sequence[str], *, env: Mapping[str, str], tool: str, progress: Progress) -> None:
    """Run a tool to its end, and count the jars that its output names as downloaded."""
    names = [jar.file for jar in locked_jars()]
    text = f"fetching the Kafka jars with {tool}"
    progress(0, len(names), text)
    seen: set[str] = set()
    said: list[str] = []
    with subprocess.Popen(  # noqa: S603 - a build tool of the user's PATH with our own arguments
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(env),
    ) as process:
        try:
            for line in process.stdout or ():
                said.append(line)
                new = {name for name in names if name in line} - seen
                if new and line.lower().lstrip().startswith(("downloading", "[info] downloading")):
                    seen |= new
                    progress(len(seen), len(names), text)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise fetch_error("".join(said), tool)
    progress(len(names), len(names), text)


def fetch_error(said: str, tool: str) -> StackError:
    """Return the error for a tool that failed with the output ``said``."""
    if "No space left on device" in said:
        return disk_full(cache_folder())
    if NO_NETWORK.search(said):
        return StackError(
            f"The Kafka jars must be fetched once, but {tool} could not reach Maven Central. "
            "Connect to the network (or configure a mirror or proxy for it) and try again."
        )
    last = " ".join("".join(said.splitlines(keepends=True)[-5:]).split())
    return StackError(
        f"{tool} could not fetch the Kafka jars: {last or 'it gave no reason'}. Settle that and try again."
    )
