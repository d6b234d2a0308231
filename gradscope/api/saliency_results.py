"""The result of ``gradscope.saliency``: the report, the maps, and their pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from gradscope import images, pages
from gradscope.output_files import check_file, expanded, write_file
from gradscope.records.saliency import SaliencyReport
from gradscope.reporters.saliency import html
from gradscope.reporters.text_view import TextView

if TYPE_CHECKING:
    from gradscope.images import Photo


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Saliency:
    """The report, and for each of its pictures the photograph and the raw maps [H, W]."""

    report: SaliencyReport
    photos: tuple[Photo, ...]
    maps: tuple[tuple[Tensor, ...], ...]

    def __repr__(self) -> str:
        return repr(self.report)

    def __str__(self) -> str:
        return str(self.report)

    def _repr_html_(self) -> str:
        return pages.fragment(html.page(self.report, TextView(), self.drawn()))

    def drawn(
        self, *, alpha: float | None = None, colormap: str = images.USUAL, crop: bool = False
    ) -> list[list[bytes]]:
        """Each picture's maps as PNG files: the map over the photograph, with its scale."""
        rows = images.rows(
            self.report, self.photos, self.maps, alpha=alpha, colormap=colormap, crop=crop
        )
        return [
            [images.encoded(images.overlay(photo, heat), Path("map.png")) for heat in heats]
            for photo, heats in rows
        ]

    def save(
        self,
        path: str | Path,
        *,
        alpha: float | None = None,
        colormap: str = images.USUAL,
        crop: bool = False,
        force: bool = False,
    ) -> None:
        """Write the pictures to one file, as ``-o`` does; with ``.json`` the report, with ``.html``
        a page of both.

        Args:
            path: where to; more pages than one are numbered.
            alpha: how much the strongest colour hides of the photograph, above 0, up to 1.
            colormap: the colours of unsigned maps.
            crop: draw only what the model saw.
            force: replace a file that is there.

        Raises:
            OptionError: no format has the suffix, or a file exists or cannot be written.
        """
        path = expanded(path)
        if path.suffix.lower() == ".json":
            self.report.save(path, force=force)
            return
        images.check_look(alpha, colormap)
        if path.suffix.lower() == html.suffix:
            drawn = self.drawn(alpha=alpha, colormap=colormap, crop=crop)
            check_file(path, force=force)
            write_file(html.render(self.report, TextView(), drawn).encode(), path, force=force)
            return
        images.check_suffix(path)
        rows = images.rows(
            self.report, self.photos, self.maps, alpha=alpha, colormap=colormap, crop=crop
        )
        pages = images.pages(rows)
        files = images.page_files(path, len(pages))
        for file in files:
            check_file(file, force=force)
        for file, page in zip(files, pages, strict=True):
            write_file(images.encoded(page, file), file, force=force)
