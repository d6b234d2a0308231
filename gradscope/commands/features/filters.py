"""``gradscope features filters``: the filters of a convolution as pictures."""

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
    ("gradscope features filters", "The filters of the bundled network's first convolution."),
    (
        "gradscope features filters conv1 -m torchvision:resnet18 weights=DEFAULT",
        "A pretrained network's: edges and colours.",
    ),
)


@takes_groups
def run(
    words: Annotated[
        list[str] | None,
        argument(
            "LAYER|KEY=VALUE",
            "A convolution (default: the first), and config keys to override.",
            complete=completing.layers,
        ),
    ] = None,
    *,
    top: Annotated[int, option("N", "Draw the N filters of the largest norm.")] = 64,
    viewer: ViewerOptions,
    sheet: SheetOptions,
    display: DisplayOptions,
) -> None:
    """Draw the filters of a convolution, the strongest first; mark dead and near-duplicate ones.

    Filters of three channels are drawn in colour, others as maps on one scale.
    """
    at_least(top, 1, "--top")
    layers, overrides = split_words(words)
    if len(layers) > 1:
        raise OptionError(f"one LAYER, please: got {', '.join(f'`{one}`' for one in layers)}")
    output = FeatureOutput.of(sheet, display)
    with output.running(viewer.timeout), importing_torch():
        from gradscope.api.features import filters

        model = viewer.viewer(overrides, demo=True)
        found = filters(model, layers[0] if layers else None, top)
    output.write(found, "filters", found.report.layers[0])
