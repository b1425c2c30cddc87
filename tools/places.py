"""Where things are in the checkout; nothing is read or written here."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
SITE_PACKAGES = VENV / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"

PYPROJECT = ROOT / "pyproject.toml"
LOCK = ROOT / "requirements.lock"
BUILD_LOCK = ROOT / "requirements-build.lock"
SPARK_LOCK = ROOT / "requirements-spark.lock"
JARS_LOCK = ROOT / "kafkadur" / "stack" / "kafka-jars.lock"
