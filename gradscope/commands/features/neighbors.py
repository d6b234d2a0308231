"""``gradscope features neighbors``: the pictures that a layer finds most like one."""

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
    at_least,
)
from gradscope.errors import OptionError

EXAMPLES = (
    ("gradscope features neighbors", "The digits that the bundled network finds most like an 8."),
    (
        "gradscope features neighbors cat.jpg photos/ -k 12 --cache photos.safetensors",
        "In a folder; the next search reuses the features.",
    ),
    (
        "gradscope features neighbors cat.jpg photos/ -l layer3 --metric l2 -f json",
        "In an earlier layer of ResNet-18, by L2, as data.",
    ),
)


@takes_groups
def run(
    words: Annotated[
        list[str] | None,
        argument(
            "IMAGE… FOLDER|KEY=VALUE",
            "Pictures, then the folder to search (with its subfolders), and config keys.",
            complete=completing.pictures,
        ),
    ] = None,
    *,
    k: Annotated[int, option("N", "So many neighbours.", "-k")] = 8,
    metric: Annotated[
        str,
        option("NAME", "cosine or l2.", complete=completing.one_of(("cosine", "l2"))),
    ] = "cosine",
    space: SpaceOptions,
    viewer: ViewerOptions,
    sheet: SheetOptions,
    display: DisplayOptions,
) -> None:
    """Find the pictures of a folder whose features are nearest to those of one picture.

    scikit-learn does the search. A picture is not its own neighbour.
    """
    at_least(k, 1, "-k")
    paths, overrides = split_pictures(words, "features neighbors")
    if len(paths) == 1:
        raise OptionError(
            f"`{paths[0]}` alone has no neighbours",
            help="name a picture, and then the folder to search",
        )
    output = FeatureOutput.of(sheet, display)
    space.check(force=sheet.force)
    with output.running(viewer.timeout), importing_torch():
        from gradscope.api.features import neighbors
        from gradscope.features.streaming import digits, sources

        if paths:
            queries, pool = sources(paths[:-1]), sources(paths[-1:])
        else:
            pool = digits()
            # An 8 that was held out of training.
            queries = [next(one for one in pool[::5] if one.label == "8")]
        found = neighbors(
            viewer.viewer(overrides, demo=not paths),
            queries,
            pool,
            space.layer,
            k=k,
            metric=metric,
            pooling=space.pool,
            cache=space.cache,
        )
    also = space.save(found.features, force=sheet.force)
    output.write(found, "neighbors", queries[0].stem, found.report.layers[0], also=also)
