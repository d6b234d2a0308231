"""Optional and heavy libraries: imported when a model needs them, with the line that mends them."""

from __future__ import annotations

import importlib
import importlib.metadata
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from urllib.parse import urlparse

from gradscope.errors import ConfigError, Place, Problem

_EXTRAS = {"timm": "timm", "transformers": "hf"}


def require(name: str, *, wanted_by: str, place: Place | None = None) -> ModuleType:
    """A library's module.

    Raises:
        ConfigError: it is not installed, or does not fit the installed torch.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = (error.name or name).partition(".")[0]
        message = f"`{wanted_by}` needs {package}, which is not installed"
        raise ConfigError(message, place=place, help=install(package)) from error
    except (ImportError, RuntimeError, OSError) as error:
        stale = mismatch(error)
        if stale is None:
            message = f"`{wanted_by}` needs {name}, whose import failed: {error}"
            help = f"reinstall it: pip install --force-reinstall {name}"
            raise ConfigError(message, place=place, help=help) from error
        raise ConfigError(Problem(stale.message, place, stale.help)) from error


def install(module: str) -> str:
    """What to do about a module that is not there."""
    package = module.partition(".")[0]
    if package in _EXTRAS:
        return f"pip install 'gradscope[{_EXTRAS[package]}]'"
    if package in ("torchvision", "pandas", "umap"):
        return f"pip install {'umap-learn' if package == 'umap' else package}"
    return f"install the package that provides `{package}`, or mend the import"


def mismatch(error: BaseException) -> Problem | None:
    """What to say when torchvision was built for another torch; None if that is not it."""
    text = str(error)
    binary = isinstance(error, ImportError) and "undefined symbol" in text and "torchvision" in text
    if not (binary or ("operator torchvision::" in text and "does not exist" in text)):
        return None
    torch = importlib.metadata.version("torch")
    local = importlib.import_module("torch").__version__.partition("+")[2]
    try:
        torchvision = importlib.metadata.version("torchvision")
    except importlib.metadata.PackageNotFoundError:
        torchvision = "(of unknown version)"
    torch = f"{torch.partition('+')[0]}+{local}" if local else torch
    return Problem(
        f"torchvision {torchvision} was not built for the installed torch {torch}: {text}",
        help="install a pair that fits: pip install --force-reinstall torch torchvision",
    )


@contextmanager
def hub(seconds: float = 5.0) -> Iterator[None]:
    """Within this, Hugging Face's hub is asked only if it answers; else its cache alone.

    Left to itself its client tries for half a minute per file where there is no network.
    """
    constants: Any = importlib.import_module("huggingface_hub.constants")
    before = constants.HF_HUB_OFFLINE
    if not before and not _reachable(constants.ENDPOINT, seconds):
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _reachable(address: str, seconds: float) -> bool:
    parts = urlparse(address)
    if urllib.request.getproxies():
        return True  # who asks the proxy need not reach the host
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=seconds).close()
    except OSError:
        return False
    return True
