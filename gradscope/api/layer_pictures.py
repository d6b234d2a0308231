"""Pictures of layers: filters, activations, and inputs that maximise channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradscope import progress
from gradscope.api.feature_arrays import FeatureResult, FeatureRun
from gradscope.api.viewing import about
from gradscope.errors import OptionError
from gradscope.features.channels import ChannelSweep, as_channels, filter_bank
from gradscope.features.maximize import channel_count, input_range, maximized
from gradscope.features.pictures import (
    Layer,
    Source,
    batches,
    last_features,
    last_map,
    layers_matching,
    naming,
    one_layer,
    require_called,
    run,
)
from gradscope.features.sheets import excitation_sheet, filter_sheet, map_rows, maximized_sheet
from gradscope.images.sheets import sheets
from gradscope.loading.viewing import Viewer
from gradscope.records.features import MaximizedChannel
from gradscope.typeset.numbers import plural

if TYPE_CHECKING:
    from PIL.Image import Image

#: Number of pictures kept that excite a channel most.
BEST = 6


def filters(viewer: Viewer, pattern: str | None, top: int) -> FeatureResult:
    """Draw the ``top`` filters of a convolution; without a pattern, of the first one.

    Raises:
        GradscopeError: the layer does not exist, or has no filters.
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
    """Draw the ``top`` channels of layers with the strongest responses to pictures.

    For one picture: its maps in each layer. For several: the pictures, and places in them, that
    excite each channel of one layer most. The default is the last layer with a map.

    Raises:
        GradscopeError: the layer does not exist, no picture is usable, or the model raised.
    """
    task = FeatureRun(viewer, "activations")
    layers: list[Layer] = layers_matching(viewer.model, patterns) if patterns else []
    sweeps: dict[str, ChannelSweep] = {}
    kept: dict[str, Tensor] = {}
    sizes: list[tuple[int, int]] = []
    used = 0
    progress.begin("running pictures through the model")
    with task.running():
        for numbers, inputs in batches(pictures, viewer, task.skipped):
            with naming(pictures, numbers):
                if not layers:
                    layers = [last_map(viewer.model, inputs[:1])]
                    title = layers[0].title
                    task.notices.append(f"layer `{title}`: the last one with a spatial map")
                found = _maps(viewer, inputs, layers)
            for layer, maps, is_map in found:
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
        return sheets(map_rows(photo, maps, sizes[0], about(viewer), top))

    return FeatureResult(report, draw)


def maximize(
    viewer: Viewer,
    pattern: str | None,
    channels: Sequence[int] | None,
    *,
    top: int,
    steps: int,
    size: int | None,
) -> FeatureResult:
    """Make pictures that maximise channels of a layer; without channels, of the first ``top``.

    Without a pattern the layer is the last linear one, whose channels are the classes.

    Raises:
        GradscopeError: the layer or channel does not exist, there is no gradient, or the model
            raised.
    """
    task = FeatureRun(viewer, "maximize")
    within, remark = input_range(viewer, size)
    task.notices += [remark] * bool(remark)
    grey = (within.input(torch.full_like(within.black, 0.5))[None]).to(viewer.device, viewer.dtype)
    with task.running():
        if pattern is None:
            layer = replace(last_features(viewer.model, grey), reads=False)
            task.notices.append(f"layer `{layer.title}`: the last linear layer")
        else:
            layer = one_layer(viewer.model, pattern)
        full = channel_count(viewer, layer, grey)
        wanted = list(range(min(top, full))) if channels is None else list(channels)
        for channel in wanted:
            if not 0 <= channel < full:
                raise OptionError(
                    f"layer `{layer.title}` has no channel {channel}",
                    help=f"its channels are 0 to {full - 1}",
                )
        progress.begin("climbing")
        found = maximized(viewer, layer, wanted, within, steps=steps, seed=task.seed)
    stuck = [str(c) for c, a, b in zip(wanted, found.start, found.reached, strict=True) if a == b]
    if stuck:
        task.notices.append(
            f"channel {', '.join(stuck)}: no gradient at the start; try another `--seed"
        )
    if channels is None and full > len(wanted):
        task.notices.append(f"the first {len(wanted)} of {full} channels: `--top` takes more")
    report = task.report(
        [layer.title],
        figures={"channels": full, "steps": steps},
        maximized=tuple(
            MaximizedChannel(layer.title, *row)
            for row in zip(wanted, found.start, found.reached, strict=True)
        ),
    )
    classes = viewer.classes or ()
    are_classes = pattern is None and len(classes) == full
    names = [f"class {classes[c]}" if are_classes else "" for c in wanted]
    title = [
        f"pictures that maximise channels of {layer.title}: {plural(steps, 'step')} of gradient "
        "ascent",
        about(viewer),
    ]
    foot = [
        "below each picture: the channel's mean activation on noise, and on the picture",
        "smooth steps (1/f), the picture shifted at random before each (Olah et al. 2017, Distill)",
    ]
    return FeatureResult(report, lambda: maximized_sheet(found, wanted, names, title, foot))


def _maps(
    viewer: Viewer, inputs: Tensor, layers: Sequence[Layer]
) -> list[tuple[Layer, Tensor, bool]]:
    """Yield each layer's output for a batch as channels [N, K, h, w], and whether it is a map."""
    found: dict[str, tuple[Tensor, bool]] = {}

    def read(layer: Layer, values: Tensor) -> None:
        maps, is_map = as_channels(values, layer, viewer.model, inputs)
        # The last call counts, and its values as they are now.
        found[layer.name] = maps.cpu().float().clone(), is_map

    run(viewer.model, inputs, layers, read)
    for layer in layers:
        require_called(layer.name in found, layer)
    return [(layer, *found[layer.name]) for layer in layers]
