"""A model's layers by the names that patterns match."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.parameter import is_lazy

from gradscope.api.opened import without
from gradscope.capture.hooks import select_layers
from gradscope.capture.parameters import parameter_count
from gradscope.config import LoadedConfig
from gradscope.loading import load_model
from gradscope.records.modules import LayerInfo


def layers(
    loaded: LoadedConfig, *, exclude: Sequence[str] = (), allow: Sequence[str] = ()
) -> tuple[LayerInfo, ...]:
    """The modules that the config's patterns select, without running them."""
    model = load_model(loaded, allow)
    patterns = without(loaded.config.layers, exclude)
    return tuple(
        LayerInfo(
            name=named.name,
            type=type(module).__name__,
            aliases=named.aliases,
            parameters=tuple(
                (name, None if is_lazy(p) else tuple(p.shape), p.requires_grad)
                for name, p in module.named_parameters(recurse=False)
            ),
            total=parameter_count(module),
        )
        for module, named in select_layers(model, patterns).items()
    )
