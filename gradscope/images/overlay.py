"""One method on one photograph: the original, the overlay beside or below it, and its scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradscope.images.lettering import (
    DIM,
    INK,
    PAPER,
    bar_height,
    draw_bar,
    line_height,
    wrapped,
    write,
)
from gradscope.images.painting import painted
from gradscope.images.photos import HeatMap, Photo, magnification, magnified
from gradscope.typeset.numbers import number

if TYPE_CHECKING:
    from PIL.Image import Image

#: Wider than this against its height, a photograph has its overlay below it, else beside it.
_WIDE = 1.6


def overlay(photo: Photo, heat: HeatMap) -> Image:
    """The picture to look at, at the photograph's own resolution (small ones magnified).

    Above are the method, the target class and its score, below the overlay its colour bar, and
    at the foot what must be known to read the picture: how colours were scaled, that a map is
    blank, what part of the photograph the model saw, and the remarks of photo and map.
    """
    from PIL import Image

    times, scale = magnification(photo.picture.size), heat.scale
    original = magnified(photo.picture, times)
    below = original.width > _WIDE * original.height
    size = _letters(original, below)
    margin = size
    panels = (original.width, 2 * original.height + margin)
    panels = panels if below else (2 * original.width + margin, original.height)
    text = max(panels[0], 26 * size)
    title = wrapped(headline(photo, heat), size, text)
    small = max(13, round(size * 0.8))
    foot = [line for remark in remarks(photo, heat) for line in wrapped(remark, small, text)]
    top = margin + len(title) * line_height(size) + margin // 2
    corner = (
        (margin, top + original.height + margin) if below else (margin * 2 + original.width, top)
    )
    bar = 0 if scale.blank else margin // 2 + bar_height(small)
    bottom = top + panels[1] + bar
    foot_height = margin // 2 + len(foot) * line_height(small) if foot else 0
    canvas = Image.new("RGB", (text + 2 * margin, bottom + foot_height + margin), PAPER)
    write(canvas, (margin, margin), title, size, INK)
    canvas.paste(original, (margin, top))
    canvas.paste(painted(photo, heat, scale), corner)
    if bar:
        place = (corner[0], top + panels[1] + margin // 2)
        draw_bar(canvas, place, max(original.width, 12 * small), scale, small)
    write(canvas, (margin, bottom + margin // 2), foot, small, DIM)
    return canvas


def headline(photo: Photo, heat: HeatMap) -> str:
    """Method, target class and score in one line."""
    score = "" if photo.score is None else f" · score {number(photo.score)}"
    return f"{heat.method} · {photo.target}{score}"


def remarks(photo: Photo, heat: HeatMap) -> list[str]:
    """Sentences that say how the picture is to be read."""
    scale, geometry = heat.scale, photo.geometry
    sentences = [scale.blank] if scale.blank else []
    sentences += [*scale.remarks, *heat.remarks]
    if geometry is not None and not geometry.sees_all():
        sentences.append("the model saw the part inside the line; the rest is dimmed")
    if geometry is None and heat.values.shape[::-1] != photo.picture.size:
        sentences.append(
            "which part of the photograph the model saw is not known: the map is stretched"
        )
    times = magnification(photo.picture.size)
    if times > 1:
        sentences.append(f"drawn at {times} times its size")
    return [*sentences, *photo.remarks]


def _letters(original: Image, below: bool) -> int:
    """A height of letters that stays legible when the full picture is fitted to a screen."""
    total = max(original.width * (1 if below else 2), original.height * (2 if below else 1))
    return min(max(16, round(total / 70)), 160)
