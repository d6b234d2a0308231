"""What layers look for and respond to: filters, activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from gradscope import images, progress
from gradscope.api.feature_results import FeatureResult, FeatureRun
from gradscope.api.viewing import about
from gradscope.features.activation_sheet import excitation_sheet, map_rows
from gradscope.features.channels import ChannelSweep, as_channels
from gradscope.features.filter_sheet import filter_sheet
from gradscope.features.filters import filter_bank
from gradscope.features.outputs import Layer, last_map, layers_matching, require_called, run
from gradscope.features.pictures import Source, batches
from gradscope.loading.viewing import Viewer

if TYPE_CHECKING:
    from PIL.Image import Image

#: Of several pictures, as many that excite a channel most are kept.
BEST = 6


def filters(viewer: Viewer, pattern: str | None, top: int) -> FeatureResult:
    """The filters of a convolution, the model's first without a pattern; the ``top`` are drawn.

    Raises:
        GradscopeError: no such layer, or it has no filters.
    """
    task = FeatureRun(viewer, "filters")
    bank = filter_bank(viewer.model, pattern)
    if pattern is None:
        task.notices.append(f"layer `{bank.layer}`: the first convolution")
    figures = {
        "filters": len(bank.filters),
        "dead": sum(one.dead for one in bank.filters),
        "near_duplicates": sum(one.duplicate for one in bank.filters),
    }
    report = task.report([bank.layer], figures=figures, filters=bank.strongest)
    return FeatureResult(report, lambda: filter_sheet(bank, about(viewer), top))


def activations(
    viewer: Viewer, pictures: Sequence[Source], patterns: Sequence[str], top: int
) -> FeatureResult:
    """What the channels of layers respond to in pictures, the ``top`` strongest drawn.

    One picture: its maps in each layer. Several: those that excite each channel of one layer most,
    and where. Without a pattern the layer is the last one with a map.

    Raises:
        GradscopeError: no such layer, no picture that can be used, or the model raised.
    """
    task = FeatureRun(viewer, "activations")
    layers: list[Layer] = layers_matching(viewer.model, patterns) if patterns else []
    sweeps: dict[str, ChannelSweep] = {}
    kept: dict[str, Tensor] = {}
    sizes: list[tuple[int, int]] = []
    used = 0
    progress.tell("running pictures through the model")
    with task.running():
        for numbers, inputs in batches(pictures, viewer, task.skipped):
            if not layers:
                layers = [last_map(viewer.model, inputs[:1])]
                task.notices.append(f"layer `{layers[0].title}`: the last one with a spatial map")
            for layer, maps, is_map in _maps(viewer, inputs, layers):
                sweeps.setdefault(layer.name, ChannelSweep(layer, BEST)).add(maps, is_map, numbers)
                if len(pictures) == 1:
                    kept[layer.name] = maps[0]
            sizes.append((inputs.shape[2], inputs.shape[3]))
            used += len(numbers)
    task.require_pictures(used)
    without = [sweep.layer.title for sweep in sweeps.values() if not sweep.is_map]
    if without:
        task.notices.append(f"no map: {', '.join(without)} has units, and no places in the picture")
    names = [one.name for one in pictures]
    report = task.report(
        [layer.title for layer in layers],
        images=used,
        figures={"dead": sum(one.dead for s in sweeps.values() for one in s.stats())},
        channels=tuple(one for sweep in sweeps.values() for one in sweep.stats()),
    )
    if len(pictures) > 1:
        strongest = [(s, one.channel) for s in sweeps.values() for one in s.stats()[:top]]
        best = tuple(e for sweep, channel in strongest for e in sweep.excitations(channel, names))
        report = replace(report, excitations=best)

    def draw() -> list[Image]:
        if len(pictures) > 1:
            return [
                page
                for sweep in sweeps.values()
                for page in excitation_sheet(sweep, pictures, viewer, about(viewer), top, used)
            ]
        photo = pictures[0].photo(viewer)
        maps = [(s, kept[name]) for name, s in sweeps.items() if s.is_map]
        return images.sheets(map_rows(photo, maps, sizes[0], about(viewer), top))

    return FeatureResult(report, draw)


def _maps(
    viewer: Viewer, inputs: Tensor, layers: Sequence[Layer]
) -> list[tuple[Layer, Tensor, bool]]:
    """Each layer's output for a batch as channels [N, K, h, w], and whether it is a map."""
    found: dict[str, tuple[Tensor, bool]] = {}

    def read(layer: Layer, values: Tensor) -> None:
        maps, is_map = as_channels(values, layer, viewer.model, inputs)
        # The last call counts, and its values as they are now.
        found[layer.name] = maps.cpu().float().clone(), is_map

    run(viewer.model, inputs, layers, read)
    for layer in layers:
        require_called(layer.name in found, layer)
    return [(layer, *found[layer.name]) for layer in layers]
