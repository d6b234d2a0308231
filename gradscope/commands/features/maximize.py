"""``gradscope features maximize``: the picture that activates a channel most."""

from __future__ import annotations

from typing import Annotated

from gradscope.commands import _completing as completing
from gradscope.commands._model import importing_torch, split_words
from gradscope.commands._options import DisplayOptions, argument, option, takes_groups
from gradscope.commands.features._shared import (
    FeatureOutput,
    SheetOptions,
    ViewerOptions,
    at_least,
)
from gradscope.errors import OptionError

EXAMPLES = (
    ("gradscope features maximize", "Pictures that maximize each class of the bundled network."),
    (
        "gradscope features maximize layer4:17 -m torchvision:resnet18 weights=DEFAULT",
        "One channel of a pretrained network.",
    ),
    ("gradscope features maximize conv2 --top 20 -o wants.png", "Many channels of a layer."),
)


@takes_groups
def run(
    words: Annotated[
        list[str] | None,
        argument(
            "LAYER[:CHANNEL]|KEY=VALUE",
            "A layer (default: the last linear one), a channel of it, several with commas; "
            "and config keys to override.",
            complete=completing.layers,
        ),
    ] = None,
    *,
    steps: Annotated[int, option("N", "Steps of gradient ascent.")] = 128,
    top: Annotated[int, option("N", "Without CHANNEL: the first N of the layer.")] = 12,
    size: Annotated[
        int | None,
        option("PIXELS", "The picture's side in pixels, if the transform takes any size."),
    ] = None,
    viewer: ViewerOptions,
    sheet: SheetOptions,
    display: DisplayOptions,
) -> None:
    """Draw the picture that activates a channel most: gradient ascent, from seeded noise.

    It maximises the mean of the channel's map, in smooth steps (1/f) of one length, with a random
    shift of the picture before each step (Erhan et al. 2009; Olah et al. 2017).
    """
    at_least(steps, 1, "--steps")
    at_least(top, 1, "--top")
    if size is not None:
        at_least(size, 8, "--size")
    layers, overrides = split_words(words)
    if len(layers) > 1:
        raise OptionError(f"one LAYER, please: got {', '.join(f'`{one}`' for one in layers)}")
    pattern, channels = _channels(layers[0]) if layers else (None, None)
    output = FeatureOutput.of(sheet, display)
    with output.running(viewer.timeout), importing_torch():
        from gradscope.api.features import maximize

        model = viewer.viewer(overrides, demo=True)
        found = maximize(model, pattern, channels, top=top, steps=steps, size=size)
    few = [str(c) for c in channels or ()][:4]
    output.write(found, "maximize", found.report.layers[0], *few)


def _channels(word: str) -> tuple[str, list[int] | None]:
    """Split ``conv2:3,7`` into the layer and its channels; None without channels."""
    layer, colon, numbers = word.rpartition(":")
    if not colon or layer in ("type", "re", "!type", "!re"):
        return word, None
    try:
        return layer, [int(number) for number in numbers.split(",")]
    except ValueError:
        raise OptionError(
            f"`{numbers}` in `{word}` is not a channel", help=f"write a number: `{layer}:0`"
        ) from None
