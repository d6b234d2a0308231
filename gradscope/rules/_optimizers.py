"""Knows, by class of optimizer, the effect of a gradient's size on the step."""

from __future__ import annotations

#: In addition to the classes with Adam in their name.
_SCALE_FREE = (
    *("rmsprop", "adagrad", "adadelta", "adafactor", "lion", "lamb", "lars", "rprop"),
    *("sophia", "muon", "shampoo", "soap", "signsgd", "prodigy", "novograd"),
)


def divides(kind: str | None) -> bool:
    """Return True if the optimizer divides by the root of a second moment plus epsilon."""
    name = (kind or "").lower()
    return "adam" in name or name == "rmsprop"


def is_scale_free(kind: str | None) -> bool:
    """Return True if the step's length does not depend on the gradients' scale."""
    name = (kind or "").lower()
    return "adam" in name or any(one in name for one in _SCALE_FREE)
