"""Measures the filters of a convolution: norms, dead filters, near duplicates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from gradscope.capture.hooks import select_layer
from gradscope.capture.names import named_modules
from gradscope.errors import OptionError
from gradscope.records.features import FilterStats

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
