"""``gradscope saliency``: where in a picture the score of a class comes from."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gradscope import plugins
from gradscope.commands import _completing as completing
from gradscope.commands._model import importing_torch
from gradscope.commands._options import (
    OUTPUT,
    DisplayOptions,
    Force,
    MaxTokens,
    ModelOptions,
    Pictures,
    flag,
    option,
    takes_groups,
)
from gradscope.commands._pictures import (
    PictureOptions,
    file_names,
    output_files,
    saved_maps,
    split_pictures,
    write_pictures,
)
from gradscope.commands._running import keep_stdout_clean, running
from gradscope.commands._views import check_max_tokens, fitted, text_view
from gradscope.commands._write import check_output, write_output
from gradscope.errors import ModelError, OptionError
from gradscope.images.files import shown
from gradscope.reporters import listings

if TYPE_CHECKING:
    from gradscope.api.attributing import SaliencyRequest

ROOM = "gradscope.reporters.saliency"
#: The suffixes that ask for the report, and not for pictures.
_REPORTS = {".html": "html", ".json": "json"}
EXAMPLES = (
    ("gradscope saliency cat.jpg", "Grad-CAM of ResNet-18's best class, over the photograph."),
    ("gradscope saliency cat.jpg --target tabby --versus 'tiger cat'", "Why one, not the other."),
    (
        "gradscope saliency cat.jpg --method all --check -o sheet.png",
        "Every method, with trust checks.",
    ),
    ("gradscope saliency cat.jpg --crop --alpha 0.6 --colormap viridis", "Other colours."),
    ("gradscope saliency street.jpg -m unet.yaml --pixels 120,64", "Why this pixel is its class."),
    ("gradscope saliency digits/ -m demo -o maps", "A folder of pictures, a map each, in `maps`."),
)


@takes_groups
def run(
    words: Pictures = None,
    *,
    model: Annotated[
        str | None,
        option(
            "MODEL",
            "A YAML config or a spec. Without one: torchvision's ResNet-18 with its weights.",
            "-m",
            "--model",
            complete=completing.models,
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        option(
            "NAME",
            "How to explain; `all` for every method. Repeatable.",
            complete=completing.files_of("gradscope.saliency", "all"),
        ),
    ] = None,
    methods: Annotated[bool, flag("--methods", "List the methods and their options.")] = False,
    target: Annotated[
        str | None,
        option(
            "CLASS", "The class to explain, by number or name (default: each picture's best class)."
        ),
    ] = None,
    versus: Annotated[
        str | None,
        option("CLASS", "Also explain why the target and not this class."),
    ] = None,
    why_not: Annotated[
        str | None, option("CLASS", "Also show the evidence against this class.")
    ] = None,
    layer: Annotated[
        str | None,
        option("LAYER", "The layer for CAM methods.", complete=completing.layers),
    ] = None,
    input: Annotated[
        str | None,
        option(
            "NAME",
            "With several inputs: the one to explain, by name or number. The others stay as in the "
            "config.",
        ),
    ] = None,
    pixels: Annotated[
        str | None,
        option(
            "WHICH",
            "With segmentation: the pixels `predicted` as the class (default), `all`, or "
            "ROW,COLUMN.",
            complete=completing.one_of(("predicted", "all")),
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        option("NAME=VALUE", "An option of the methods: `n_steps=100`. Repeatable."),
    ] = None,
    check: Annotated[
        bool,
        flag("--check", "Check each map: deletion and insertion, randomised weights, spread."),
    ] = False,
    output: Annotated[
        Path | None,
        option(
            "FILE",
            "Write one picture of all maps, an `.html` page, a `.json` report, or a picture each "
            "into a folder.",
            "-o",
            "--output",
            panel=OUTPUT,
        ),
    ] = None,
    save_maps: Annotated[
        Path | None,
        option("FOLDER", "Save each raw map, H×W float32, as `.npy`.", panel=OUTPUT),
    ] = None,
    format: Annotated[
        str | None,
        option(
            "FORMAT",
            "terminal, html or json.",
            "-f",
            "--format",
            panel=OUTPUT,
            complete=completing.files_of(ROOM),
        ),
    ] = None,
    max_tokens: MaxTokens = None,
    picture: PictureOptions,
    options: ModelOptions,
    force: Force = False,
    display: DisplayOptions,
) -> None:
    """Draw where in a picture the score of a class comes from, and how far to trust the map.

    Writes a picture next to the original: the heat map over the photograph, with its scale. Without
    IMAGE it explains a bundled digit.
    """
    look = text_view(display)
    if methods:
        from gradscope.saliency import methods as every_method

        with keep_stdout_clean():
            listed = every_method()
        write_output(listings.methods(listed, look), None)
        return
    picture.check()
    paths, overrides = split_pictures(words, "saliency")
    overrides += options.settings or []
    chosen = _chosen(format, output)
    check_max_tokens(max_tokens, chosen)
    as_pictures = chosen == "terminal"
    if not as_pictures:
        check_output(output, force=force)
    if save_maps is not None:
        check_output(save_maps / "map.npy", force=True)  # what exists is not overwritten
    files = output_files(output if as_pictures else None, force=force)
    if not paths:
        from gradscope.demo import DIGITS

        paths, model = [str(DIGITS[0][0])], model or "demo"
    with running(None), importing_torch():
        from gradscope.api.attributing import SaliencyRequest, attribute
        from gradscope.api.viewing import picture_files, read_pictures, view

    request = SaliencyRequest(
        methods=tuple(method or ()),
        options=tuple(option or ()),
        target=target,
        versus=versus,
        why_not=why_not,
        layer=layer,
        pixels=pixels,
        check=check,
    )
    maps = _map_names(request)
    try:
        with running(options.timeout):
            # Missing files and existing outputs are reported before weights are fetched.
            found_files = picture_files(paths)
            names = file_names([shown(path) for path in found_files])
            end = "saliency" if len(maps) > 1 else re.sub(r"[^\w-]+", "-", maps[0])
            overlays = [f"{name}-{end}" for name in names]
            if as_pictures:
                from gradscope.images.sheets import page_count

                files.check(overlays, page_count(len(found_files), len(maps)))
            viewer = view(model, overrides, options.keys, options.allow or (), input=input)
            pictures = read_pictures(found_files, viewer)
            found = attribute(viewer, pictures, request, seed=options.seed)
    except ModelError as error:
        if not as_pictures and error.report is not None:
            text = plugins.load(ROOM, chosen).render(error.report, look)
            write_output(fitted(text, max_tokens), output, force=force)
        raise
    if save_maps is not None:
        found = saved_maps(found, save_maps, names, force=force)
    if not as_pictures:
        drawn = [found.drawn(**asdict(picture))] if chosen == "html" else []
        text = plugins.load(ROOM, chosen).render(found.report, look, *drawn)
        write_output(fitted(text, max_tokens), output, force=force)
        return
    written = write_pictures(found, files, overlays, picture)
    text = plugins.load(ROOM, "terminal").render(found.report, look, written)
    write_output(text + _preview(written, look.width, look.color), None)


def _chosen(format: str | None, output: Path | None) -> str:
    """Return the report's format; the terminal's report comes with pictures in files."""
    if format is None:
        return _REPORTS.get("" if output is None else output.suffix.lower(), "terminal")
    names = plugins.names(ROOM)
    if format not in names:
        raise OptionError(
            f"unknown format `{format}`",
            help=f"{', '.join(names)}; pictures are chosen by the suffix of `-o`",
        )
    return format


def _map_names(request: SaliencyRequest) -> list[str]:
    """Return the names of the maps that each picture will have, by method."""
    methods = list(dict.fromkeys(request.methods))
    if "all" in methods:
        methods = plugins.names("gradscope.saliency")
    pair = [name for name in ("why_not", "versus") if getattr(request, name) is not None]
    return [*methods, *(name.replace("_", "-") for name in pair)] or ["grad-cam"]


def _preview(written: list[Path], width: int | None, color: bool) -> str:
    """Show the first picture in the terminal, if it has colours."""
    if width is None or not color or not written or written[0].suffix.lower() == ".pdf":
        return ""
    from gradscope.images.decoding import read_image
    from gradscope.images.photos import preview

    return "\n" + preview(read_image(written[0]), min(width, 100), color)
