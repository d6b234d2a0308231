"""Measures the filters of a convolution (norms, dead filters, near duplicates), and the responses
of a layer's channels: strength, pictures, places, receptive fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from gradscope.capture.activation_maps import as_map, patch_grid
from gradscope.capture.hooks import select_layer
from gradscope.capture.names import named_modules
from gradscope.errors import OptionError
from gradscope.features.streaming import Layer, batch_first, hooked_layers
from gradscope.records.features import ChannelStats, Excitation, FilterStats

#: A filter is dead whose norm is below this share of the layer's largest: weight decay takes one
#: that no gradient reaches down to rounding.
DEAD = 1e-3
#: Filters are near duplicates whose cosine is at least this.
DUPLICATE = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class FilterBank:
    """The filters of a layer: ``weights`` [filters, channels, h, w], float32."""

    layer: str
    kind: str
    shape: tuple[int, ...]
    weights: Tensor
    filters: tuple[FilterStats, ...]

    @property
    def strongest(self) -> tuple[FilterStats, ...]:
        """Return the filters, the largest norm first."""
        return tuple(sorted(self.filters, key=lambda one: (-one.norm, one.filter)))


def filter_bank(model: nn.Module, pattern: str | None) -> FilterBank:
    """Return the filters of the named convolution; without a name, of the model's first.

    Raises:
        LayerError: no layer has that name; the message names the closest.
        OptionError: it is not a convolution, or the model has none.
    """
    name, module = _convolution(model, pattern)
    weights = _weights(module)
    return FilterBank(
        layer=name,
        kind=type(module).__name__,
        shape=tuple(module.weight.shape),
        weights=weights,
        filters=_measured(weights),
    )


def _convolution(model: nn.Module, pattern: str | None) -> tuple[str, _ConvNd]:
    names = {named.name: module for module, named in named_modules(model).items()}
    found = [name for name, module in names.items() if isinstance(module, _ConvNd)]
    help = f"convolutions here: {', '.join(found[:6])}{', …' * (len(found) > 6)}"
    if pattern is None:
        if not found:
            raise OptionError("the model has no convolution, so no filters to show")
        name, module = found[0], names[found[0]]
    else:
        name, module = select_layer(model, pattern)
    if not isinstance(module, _ConvNd):
        raise OptionError(
            f"layer `{name}` is a {type(module).__name__}, which has no filters",
            help=help if found else "the model has no convolution",
        )
    if module.weight.device.type == "meta" or not module.weight.numel():
        raise OptionError(f"the filters of `{name}` hold no numbers")
    return name, module


def _weights(module: _ConvNd) -> Tensor:
    """Return weights [filters, channels of one group, h, w]; further dimensions are joined along
    w."""
    weights = module.weight.detach().cpu().float()
    if isinstance(module, _ConvTransposeNd):  # [in, out / groups, …]
        groups = weights.reshape(module.groups, -1, *weights.shape[1:])
        weights = groups.transpose(1, 2).flatten(0, 1)
    if weights.dim() == 3:
        return weights.unsqueeze(2)
    if weights.dim() == 5:  # each slice of depth as a channel
        return weights.flatten(1, 2)
    return weights


def _measured(weights: Tensor) -> tuple[FilterStats, ...]:
    flat = weights.flatten(1).double()
    norms = flat.norm(dim=1)
    dead = (norms < DEAD * norms.nan_to_num(0.0).max()) | (norms == 0)
    directions = nn.functional.normalize(flat, dim=1)
    cosines = (directions @ directions.T).nan_to_num(nan=-torch.inf)
    cosines.fill_diagonal_(-torch.inf)
    cosines[dead], cosines[:, dead] = -torch.inf, -torch.inf
    found = []
    for i, norm in enumerate(norms.tolist()):
        cosine, nearest = min(float(cosines[i].max()), 1.0), int(cosines[i].argmax())
        if cosine == -torch.inf:
            found.append(FilterStats(i, norm, dead=bool(dead[i])))
        else:
            found.append(
                FilterStats(i, norm, False, nearest, cosine, duplicate=cosine >= DUPLICATE)
            )
    return tuple(found)


def as_channels(
    values: Tensor, layer: Layer, model: nn.Module, inputs: Tensor
) -> tuple[Tensor, bool]:
    """Return a layer's output as [N, channels, h, w], and True if h × w are places in the picture.

    Patch tokens are arranged in their grid. A sequence [N, T, K] without a grid has T × 1 places, a
    vector [N, K] has one.

    Raises:
        OptionError: the output has another number of rows than pictures, or more than four
            dimensions.
    """
    rows, size = len(inputs), (inputs.shape[2], inputs.shape[3])
    values, patches = batch_first(values, layer, rows), patch_grid(model, inputs)
    # Without patches, the number of tokens does not determine a grid.
    if values.dim() == 4 or patches is not None:
        made = as_map(values, size, module=layer.module, patches=patches)
        if made is not None:
            return made, True
    if values.dim() == 2:
        return values[:, :, None, None], False
    if values.dim() == 3:
        return values.transpose(1, 2).unsqueeze(3), False
    if values.dim() == 4:
        return values, False
    raise OptionError(
        f"layer `{layer.title}` gives {list(values.shape)}, which has no channels to list",
        help="name a layer that gives [N, channels, height, width], [N, tokens, channels] "
        "or [N, units]",
    )


@dataclass(slots=True, eq=False)
class ChannelSweep:
    """Collects a layer's channel statistics over all pictures, in constant memory.

    ``best`` has the ``keep`` largest values of each channel [K, keep], at most one per picture,
    with the picture's number and the place in the map. ``grids`` has the map's height and width by
    the picture's number.
    """

    layer: Layer
    keep: int
    is_map: bool = True
    grids: dict[int, tuple[int, int]] = field(default_factory=dict)
    count: int = 0
    total: Tensor = field(default_factory=lambda: torch.zeros(0, device="cpu"))
    nonzero: Tensor = field(default_factory=lambda: torch.zeros(0, device="cpu"))
    lowest: Tensor = field(default_factory=lambda: torch.zeros(0, device="cpu"))
    best: Tensor = field(default_factory=lambda: torch.zeros(0, 0, device="cpu"))
    pictures: Tensor = field(
        default_factory=lambda: torch.zeros(0, 0, dtype=torch.long, device="cpu")
    )
    places: Tensor = field(
        default_factory=lambda: torch.zeros(0, 0, dtype=torch.long, device="cpu")
    )

    def add(self, maps: Tensor, is_map: bool, pictures: list[int]) -> None:
        """Add maps [N, K, h, w] of the pictures with these numbers.

        Raises:
            OptionError: the number of channels changed.
        """
        maps = maps.cpu().float()
        channels, self.is_map = maps.shape[1], self.is_map and is_map
        self.grids |= dict.fromkeys(pictures, (maps.shape[2], maps.shape[3]))
        if not self.count:
            self.total = torch.zeros(channels, dtype=torch.float64, device="cpu")
            self.nonzero = torch.zeros(channels, dtype=torch.float64, device="cpu")
            self.lowest = torch.full((channels,), torch.inf, device="cpu")
            self.best = torch.empty(channels, 0, device="cpu")
            self.pictures = self.places = torch.empty(channels, 0, dtype=torch.long, device="cpu")
        if channels != len(self.total):
            raise OptionError(
                f"layer `{self.layer.title}` gives {channels} channels for this picture, "
                f"and {len(self.total)} for the ones before",
                help="give all pictures one size: `input.transform={resize: 256, crop: 224}`",
            )
        flat = maps.flatten(2)
        self.count += flat.shape[0] * flat.shape[2]
        self.total += flat.abs().sum((0, 2), dtype=torch.float64)
        self.nonzero += (flat != 0).sum((0, 2))
        self.lowest = torch.minimum(self.lowest, flat.amin((0, 2)))
        most = flat.max(dim=2)
        numbers = torch.tensor(pictures, device="cpu").expand(channels, -1)
        # Sorted by value and then by picture, so that the batches make no difference.
        best = torch.cat([self.best, most.values.T], dim=1)
        order = best.argsort(dim=1, descending=True, stable=True)[:, : self.keep]
        self.best = best.gather(1, order)
        self.pictures = torch.cat([self.pictures, numbers], dim=1).gather(1, order)
        self.places = torch.cat([self.places, most.indices.T], dim=1).gather(1, order)

    def stats(self) -> list[ChannelStats]:
        """Return a record for each channel, the strongest first."""
        found = [
            ChannelStats(
                layer=self.layer.title,
                channel=i,
                strength=float(self.total[i]) / self.count,
                min=float(self.lowest[i]),
                max=float(self.best[i, 0]),
                active=float(self.nonzero[i]) / self.count,
                dead=not bool(self.nonzero[i]),
            )
            for i in range(len(self.total))
        ]
        return sorted(found, key=lambda one: (-one.strength, one.channel))

    def excitations(self, channel: int, names: list[str]) -> list[Excitation]:
        """Return the pictures that excite a channel most, in descending order."""
        return [
            Excitation(
                layer=self.layer.title,
                channel=channel,
                rank=rank,
                image=names[picture],
                value=value,
                row=place // self.grids[picture][1] if self.is_map else None,
                column=place % self.grids[picture][1] if self.is_map else None,
            )
            for rank, (value, picture, place) in enumerate(
                zip(
                    self.best[channel].tolist(),
                    self.pictures[channel].tolist(),
                    self.places[channel].tolist(),
                    strict=True,
                ),
                1,
            )
        ]


#: The share of the gradient that the box holds, along each side.
SHARE = 0.9

Box = tuple[float, float, float, float]


def receptive_boxes(
    model: nn.Module, inputs: Tensor, layer: Layer, channel: int, places: Sequence[int]
) -> list[Box | None]:
    """Return the receptive field of each value: left, top, right and bottom, as shares of the
    input.

    The value is the channel's, at a place (row · width + column) of the map. Along each side, the
    box contains nine tenths of the absolute gradient with respect to the input; None without a
    gradient. Effective receptive field: Luo et al. 2016, arXiv 1701.04128.
    """
    found: list[Tensor] = []

    def read(layer: Layer, values: Tensor) -> None:
        maps, _ = as_channels(values, layer, model, inputs)
        at = torch.tensor(places, device=maps.device)[:, None]
        found[:] = [maps[:, channel].flatten(1).gather(1, at).sum()]

    leaf = inputs.detach().clone().requires_grad_()
    with torch.enable_grad(), hooked_layers([layer], read):
        model(leaf.clone())
    if not found or not found[0].requires_grad:
        return [None] * len(inputs)
    (gradient,) = torch.autograd.grad(found[0], leaf, allow_unused=True)
    if gradient is None:
        return [None] * len(inputs)
    return [_box(one) for one in gradient.abs().sum(1).double().cpu()]


def _box(weight: Tensor) -> Box | None:
    """Return the box around the middle of a weight [H, W]."""
    if not bool(weight.isfinite().all()) or not bool(weight.any()):
        return None
    top, bottom = _middle(weight.sum(1))
    left, right = _middle(weight.sum(0))
    return left, top, right, bottom


def _middle(weight: Tensor) -> tuple[float, float]:
    """Return the edges of the pixels between which the share lies, as shares of the side."""
    below = weight.cumsum(0) / weight.sum()
    rest = (1 - SHARE) / 2
    first = int((below < rest).sum())
    last = min(int((below < 1 - rest).sum()), len(weight) - 1)
    return first / len(weight), (last + 1) / len(weight)
