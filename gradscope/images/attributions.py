"""The pictures of a saliency report: an overlay of a single map, contact sheets of several."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradscope.errors import OptionError, refuse_unknown
from gradscope.images.colors import COLORMAPS
from gradscope.images.overlay import overlay
from gradscope.images.photos import HeatMap, Photo, cropped
from gradscope.images.sheet import Row, sheets

if TYPE_CHECKING:
    from PIL.Image import Image

    from gradscope.records.saliency import Attribution, SaliencyReport

#: What Pillow calls the format of each suffix.
PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".pdf": "PDF"}


def check_look(alpha: float | None, colormap: str) -> None:
    """Refuse what cannot be drawn.

    Raises:
        OptionError: a share that is none, or an unknown colour map.
    """
    if alpha is not None and not 0 < alpha <= 1:
        raise OptionError(f"`--alpha {alpha:g}` is not a share", help="above 0, up to 1")
    refuse_unknown("colour map", colormap, COLORMAPS)


def check_suffix(path: Path) -> None:
    """Refuse a file that is no picture by its suffix.

    Raises:
        OptionError: it is not.
    """
    if path.suffix.lower() not in PICTURES:
        raise OptionError(
            f"the suffix `{path.suffix}` of `{path}` is not a picture suffix",
            help=f"use one of {', '.join(PICTURES)}, .json for the report, or a folder",
        )


def rows(
    report: SaliencyReport,
    photos: Sequence[Photo],
    maps: Sequence[Sequence[Any]],
    *,
    alpha: float | None,
    colormap: str,
    crop: bool,
) -> list[Row]:
    """Each photograph of a report with its heat maps; ``maps`` are tensors [H, W]."""
    found: list[Row] = []
    for photo, image, values in zip(photos, report.images, maps, strict=True):
        pairs = zip(image.maps, values, strict=True)
        heats = [_heat(record, one.numpy(), alpha, colormap) for record, one in pairs]
        found.append((cropped(photo) if crop else photo, heats))
    return found


def pages(rows: Sequence[Row]) -> list[Image]:
    """One picture where there is one map, else the pages of a contact sheet."""
    if len(rows) == 1 and len(rows[0][1]) == 1:
        return [overlay(rows[0][0], rows[0][1][0])]
    return sheets(rows)


def page_files(path: Path, count: int) -> list[Path]:
    """The files of so many pages, where one file's name stands for all."""
    return [path if i == 1 else path.with_stem(f"{path.stem}-{i}") for i in range(1, count + 1)]


def encoded(picture: Image, path: Path) -> bytes:
    """The picture in the format of a file's suffix."""
    data = io.BytesIO()
    picture.save(data, PICTURES[path.suffix.lower()])
    return data.getvalue()


def _heat(record: Attribution, values: Any, alpha: float | None, colormap: str) -> HeatMap:
    remarks = (record.note,) if record.note else ()
    other = record.options.get("class")
    name = record.method if other is None else f"{record.method} {other}"
    return HeatMap(name, values, record.signed, remarks, alpha, colormap)
