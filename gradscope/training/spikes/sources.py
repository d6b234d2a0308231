"""Finds the user's files that define the model of a step."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from torch import nn

from gradscope.explain.shared.frames import in_library
from gradscope.runfile.capsules import digests


def sources_of(modules: Iterable[nn.Module]) -> dict[str, str]:
    """Return the files of the modules' classes and of the script, with their SHA-256, but no
    library."""
    names = {type(one).__module__ for module in modules for one in module.modules()}
    files = [getattr(sys.modules.get(name), "__file__", None) for name in ["__main__", *names]]
    paths = [str(Path(file).absolute()) for file in files if file]
    return digests(sorted(path for path in paths if not in_library(path)))
