"""Adds the compiled part of gradscope to a wheel, and to a clone that is installed with ``-e``.

If there is no C compiler, gradscope is installed without, and ``gradscope doctor`` says so.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import mac_platforms


class CompiledPart(BuildHookInterface):
    """One wheel serves every Python of a platform: the library does not know Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        script = [sys.executable, str(Path(self.root, ".build", "compile.py"))]
        if version == "editable":  # Python finds it where the source is
            subprocess.run(script)
            return
        self._folder = tempfile.TemporaryDirectory()
        library = Path(self._folder.name, "library")
        if subprocess.run([*script, str(library)]).returncode == 0:
            build_data["force_include"][str(library)] = "gradscope/capture/one_pass/one_pass.so"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()


def _platform() -> str:
    if sys.platform == "darwin":  # the compiler makes no universal library
        return next(iter(mac_platforms()))
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
