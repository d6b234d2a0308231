"""Computes a layer's features: one vector for each picture, for any number of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor, nn

from gradscope import progress
from gradscope.capture.activation_maps import as_map, patch_grid
from gradscope.errors import OptionError, refuse_unknown
from gradscope.features.cache import FeatureCache
from gradscope.features.layer_outputs import (
    Layer,
    batch_first,
    last_features,
    one_layer,
    require_called,
    run,
)
from gradscope.features.pictures import Source, batches, naming
from gradscope.loading.viewing import Viewer
from gradscope.records.features import SkippedImage

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Pooling of the places of a map, or of the steps of a sequence.
POOLINGS = ("mean", "max", "none")


@dataclass(frozen=True, slots=True, eq=False)
class FeatureArray:
    """Features [N, D] float32 of N pictures from ``layer``, pooled over places by ``pooling``.

    ``numbers`` are the positions of these pictures among the requested ones.
    """

    values: NDArray[np.float32]
    numbers: tuple[int, ...]
    names: tuple[str, ...]
    labels: tuple[str | None, ...]
    layer: str
    model: str
    pooling: str

    def only(self, rows: Sequence[int]) -> FeatureArray:
        """Return some rows."""
        return FeatureArray(
            self.values[list(rows)],
            tuple(self.numbers[i] for i in rows),
            tuple(self.names[i] for i in rows),
            tuple(self.labels[i] for i in rows),
            self.layer,
            self.model,
            self.pooling,
        )


def check_pooling(pooling: str) -> None:
    """Refuse an unknown pooling.

    Raises:
        OptionError: it is none of ``POOLINGS``.
    """
    refuse_unknown("pooling", pooling, POOLINGS)


def features_of(
    pictures: Sequence[Source],
    viewer: Viewer,
    pattern: str | None,
    skipped: list[SkippedImage],
    *,
    pooling: str = "mean",
    cache: FeatureCache | None = None,
) -> FeatureArray:
    """Return the features of every usable picture; the others are noted in ``skipped``.

    Without a pattern, the features are the inputs of the model's last linear layer. Pictures are
    streamed: memory holds one batch and the result.

    Raises:
        GradscopeError: the layer does not exist, or does not give one vector of equal size for each
            picture.
    """
    layer = None if pattern is None else one_layer(viewer.model, pattern)
    rows: NDArray[np.float32] | None = None
    used = np.zeros(len(pictures), dtype=bool)
    title = "" if layer is None else layer.title
    if cache is not None:
        rows, used = cache.known(pictures)
        title = cache.layer or title
    wanted: list[int] = np.flatnonzero(~used).tolist()
    progress.begin("reading features")
    for numbers, inputs in batches(pictures, viewer, skipped, numbers=wanted):
        with naming(pictures, numbers):
            if layer is None:
                layer = last_features(viewer.model, inputs[:1])
                title = layer.title
            found = _vectors(viewer.model, inputs, layer, pooling).numpy()
        if rows is None:
            rows = np.empty((len(pictures), found.shape[1]), dtype=np.float32)
        if found.shape[1] != rows.shape[1]:
            raise OptionError(
                f"layer `{title}` gives {found.shape[1]} features for "
                f"{pictures[numbers[0]].name}, and {rows.shape[1]} for others",
                help="give all pictures one size, `input.transform={resize: 256, crop: 224}`, or "
                "leave `--pool none` away",
            )
        rows[numbers], used[numbers] = found, True
        if cache is not None:
            cache.add(numbers, found, title)
    kept: list[int] = np.flatnonzero(used).tolist()
    if rows is None:
        rows = np.empty((0, 0), dtype=np.float32)
    return FeatureArray(
        values=rows if len(kept) == len(rows) else rows[kept],
        numbers=tuple(kept),
        names=tuple(pictures[i].name for i in kept),
        labels=tuple(pictures[i].label for i in kept),
        layer=title,
        model=viewer.name,
        pooling=pooling,
    )


def _vectors(model: nn.Module, inputs: Tensor, layer: Layer, pooling: str) -> Tensor:
    """Return [N, D] float32 on the CPU, read in the hook before anything writes into the output."""
    found: list[Tensor] = []

    def read(layer: Layer, values: Tensor) -> None:
        found[:] = [_pooled(values, layer, model, inputs, pooling).cpu()]  # the last call counts

    run(model, inputs, [layer], read)
    require_called(bool(found), layer)
    return found[0]


def _pooled(values: Tensor, layer: Layer, model: nn.Module, inputs: Tensor, pooling: str) -> Tensor:
    values = batch_first(values, layer, len(inputs)).float()
    if values.dim() == 2 or pooling == "none":
        return values.flatten(1).clone()
    if values.dim() == 3:  # [N, T, K]
        values = values.transpose(1, 2)
    elif values.dim() == 4:  # a map, its channels first or last
        size = (inputs.shape[2], inputs.shape[3])
        made = as_map(values, size, module=layer.module, patches=patch_grid(model, inputs))
        values = values if made is None else made
    places = values.flatten(2)
    return places.amax(2) if pooling == "max" else places.mean(2)
