"""``gradscope saliency``: where in a picture the score of a class comes from."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.commands import _pictures
from gradscope.commands._model import Allow, Debug, Device, Dtype, Seed, Set
from gradscope.commands._views import (
    Color,
    Force,
    Width,
    text_view,
)
from gradscope.commands._write import check_output, keep_stdout_clean, write_output
from gradscope.errors import ModelError, OptionError
from gradscope.records import json as record_json
from gradscope.reporters.methods import terminal as method_list
from gradscope.reporters.saliency import terminal

if TYPE_CHECKING:
    from gradscope.api import Saliency, Wish

_OVERRIDE = re.compile(r"[a-z_][\w.]*=", re.DOTALL)


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE|KEY=VALUE",
            help="Picture files, folders, patterns, `.npy` arrays, and config keys to override.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            metavar="MODEL",
            help="A YAML config or a spec. Without one: torchvision's ResNet-18 with its weights.",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="How to explain; `all` for every method. Repeatable."),
    ] = None,
    methods: Annotated[
        bool, typer.Option("--methods", metavar="", help="List the methods and their options.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="Number or name; each picture's best class without it."),
    ] = None,
    versus: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="Also why the target rather than this class."),
    ] = None,
    why_not: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Also what speaks against this class.")
    ] = None,
    layer: Annotated[
        str | None, typer.Option(metavar="LAYER", help="The layer of the CAM kinds.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="For the methods: `n_steps=100`. Repeatable."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            metavar="",
            help="How far to trust each map: deletion and insertion, randomised weights, spread.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="One picture for everything, a `.json` report, or a folder for a picture each.",
        ),
    ] = None,
    save_maps: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Save each raw map, H×W float32, as `.npy`."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("-f", "--format", metavar="FORMAT", help="terminal or json."),
    ] = None,
    settings: Set = None,
    device: Device = None,
    dtype: Dtype = None,
    seed: Seed = None,
    force: Force = False,
    color: Color = "auto",
    width: Width = None,
    allow: Allow = None,
    debug: Debug = False,
) -> None:
    """Draw where in a picture the score of a class comes from, and say how far to trust it.

    Writes a picture beside the original: the heat map over the photograph, with its scale. Without
    IMAGE a bundled digit is explained.
    """
    look = text_view(None, width, color)
    if methods:
        from gradscope.saliency import methods as every_method

        with keep_stdout_clean():
            listed = every_method()
        write_output(method_list.render(listed, look), None)
        return
    words = words or []
    pictures = [word for word in words if not _is_override(word)]
    overrides = [word for word in words if _is_override(word)] + (settings or [])
    as_json = _json(format, output)
    if as_json:
        check_output(output, force=force)
    _check_folder(save_maps)
    album = _pictures.album(None if as_json else output, force=force)
    if not pictures:
        from gradscope.demo import DIGITS

        pictures, model = [str(DIGITS[0][0])], model or "demo"
    from gradscope import api, images

    given = {"device": device, "dtype": dtype, "seed": seed}
    wish = api.Wish(
        methods=tuple(method or ()),
        options=tuple(option or ()),
        target=target,
        versus=versus,
        why_not=why_not,
        layer=layer,
        check=check,
    )
    try:
        with keep_stdout_clean():
            options = {key: value for key, value in given.items() if value is not None}
            viewer = api.view(model, overrides, options, allow or ())
            shots = api.read_pictures(pictures, viewer)
            what = _what(wish)
            names = _pictures.stems([shot.path for shot in shots])
            made = _made(wish)
            if save_maps is not None:
                _check_maps(save_maps, names, made, force=force)
            stems = [f"{name}-{what}" for name in names]
            if not as_json:
                album.check(stems, images.page_count(len(shots), len(made)))
            with _progress() as told:
                found = api.attribute(viewer, shots, wish, seed=seed, told=told)
    except ModelError as error:
        if as_json and error.report is not None:
            write_output(record_json.dumps(error.report), output, force=force)
        raise
    if save_maps is not None:
        found = _saved(found, save_maps, names, force=force)
    if as_json:
        write_output(record_json.dumps(found.report), output, force=force)
        return
    written = _pictures.write_pictures(found, album, stems)
    text = terminal.render(found.report, look, written)
    write_output(text + _preview(written, look.width, look.color), None)


def _is_override(word: str) -> bool:
    """Whether a word is ``key=value``, and not the name of a file that is there."""
    return bool(_OVERRIDE.match(word)) and not Path(word).is_file()


def _json(format: str | None, output: Path | None) -> bool:
    """Whether the report is asked for instead of pictures."""
    if format is None:
        return output is not None and output.suffix.lower() == ".json"
    if format not in ("terminal", "json"):
        raise OptionError(
            f"unknown format `{format}`",
            help="`terminal` or `json`; pictures are chosen by the suffix of `-o`",
        )
    return format == "json"


def _check_folder(folder: Path | None) -> None:
    if folder is not None and not folder.is_dir():
        raise OptionError(f"no such folder: `{folder}`", help=f"create it: mkdir -p '{folder}'")


def _made(wish: Wish) -> list[str]:
    """The maps that each picture will have, by their method's name."""
    from gradscope import plugins

    methods = list(dict.fromkeys(wish.methods))
    if "all" in methods:
        methods = plugins.names("gradscope.saliency")
    pair = [name for name in ("why_not", "versus") if getattr(wish, name) is not None]
    return [*methods, *(name.replace("_", "-") for name in pair)] or ["grad-cam"]


def _what(wish: Wish) -> str:
    """What the files' names say of their maps."""
    made = _made(wish)
    return "saliency" if len(made) > 1 else re.sub(r"[^\w-]+", "-", made[0])


def _map_file(folder: Path, name: str, method: str) -> Path:
    return folder / f"{name}-{method}.npy"


def _check_maps(folder: Path, names: Sequence[str], methods: Sequence[str], *, force: bool) -> None:
    """Refuse raw maps that could not be written, before anything runs."""
    for name in names:
        for method in methods:
            check_output(_map_file(folder, name, method), force=force)


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on standard error where that is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda done, whole, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("pictures", total=None)
        yield lambda done, whole, what: bar.update(
            task, completed=done, total=whole, description=what
        )


def _saved(found: Saliency, folder: Path, names: Sequence[str], *, force: bool) -> Saliency:
    """The raw maps as files, and the report that names them."""
    import numpy as np

    made = [[record.method for record in image.maps] for image in found.report.images]
    for name, methods in zip(names, made, strict=True):
        _check_maps(folder, [name], methods, force=force)
    pictures = []
    for image, maps, name in zip(found.report.images, found.maps, names, strict=True):
        records = []
        for record, values in zip(image.maps, maps, strict=True):
            path = _map_file(folder, name, record.method)
            data = io.BytesIO()
            np.save(data, values.numpy())
            write_output(data.getvalue(), path, force=force)
            records.append(replace(record, file=str(path)))
        pictures.append(replace(image, maps=tuple(records)))
    return replace(found, report=replace(found.report, images=tuple(pictures)))


def _preview(written: list[Path], width: int | None, color: bool) -> str:
    """The first picture in the terminal, where there is one with colours."""
    if width is None or not color or not written or written[0].suffix.lower() == ".pdf":
        return ""
    from gradscope import images

    return "\n" + images.preview(images.read_image(written[0]), min(width, 100), color)
