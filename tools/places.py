"""Where things are in the checkout; nothing is read or written here."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"

PYPROJECT = ROOT / "pyproject.toml"
LOCK = ROOT / "requirements.lock"
JARS_LOCK = ROOT / "kafkadur" / "stack" / "kafka-jars.lock"
BUILD_HOOK = ROOT / "hatch_build.py"
NATIVE = ROOT / "kafkadur" / "native"
