"""``gradscope features embed``: how pictures lie in the space of a layer's features."""

from __future__ import annotations

from typing import Annotated

from gradscope.commands import _completing as completing
from gradscope.commands._model import importing_torch
from gradscope.commands._options import DisplayOptions, argument, option, takes_groups
from gradscope.commands._pictures import split_pictures
from gradscope.commands.features._shared import (
    FeatureOutput,
    SheetOptions,
    SpaceOptions,
    ViewerOptions,
)

EXAMPLES = (
    ("gradscope features embed", "The plane of 1,797 digits, as the bundled network sees them."),
    (
        "gradscope features embed pets/ -m ./net.py:Net checkpoint=net.pt -o pets.png",
        "A network of yours; each folder in `pets` is a class.",
    ),
    (
        "gradscope features embed pets/ -l layer4 --save-features pets.npz -f json",
        "ResNet-18's features of a layer for other tools, and the places as data.",
    ),
)


@takes_groups
def run(
    words: Annotated[
        list[str] | None,
        argument(
            "FOLDER|KEY=VALUE",
            "Pictures, or a folder with a subfolder for each class; and config keys.",
            complete=completing.pictures,
        ),
    ] = None,
    *,
    method: Annotated[
        str,
        option(
            "NAME",
            "tsne, umap (where umap-learn is installed) or pca.",
            complete=completing.one_of(("tsne", "umap", "pca")),
        ),
    ] = "tsne",
    space: SpaceOptions,
    viewer: ViewerOptions,
    sheet: SheetOptions,
    display: DisplayOptions,
) -> None:
    """Draw pictures in the plane by a layer's features, and measure how far to trust the plot.

    A picture's class is the name of its folder. The plot shows classes by colour and name, and
    some of the pictures. k-NN accuracy is measured in feature space, trustworthiness in the plane.
    """
    paths, overrides = split_pictures(words, "features embed")
    output = FeatureOutput.of(sheet, display)
    space.check(force=sheet.force)
    with output.running(viewer.timeout), importing_torch():
        from gradscope.api.features import embed
        from gradscope.features.streaming import digits, sources

        found = embed(
            viewer.viewer(overrides, demo=not paths),
            sources(paths) if paths else digits(),
            space.layer,
            method=method,
            pooling=space.pool,
            cache=space.cache,
        )
    also = space.save(found.features, force=sheet.force)
    output.write(found, method, found.report.layers[0], also=also)
