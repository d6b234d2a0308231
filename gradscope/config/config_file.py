"""The text of a config file, and every way in which there is none."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from gradscope.config.texts import Text
from gradscope.config.words import shorten
from gradscope.errors import ConfigError, Place, closest_file

#: A config of more bytes is data; reading it would take PyYAML minutes.
LARGEST: Final = 1_000_000
_SUFFIXES: Final = (".yaml", ".yml")
_WEIGHTS: Final = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
_SPECS: Final = ("demo", "torchvision", "timm", "hf")


def is_file(model: str) -> bool:
    """Whether MODEL means a config file: by its suffix, or because there is such a file."""
    if model.lower().endswith(_SUFFIXES):
        return True
    if model.lower().endswith((".py", *_WEIGHTS)) or model.partition(":")[0] in _SPECS:
        return False
    try:
        return bool(model) and Path(model).exists()
    except OSError:  # a name longer than names can be
        return False


def read_text(path: Path, place: Place) -> tuple[Text, str]:
    """A config file's lines and text; ``place`` is where the path was given.

    Raises:
        ConfigError: there is none, it cannot be read, it is too large, or it is no text.
    """
    shown = shorten(str(path))
    try:
        raw = _read_bytes(path, place, shown)
    except (FileNotFoundError, NotADirectoryError):
        help = _nearby(path.parent, path.name) or "`gradscope init` writes a starter"
        raise ConfigError(f"there is no file `{shown}`", place=place, help=help) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        message = f"`{shown}` cannot be read: {reason}"
        raise ConfigError(message, place=place, help="check its permissions and its name") from None
    try:
        body = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = Text.of_file(str(path), raw.decode("utf-8", "replace"))
        before = Text.of_file("", raw[: error.start].decode("utf-8", "replace")).lines
        at = text.place(len(before) - 1, len(before[-1]))
        raise ConfigError("not UTF-8 text", place=at, help="save the file as UTF-8") from None
    return Text.of_file(str(path), body), body


def _read_bytes(path: Path, place: Place, shown: str) -> bytes:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        help = _nearby(path, "") or "name a YAML file in it"
        raise ConfigError(f"`{shown}` is a folder", place=place, help=help)
    if not stat.S_ISREG(status.st_mode):  # a pipe or a device may never end
        raise ConfigError(f"`{shown}` is not a regular file", place=place, help="copy it into one")
    if status.st_size > LARGEST:
        size = f"{status.st_size / 1e6:.1f} MB"
        message = f"`{shown}` has {size}, a config at most {LARGEST / 1e6:.0f} MB"
        help = "put large data into its own file: `input: {file: data.npy}`"
        raise ConfigError(message, place=place, help=help)
    return path.read_bytes()


def _nearby(folder: Path, name: str) -> str | None:
    """The YAML file that was probably meant, or those that there are."""
    try:
        names = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in _SUFFIXES)
    except (OSError, ValueError):
        return f"there is no folder `{shorten(str(folder))}`" if name else None
    close = closest_file(folder / name, _SUFFIXES) if name else None
    if close:
        return close.replace("`", f"`{folder}/", 1) if str(folder) != "." else close
    shown = ", ".join(f"`{folder / n}`" for n in names[:5])
    return f"there is {shown}{', …' if len(names) > 5 else ''}" if names else None
