"""Shared by the commands of ``gradscope features``: options, the model, the output."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from gradscope import plugins
from gradscope.commands import _completing as completing
from gradscope.commands._options import (
    MODEL,
    OUTPUT,
    Allow,
    Device,
    DisplayOptions,
    DType,
    Force,
    MaxTokens,
    ModelOptions,
    Seed,
    Set,
    Timeout,
    option,
)
from gradscope.commands._pictures import OutputFiles, output_files, write_pages
from gradscope.commands._running import running
from gradscope.commands._views import check_max_tokens, choose_format, fitted, text_view
from gradscope.commands._write import check_output, output_file, write_output
from gradscope.errors import ModelError, OptionError
from gradscope.reporters.features import FORMATS
from gradscope.reporters.views import TextView

if TYPE_CHECKING:
    from gradscope.api.features import FeatureResult
    from gradscope.features.vectors import FeatureArray
    from gradscope.loading.vision_models import Viewer

ROOM = "gradscope.reporters.features"
#: The suffixes of features' formats, which import torch.
SAVED = (".npz", ".csv", ".safetensors")


@dataclass(frozen=True, slots=True)
class ViewerOptions:
    """The model whose features are read."""

    panel: ClassVar[str] = MODEL

    model: Annotated[
        str | None,
        option(
            "MODEL",
            "A YAML config or a spec. Without one: `demo` for its own digits; for other pictures "
            "torchvision's ResNet-18 with its weights.",
            "-m",
            "--model",
            complete=completing.models,
        ),
    ] = None
    settings: Set = None
    timeout: Timeout = None
    allow: Allow = None
    device: Device = None
    dtype: DType = None
    seed: Seed = None

    def viewer(self, overrides: list[str], *, demo: bool) -> Viewer:
        """Return the model; without a name, ``demo`` for its own digits, else ResNet-18 with its
        weights.

        Raises:
            GradscopeError: the config or an option is wrong, or the model raised.
        """
        from gradscope.api.viewing import view

        model = self.model or ("demo" if demo else None)
        keys = ModelOptions(device=self.device, dtype=self.dtype, seed=self.seed).keys
        return view(model, [*overrides, *(self.settings or [])], keys, self.allow or ())


@dataclass(frozen=True, slots=True)
class SpaceOptions:
    """Features to compare, and files that cache them."""

    panel: ClassVar[str] = "Features"

    layer: Annotated[
        str | None,
        option(
            "LAYER",
            "The layer whose output is the features (default: the input of the last linear layer).",
            "-l",
            "--layer",
            complete=completing.layers,
        ),
    ] = None
    pool: Annotated[
        str,
        option(
            "HOW",
            "mean or max over the places of a map or the steps of a sequence; none keeps all.",
            complete=completing.one_of(("mean", "max", "none")),
        ),
    ] = "mean"
    cache: Annotated[
        Path | None,
        option(
            "FILE.safetensors",
            "Cache features in this file, and reuse those of the same weights, transform and "
            "pictures.",
        ),
    ] = None
    save_features: Annotated[
        Path | None,
        option("FILE", "Save the features: .npz, .csv or .safetensors."),
    ] = None

    def check(self, *, force: bool) -> None:
        """Refuse files that cannot be written, before anything runs.

        Raises:
            OptionError: a suffix names no format, or a file exists or cannot be written.
        """
        if self.cache is not None:
            if self.cache.suffix.lower() != ".safetensors":
                raise OptionError(
                    f"`--cache {self.cache}` is not a safetensors file",
                    help="let its name end in `.safetensors`",
                )
            check_output(self.cache, force=True)
        if self.save_features is not None:
            if self.save_features.suffix.lower() not in SAVED:
                raise OptionError(
                    f"the suffix `{self.save_features.suffix}` of `{self.save_features}` names no "
                    "format of features",
                    help=f"use one of {', '.join(SAVED)}",
                )
            check_output(self.save_features, force=force)

    def save(self, features: FeatureArray | None, *, force: bool) -> list[Path]:
        """Write the features if requested; return the files."""
        if self.save_features is None or features is None:
            return []
        room = "gradscope.features.vectors"
        name = plugins.by_suffix(room, self.save_features, otherwise="name it so")
        with output_file(self.save_features, force=force) as path:
            plugins.load(room, name).render(features, path)
        return [self.save_features]


@dataclass(frozen=True, slots=True)
class SheetOptions:
    """File of the picture or the figures."""

    panel: ClassVar[str] = OUTPUT

    output: Annotated[
        Path | None,
        option(
            "FILE",
            "A picture (.png, .jpg, .webp, .pdf), a `.json` report, or a folder.",
            "-o",
            "--output",
        ),
    ] = None
    format: Annotated[
        str | None,
        option(
            "FORMAT",
            "terminal or json; json writes no picture.",
            "-f",
            "--format",
            complete=completing.files_of(ROOM),
        ),
    ] = None
    max_tokens: MaxTokens = None
    force: Force = False


@dataclass(frozen=True, slots=True)
class FeatureOutput:
    """Destination of a result, checked before anything runs."""

    files: OutputFiles
    json_to: Path | None
    as_json: bool
    look: TextView
    max_tokens: int | None = None

    @classmethod
    def of(cls, sheet: SheetOptions, display: DisplayOptions) -> FeatureOutput:
        """Make the output settings from the sheet and display options.

        Raises:
            OptionError: a format or suffix is unknown, or a file exists or cannot be written.
        """
        look, output = text_view(display), sheet.output
        as_json = output is not None and output.suffix.lower() == ".json"
        if sheet.format is not None:
            as_json = choose_format(sheet.format, None, ROOM) == "json"
        check_max_tokens(sheet.max_tokens, "json" if as_json else "terminal")
        files = output_files(None if as_json else output, force=sheet.force)
        if as_json:
            check_output(output, force=sheet.force)
        else:
            files.check(["features"])
        return cls(files, output if as_json else None, as_json, look, sheet.max_tokens)

    @contextmanager
    def running(self, timeout: float | None) -> Iterator[None]:
        """Run the model in the block: its prints go to standard error, its errors are reported."""
        try:
            with running(timeout):
                yield
        except ModelError as error:
            if self.as_json and error.report is not None:
                from gradscope.records.json import dumps

                text = fitted(dumps(error.report), self.max_tokens)
                write_output(text, self.json_to, force=self.files.force)
            raise

    def write(self, result: FeatureResult, *name: str, also: Sequence[Path] = ()) -> None:
        """Write the picture, called ``name``, and the notices; or the report.

        ``also`` has the files that were already written.
        """
        if self.as_json:
            text = FORMATS["json"].render(result.report, self.look)
            write_output(fitted(text, self.max_tokens), self.json_to, force=self.files.force)
            return
        with running(None):
            pages = result.draw()
        stem = "-".join(re.sub(r"[^\w.-]+", "-", word).strip("-.")[:60] for word in name if word)
        written = write_pages(pages, self.files, stem)
        text = FORMATS["terminal"].render(result.report, self.look, [*written, *also])
        write_output(text, None)
        width = self.look.width
        if written and self.look.color and width and written[0].suffix.lower() != ".pdf":
            from gradscope.images.photos import preview

            write_output("\n" + preview(pages[0], min(width, 100), True), None)


def at_least(number: int, least: int, option: str) -> None:
    """Refuse a number that is too small.

    Raises:
        OptionError: it is below ``least``.
    """
    if number < least:
        raise OptionError(f"`{option} {number}` is too few", help=f"give {least} or more")
