"""``gradscope features activations``: the responses of layers' channels."""

from __future__ import annotations

from typing import Annotated

from gradscope.commands._model import importing_torch
from gradscope.commands._options import (
    DisplayOptions,
    LayerOptions,
    Pictures,
    option,
    takes_groups,
)
from gradscope.commands._pictures import split_pictures
from gradscope.commands.features._shared import (
    FeatureOutput,
    SheetOptions,
    ViewerOptions,
    at_least,
)

EXAMPLES = (
    ("gradscope features activations", "The channels of the bundled network, on a digit."),
    (
        "gradscope features activations cat.jpg -l layer1 -l layer4",
        "A photograph in an early and a late layer of ResNet-18.",
    ),
    (
        "gradscope features activations photos/ -l layer3 --top 12",
        "The pictures in a folder, and their places, that excite each channel most.",
    ),
)


@takes_groups
def run(
    words: Pictures = None,
    *,
    layers: LayerOptions,
    top: Annotated[int, option("N", "Draw the N strongest channels of each layer.")] = 24,
    viewer: ViewerOptions,
    sheet: SheetOptions,
    display: DisplayOptions,
) -> None:
    """Draw the responses of a layer's channels: the strongest first; dead ones are counted.

    One picture: its map in each channel. Several, or a folder: the pictures with the strongest
    response of each channel, and its position. Without `-l`: the last layer with a map.
    """
    at_least(top, 1, "--top")
    paths, overrides = split_pictures(words, "features activations")
    output = FeatureOutput.of(sheet, display)
    with output.running(viewer.timeout), importing_torch():
        from gradscope.api.features import activations
        from gradscope.api.opened import without
        from gradscope.demo import DIGITS
        from gradscope.features.streaming import sources

        pictures = sources(paths or [DIGITS[0][0]])
        model = viewer.viewer(overrides, demo=not paths)
        patterns = without(layers.layers or ["**"] * bool(layers.exclude), layers.exclude or ())
        found = activations(model, pictures, patterns, top)
    name = pictures[0].stem if len(pictures) == 1 else "pictures"
    output.write(found, "activations", name, "-".join(found.report.layers))
