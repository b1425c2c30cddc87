"""Builds the compiled client of Kafka (`kafkadur/native/_native.pyx`) where there is a C compiler.

Without one the package is complete all the same: it then uses confluent-kafka's client.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULE = "kafkadur.native._native"
SOURCE = Path("kafkadur", "native", "_native.pyx")


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the compiled module to a wheel, or lays it beside its source for an editable install."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the module, or say why it is left out."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        suffix: str = sysconfig.get_config_var("EXT_SUFFIX")
        beside = (root / SOURCE).with_suffix(suffix)
        if version == "editable":
            beside.unlink(missing_ok=True)  # one of an older source
        self._folder = tempfile.TemporaryDirectory()
        try:
            built = compiled(root / SOURCE, Path(self._folder.name))
        except Exception as error:  # noqa: BLE001 - compilers fail in many ways, and none is needed
            self.app.display_warning(
                f"kafkadur: its compiled client of Kafka is left out, so it is slower: {error}"
            )
            return
        if version == "editable":
            shutil.copy(built, beside)
            return
        build_data["force_include"][str(built)] = str(SOURCE.with_suffix(suffix))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built on the way."""
        del version, build_data, artifact_path
        if self._folder is not None:
            self._folder.cleanup()


def compiled(source: Path, folder: Path) -> Path:
    """Compile a module into a folder; returns the library. Raises what Cython and setuptools raise."""
    from Cython.Build import cythonize  # noqa: PLC0415 - needed for this alone
    from setuptools import Distribution, Extension  # noqa: PLC0415

    text = folder / source.name
    for part in [source, *source.parent.glob("*.pxi")]:
        shutil.copy(part, folder / part.name)
    extensions = cythonize([Extension(MODULE, [str(text)])], build_dir=str(folder), quiet=True)
    command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib = command.build_temp = str(folder)
    command.ensure_finalized()
    sys.stdout.flush()
    command.run()
    return Path(command.get_ext_fullpath(MODULE))
