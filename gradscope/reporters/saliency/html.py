"""A saliency report as a page for a browser: each picture with its maps, classes and checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from gradscope import pages
from gradscope.pages import Page, Part, Picture
from gradscope.records.saliency import ImageAttribution, SaliencyReport
from gradscope.reporters.header import notes, run_facts
from gradscope.reporters.page_parts import error_parts
from gradscope.reporters.saliency import _tables
from gradscope.reporters.text_view import TextView
from gradscope.typeset.tables import Heading

suffix = ".html"

#: The pictures of each image as PNG files, one for each of its maps.
Drawn = Sequence[Sequence[bytes]]


def render(report: SaliencyReport, view: TextView, drawn: Drawn = ()) -> str:
    """The full page; without ``drawn``, which a saved report lacks, the figures alone."""
    return pages.render(page(report, view, drawn))


def page(report: SaliencyReport, view: TextView, drawn: Drawn = ()) -> Page:
    """What was run, and the parts of each picture."""
    name, *facts = run_facts(report.run)
    parts = error_parts(report.error)
    for image, files in zip_longest(report.images, drawn, fillvalue=()):
        assert isinstance(image, ImageAttribution)
        parts += _parts(image, files)
    return Page("saliency", name, [facts], notes(report.run), parts, report.versions)


def _parts(image: ImageAttribution, files: Sequence[bytes]) -> Iterator[Part]:
    title, target = _tables.name(image), _tables.explained(image)
    # Every table of a page has its own title, and every column a head.
    maps, classes = replace(_tables.maps(image), title=f"maps of {title}"), _tables.classes(image)
    classes = replace(classes, columns=(*classes.columns[:-1], Heading("role", right=False)))
    pictures = tuple(
        Picture(file, f"{_tables.method(one)} of class {target} over {title}", _tables.method(one))
        for one, file in zip(image.maps, files, strict=False)
    )
    caption = f"why class {target}"
    remarks = tuple(_tables.notes(image))
    yield Part(maps.title, caption, pictures=pictures, table=maps, remarks=remarks)
    yield Part(f"classes of {title}", table=replace(classes, title=f"classes of {title}"))
