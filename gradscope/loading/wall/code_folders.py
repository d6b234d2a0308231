"""The folders of code and caches on this machine."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch

from gradscope.output_files import expanded


def resolved(path: str | bytes | os.PathLike[Any]) -> Path:
    """A path without links and dots."""
    return Path(os.fsdecode(path)).resolve()


def below(path: Path, folders: tuple[Path, ...]) -> bool:
    """Whether a resolved path is in one of the folders, or is one."""
    return any(path.is_relative_to(folder) for folder in folders)


def environment() -> tuple[Path, ...]:
    """Where installed code lies: Python's own folders, and what the user had on ``sys.path``."""
    folders = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    folders |= {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {site.getusersitepackages(), str(Path(__file__).parents[2])}
    folders |= {entry for entry in sys.path if entry}
    return tuple(Path(folder).resolve() for folder in folders)


def caches() -> tuple[Path, ...]:
    """The libraries' caches; the first is of code, which is never run from there."""
    words = os.environ.get("XDG_CACHE_HOME")
    caches = Path(words) if words else expanded("~/.cache")
    home = Path(os.environ.get("HF_HOME") or caches / "huggingface")
    constants = sys.modules.get("huggingface_hub.constants")
    others = [getattr(constants, f"HF_{name}_CACHE", home) for name in ("HUB", "XET", "ASSETS")]
    code = os.environ.get("HF_MODULES_CACHE") or home / "modules"
    return tuple(Path(each).resolve() for each in (code, torch.hub.get_dir(), home, *others))
