"""Explains failed imports of libraries and files: the cause and the fix."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import socket
import traceback
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from urllib.parse import urlparse

from gradscope.errors import ConfigError, Place, Problem, did_you_mean, message_of

_EXTRAS = {"timm": "timm", "transformers": "hf"}


def require(name: str, *, wanted_by: str, place: Place | None = None) -> ModuleType:
    """Import a library's module.

    Raises:
        ConfigError: it is not installed, or does not match the installed torch.
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
            message = f"`{wanted_by}` needs {name}, whose import failed: {message_of(error)}"
            help = f"reinstall it: pip install --force-reinstall {name}"
            raise ConfigError(message, place=place, help=help) from error
        raise ConfigError(Problem(stale.message, place, stale.help)) from error


def install(module: str) -> str:
    """Return the advice to install a missing module."""
    package = module.partition(".")[0]
    if package in _EXTRAS:
        return f"pip install 'gradscope[{_EXTRAS[package]}]'"
    if package in ("torchvision", "pandas", "umap"):
        return f"pip install {'umap-learn' if package == 'umap' else package}"
    return f"install the package that provides `{package}`, or fix the import"


def mismatch(error: BaseException) -> Problem | None:
    """Return the problem of a torchvision built for another torch; None for other errors."""
    text = message_of(error)
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
    """Query the Hugging Face hub in the block only if it answers; otherwise use its cache.

    Without a network, its client would try for half a minute per file.
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


#: What the exception says, and the fix: the first that matches.
_REMEDIES = (
    (
        r"before Module\.__init__\(\) call",
        "call `super().__init__()` as the first line of that class's `__init__`",
    ),
    (
        r"Found no NVIDIA driver|not compiled with CUDA enabled|No CUDA GPUs are available",
        "leave devices out of the model (`.cuda()`, `device='cuda'`): build it on the CPU, and "
        "`--device cuda` moves all of it where there is one; in `forward` take `x.device`",
    ),
    (
        r"attempted relative import with no known parent package",
        "make the folder a package, by an empty `__init__.py` in it, or import without the dot",
    ),
    (
        r"attempted relative import beyond top-level package",
        "put an empty `__init__.py` into each folder up to the one that the dots lead to, or "
        "import without them",
    ),
)


def missing_key(error: BaseException) -> tuple[str, list[str]] | None:
    """Return the missing key of a KeyError, and the mapping's keys; None for any other error."""
    if not isinstance(error, KeyError) or not error.args or not isinstance(error.args[0], str):
        return None
    key, keys = error.args[0], list[str]()
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, dict) and value and key not in value:
                keys = [k for k in value if isinstance(k, str)]
    return key, keys


def remedy(error: BaseException) -> str | None:
    """Return the advice for a common mistake; None for any other error."""
    for pattern, advice in _REMEDIES:
        if re.search(pattern, message_of(error), re.IGNORECASE):
            return advice
    if isinstance(error, AttributeError) and isinstance(error.obj, dict):
        keys = [key for key in error.obj if isinstance(key, str)]
        close = None if error.name in keys else did_you_mean(str(error.name), keys)
        return close or (
            f"read it by `['{error.name}']`; a mapping of the config arrives as a dict, unless it "
            f"names a class: `{{_target_: types.SimpleNamespace, {error.name}: …}}`"
        )
    found = missing_key(error)
    if found is not None and found[1]:
        key, keys = found
        return did_you_mean(key, keys) or f"it has {', '.join(f'`{k}`' for k in keys[:12])}"
    if isinstance(error, TypeError) and re.search(
        r"got dict\b|\bnot dict\b|'dict'", message_of(error)
    ):
        return (
            "read its values by `['…']`: a mapping of the config arrives as a dict; or give them "
            "one by one, as in `model: {_target_: …, width: 64}`"
        )
    return None
