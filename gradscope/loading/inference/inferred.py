"""The result of an inference: a config's ``input``, and a notice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_INTEGRAL = ("int", "uint", "bool")


@dataclass(frozen=True)
class Inferred:
    """``input`` and ``target`` as the config would give them; ``origin`` is where from."""

    input: Any
    summary: str
    origin: str
    target: Any = None

    def with_gradients(self) -> Inferred:
        """The same with each floating tensor a leaf that requires a gradient."""
        return dataclasses.replace(self, input=_requiring(self.input))


def _requiring(spec: Any) -> Any:
    if isinstance(spec, list):
        return [_requiring(item) for item in spec]
    if not isinstance(spec, Mapping):
        return spec
    integral = str(spec.get("dtype", "")).startswith(_INTEGRAL)
    if "image" in spec or ("shape" in spec and not integral):
        return {**spec, "requires_grad": True}
    return {name: _requiring(value) for name, value in spec.items()}
