"""Infers the inputs of a model without ``input`` in its config.

One file per family of models. Each returns an ``Inferred`` in the config's grammar, which the code
for the user's ``input`` reads too. A new family is a file here and a line in ``infer``.
"""

from __future__ import annotations

from gradscope.loading.inference.first_layer import Inferred, infer_layers
from gradscope.loading.inference.libraries import (
    infer_demo,
    infer_timm,
    infer_torchvision,
    infer_transformers,
)
from gradscope.loading.sources import Context

__all__ = ["Inferred", "infer"]


def infer(context: Context, *, batch: int | None = None) -> Inferred:
    """Infer the input from the model's library, with ``batch`` rows (default: 2).

    Raises:
        ConfigError: the input cannot be inferred; the help suggests one from the model's layers.
    """
    families = {
        "demo": infer_demo,
        "torchvision": infer_torchvision,
        "timm": infer_timm,
        "hf": infer_transformers,
    }
    return families.get(context.kind.library, infer_layers)(context, batch)
