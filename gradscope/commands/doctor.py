"""``gradscope doctor``: installed versions, and whether they fit together."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata

import typer

from gradscope.commands._model import importing_torch
from gradscope.commands._options import Debug
from gradscope.commands._write import write_output
from gradscope.version import __version__

_PACKAGES = ("torch", "torchvision", "timm", "transformers", "safetensors", "numpy", "pillow")
_EXTRAS = {"timm": "timm", "transformers": "hf"}

EXAMPLES = (
    ("gradscope doctor", "Installed versions, and whether they fit together."),
    ("GRADSCOPE_ALLOW='mypkg.*' gradscope doctor", "The same, and allowed imports of a config."),
)


def run(debug: Debug = False) -> None:
    """Check the environment: versions, matching builds, devices, allowed imports.

    Exits with 1 if an installed package does not work.
    """
    with importing_torch():
        import torch

    lines = [f"gradscope     {__version__}", f"python        {platform.python_version()}"]
    for package in _PACKAGES:
        lines.append(f"{package:<13} {_version(package)}")
    problem = _torchvision_problem()
    lines += [f"devices       {_devices()}", f"statistics    {_statistics()}"]
    lines.append(f"torch.compile {_cxx()}")
    lines.append(f"weights       {torch.hub.get_dir()}/checkpoints")
    lines.append(f"may import    {os.environ.get('GRADSCOPE_ALLOW') or 'the built-in list only'}")
    lines += ["", problem or "torch and torchvision fit together"]
    write_output("\n".join(lines) + "\n", None)
    if problem:
        raise typer.Exit(1)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        extra = _EXTRAS.get(package)
        return f"– (pip install 'gradscope[{extra}]')" if extra else "–"


def _statistics() -> str:
    import torch

    from gradscope.capture import one_pass
    from gradscope.capture.one_pass import on_cuda

    here = one_pass.in_use()
    return f"{here}; on the GPU {on_cuda.in_use()}" if torch.cuda.is_available() else here


def _devices() -> str:
    import torch

    found = [f"cpu ({torch.get_num_threads()} threads)"]
    for index in range(torch.cuda.device_count()):
        found.append(f"cuda:{index} ({torch.cuda.get_device_name(index)})")
    if torch.backends.mps.is_available():
        found.append("mps")
    return ", ".join(found)


def _cxx() -> str:
    """Return facts on the C++ compiler that ``torch.compile`` needs on a CPU."""
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    found = shutil.which(name)
    return found or f"no C++ compiler `{name}`: on a CPU the default backend fails (install it)"


def _torchvision_problem() -> str | None:
    """Return the problem of importing torchvision: a CPU build does not work with a CUDA build of
    torch."""
    try:
        import torchvision.ops  # noqa: F401
    except (ImportError, RuntimeError, OSError) as error:
        return (
            f"error: torchvision {_version('torchvision')} does not work with torch "
            f"{_version('torch')}: {str(error).splitlines()[0]}\n"
            "  = help: pip install --force-reinstall torch torchvision"
        )
    return None
