"""Finds picture files to read or write, and checks the look of a picture."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from gradscope.charts.scales import COLORMAPS
from gradscope.errors import ConfigError, OptionError, Place, closest_file, refuse_unknown
from gradscope.output_files import expanded

#: The colours of unsigned maps where none are asked for.
USUAL = "inferno"
#: Pillow's name of each suffix's format.
PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".pdf": "PDF"}
#: Pillow reads many more; some of them (EPS) start other programs.
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
_USUAL = {".png", ".jpg", ".jpeg", ".webp"}


def find_images(pattern: str, folder: Path, *, place: Place | None = None) -> list[Path]:
    """Return the picture files that a path or a glob names, sorted; relative to ``folder``.

    Raises:
        ConfigError: the file does not exist (the message suggests the closest name), is a folder,
            or the glob has no match.
    """
    wanted = expanded(pattern)
    path = folder / wanted
    if not any(sign in pattern for sign in "*?[") or path.exists():
        return [existing_file(path, suffixes=suffixes(), place=place, what="picture")]
    # Only the user's word is a pattern: the folder's own name may have brackets.
    start = Path(wanted.anchor) if wanted.anchor else folder
    try:
        hits = start.glob(str(wanted.relative_to(wanted.anchor)))
        files = sorted(hit for hit in hits if hit.is_file())
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(f"`{pattern}` is not a file pattern: {error}", place=place) from error
    if not files:
        raise ConfigError(
            f"no file matches `{pattern}`",
            place=place,
            help=f"patterns are taken from the config's folder; looked in {shown(folder)}",
        )
    return files


def pictures_in(folder: Path) -> list[Path]:
    """Return the pictures directly in a folder, by their suffix, sorted.

    Raises:
        ConfigError: there is none.
    """
    kinds = suffixes()
    files = [p for p in sorted(folder.iterdir()) if p.suffix.lower() in kinds and p.is_file()]
    if not files:
        raise ConfigError(
            f"the folder {shown(folder)} holds no picture",
            help="name another, or a pattern that reaches deeper: `photos/**/*.jpg`",
        )
    return files


def pictures_below(folder: Path) -> list[Path]:
    """Return the pictures in a folder and its subfolders, by their suffix, sorted.

    Raises:
        ConfigError: there is none.
    """
    kinds = suffixes()
    # A broken link is listed, and then reported as a picture that cannot be read.
    files = [p for p in sorted(folder.rglob("*")) if p.suffix.lower() in kinds and not p.is_dir()]
    if not files:
        raise ConfigError(
            f"the folder {shown(folder)} holds no picture, nor does one below it",
            help=f"pictures end in {', '.join(sorted(kinds & _USUAL))}, …",
        )
    return files


def suffixes() -> set[str]:
    """Return the suffixes of readable picture formats, such as ``.png``."""
    from PIL import Image

    Image.init()
    return {suffix for suffix, name in Image.EXTENSION.items() if name in FORMATS}


def existing_file(
    path: Path,
    *,
    suffixes: Collection[str],
    place: Place | None = None,
    what: str = "file",
) -> Path:
    """Return ``path``, if it is a file that is not empty.

    Raises:
        ConfigError: it is missing (the message suggests the closest file with one of the suffixes),
            a folder, a pipe or a device, or empty.
    """
    if path.is_dir():
        help = (
            f"name one file, or use a pattern: `{path.name}/*.png`" if what == "picture" else None
        )
        raise ConfigError(f"{shown(path)} is a folder, not a {what}", place=place, help=help)
    if not path.exists():
        parent = path.parent
        if not parent.is_dir():
            raise ConfigError(
                f"there is no {what} {shown(path)}",
                place=place,
                help=f"its folder {shown(parent)} does not exist either",
            )
        raise ConfigError(
            f"there is no {what} {shown(path)}",
            place=place,
            help=closest_file(path, suffixes)
            or f"paths are taken from the config's folder; looked in {shown(parent)}",
        )
    if not path.is_file():  # a pipe or a device may never end
        raise ConfigError(
            f"{shown(path)} is not a regular file", place=place, help="copy its content into one"
        )
    if path.stat().st_size == 0:
        raise ConfigError(
            f"{shown(path)} is empty: 0 bytes",
            place=place,
            help="the file was not written to its end; make or fetch it again",
        )
    return path


def shown(path: Path) -> str:
    """Return a path for messages: relative if it is below the working directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def check_suffix(path: Path) -> None:
    """Refuse a file whose suffix is not a picture's.

    Raises:
        OptionError: its suffix is another.
    """
    if path.suffix.lower() not in PICTURES:
        raise OptionError(
            f"the suffix `{path.suffix}` of `{path}` is not a picture suffix",
            help=f"use one of {', '.join(PICTURES)}, .json for the report, or a folder",
        )


def page_files(path: Path, count: int) -> list[Path]:
    """Return ``count`` file names: ``path`` for the first page, ``path-2``, … for the others."""
    return [path if i == 1 else path.with_stem(f"{path.stem}-{i}") for i in range(1, count + 1)]


def check_look(alpha: float | None, colormap: str) -> None:
    """Refuse a look that cannot be drawn.

    Raises:
        OptionError: the opacity is out of range, or the colour map is unknown.
    """
    if alpha is not None and not 0 < alpha <= 1:
        raise OptionError(f"`--alpha {alpha:g}` is out of range", help="above 0, up to 1")
    refuse_unknown("colour map", colormap, COLORMAPS)
